"""`mjp bench step`: a training step without and with MJP and as `mjp train` does it, in turn."""

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import timm
import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from mjp.commands.options import BenchStepOptions
from mjp.commands.terminal import choose_device, hardware, progress, results
from mjp.core.errors import ConfigError
from mjp.core.records import Record, append_records
from mjp.core.seeds import generator_for
from mjp.jigsaw import JigsawPlan
from mjp.models.config import MJPConfig
from mjp.models.factory import check_supported, create_model
from mjp.models.locator import LossTerms
from mjp.models.vit import give_prefix_only
from mjp.train.weighting import LocalizationWeight

WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Setting:
    """The options with every open choice made."""

    device: torch.device
    model: str
    batch: int
    precision: str
    mode: str
    steps: int


class Side:
    """One of the sides compared: a model, its optimiser and its training step.

    Args:
        shortened: whether the last block computes only what the head reads, as in `mjp train`.
    """

    def __init__(
        self,
        setting: Setting,
        options: BenchStepOptions,
        *,
        with_mjp: bool,
        shortened: bool = False,
    ) -> None:
        torch.manual_seed(options.seed)
        self.device = setting.device
        config = MJPConfig(ratio=options.ratio, probability=options.probability)
        model = (
            create_model(setting.model, config, num_classes=1000)
            if with_mjp
            else timm.create_model(setting.model, num_classes=1000)
        )
        if shortened:
            give_prefix_only(model)
        self.model: Any = model.to(setting.device).train()
        on_gpu = setting.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=on_gpu)
        self.generator = generator_for(options.seed, "jigsaw") if with_mjp else None
        self.precision = setting.precision
        loss = self._loss_with_mjp if with_mjp else self._loss
        self.loss: Callable[..., Tensor] = loss
        if setting.mode == "compiled":
            self.loss = torch.compile(loss)

    def _autocast(self) -> Any:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def _loss(self, images: Tensor, labels: Tensor, plan: JigsawPlan | None) -> Tensor:
        with self._autocast():
            return F.cross_entropy(self.model(images), labels, label_smoothing=0.1)

    def _loss_with_mjp(self, images: Tensor, labels: Tensor, plan: JigsawPlan | None) -> Tensor:
        with self._autocast():
            logits = self.model(images, plan=plan)
            classification = F.cross_entropy(logits, labels, label_smoothing=0.1)
            localization = self.model.localization_loss(plan)
            return LossTerms(classification, localization, LocalizationWeight().start).total

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One training step."""
        plan = None
        if self.generator is not None:
            plan = self.model.draw_plan(images, self.generator)
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(images, labels, plan).backward()
        self.optimizer.step()

    def time(self, images: Tensor, labels: Tensor, steps: int) -> float:
        """Seconds per step, over so many steps without waiting in between."""
        _wait(self.device)
        start = time.perf_counter()
        for _ in range(steps):
            self.step(images, labels)
        _wait(self.device)
        return (time.perf_counter() - start) / steps

    def warm_up(self, images: Tensor, labels: Tensor) -> int | None:
        """Runs a few steps; the peak memory of one of them that this side alone accounts for."""
        if self.device.type != "cuda":
            self.step(images, labels)
            return None
        for _ in range(WARM_UP_STEPS):
            self.step(images, labels)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.step(images, labels)
        return torch.cuda.max_memory_allocated(self.device)


def run(options: BenchStepOptions) -> None:
    """Measures and prints."""
    setting = choose(options)
    if options.rounds < 2:
        raise ConfigError(f"rounds must be at least 2 to show a spread, got {options.rounds}")
    torch.set_float32_matmul_precision("high")
    images, labels = _batch(setting, options.seed)
    with progress() as bar:
        task = bar.add_task("building and warming up", total=3 + options.rounds)
        plain = Side(setting, options, with_mjp=False)
        plain_memory = plain.warm_up(images, labels)
        bar.advance(task)
        resident = _allocated(setting.device) - _bytes(images)
        masked = Side(setting, options, with_mjp=True)
        mjp_memory = masked.warm_up(images, labels)
        bar.advance(task)
        trained = Side(setting, options, with_mjp=True, shortened=True)
        trained.warm_up(images, labels)
        bar.advance(task)
        bar.update(task, description="timing")
        times: dict[Side, list[float]] = {plain: [], masked: [], trained: []}
        for number in range(options.rounds):
            # The order alternates, so that a slow drift of the machine favours no side.
            for side in times if number % 2 else reversed(times):
                times[side].append(side.time(images, labels, setting.steps))
            bar.advance(task)
    memory_ratio = None
    if plain_memory is not None and mjp_memory is not None:
        memory_ratio = (mjp_memory - resident) / plain_memory
    _report(options, setting, list(times.values()), memory_ratio)


def choose(options: BenchStepOptions) -> Setting:
    """Makes the choices that were left open."""
    device = choose_device(options.device)
    on_gpu = device.type == "cuda"

    def or_else(asked: Any, gpu: Any, cpu: Any) -> Any:
        return asked if asked is not None else gpu if on_gpu else cpu

    setting = Setting(
        device=device,
        model=or_else(options.model, "deit_small_patch16_224", "deit_tiny_patch16_224"),
        batch=or_else(options.batch, 512, 16),
        precision=or_else(options.precision, "bf16", "fp32"),
        mode=or_else(options.mode, "compiled", "eager"),
        steps=or_else(options.steps, 10, 1),
    )
    check_supported(setting.model)
    if setting.batch < 1 or setting.steps < 1:
        raise ConfigError("batch and steps must be at least 1")
    return setting


def _report(
    options: BenchStepOptions,
    setting: Setting,
    times: list[list[float]],
    memory_ratio: float | None,
) -> None:
    plain, mjp, trained = (1e3 * statistics.median(one) for one in times)
    low, middle, high = _ratio(times[1], times[0])
    shorter = _ratio(times[2], times[0])
    title = f"{setting.model}, batch {setting.batch}, {setting.precision}, {setting.mode}"
    title += f"\n{hardware(setting.device)}"
    title += f"\nmask ratio {options.ratio:g}, probability {options.probability:g}"
    table = Table(title=title)
    table.add_column("training step")
    for column in ("ms, median", "ratio, median", "quartiles", "peak memory"):
        table.add_column(column, justify="right")
    table.add_row("plain", f"{plain:.2f}", "1", "", "1")
    table.add_row(
        "with MJP",
        f"{mjp:.2f}",
        f"{middle:.4f}",
        f"{low:.4f} to {high:.4f}",
        "not measured" if memory_ratio is None else f"{memory_ratio:.4f}",
    )
    table.add_row(
        "with MJP, as mjp train does it",
        f"{trained:.2f}",
        f"{shorter[1]:.4f}",
        f"{shorter[0]:.4f} to {shorter[2]:.4f}",
        "not measured",
    )
    results().print(table)
    record = Record(
        kind="bench step",
        conditions={
            "model": setting.model,
            "batch": setting.batch,
            "precision": setting.precision,
            "mode": setting.mode,
            "ratio": options.ratio,
            "probability": options.probability,
            "rounds": options.rounds,
            "steps": setting.steps,
            "seed": options.seed,
            "hardware": hardware(setting.device),
            "torch": torch.__version__,
        },
        values={
            "plain_ms": plain,
            "mjp_ms": mjp,
            "trained_ms": trained,
            "time_ratio": middle,
            "time_ratio_quartile_low": low,
            "time_ratio_quartile_high": high,
            "trained_time_ratio": shorter[1],
            "memory_ratio": memory_ratio,
        },
    )
    append_records(options.out / "records.jsonl", [record])


def _ratio(ours: list[float], theirs: list[float]) -> list[float]:
    """Quartiles of the ratio, round by round."""
    return statistics.quantiles([one / other for one, other in zip(ours, theirs, strict=True)], n=4)


def _batch(setting: Setting, seed: int) -> tuple[Tensor, Tensor]:
    with torch.device("meta"):
        shape = timm.create_model(setting.model).pretrained_cfg["input_size"]
    generator = generator_for(seed, "images")
    images = torch.randn(setting.batch, *shape, generator=generator)
    labels = torch.randint(1000, (setting.batch,), generator=generator)
    return images.to(setting.device), labels.to(setting.device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
