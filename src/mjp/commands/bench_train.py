"""`mjp bench train`: how fast training is, and how much of that the data cost."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.table import Table
from timm.data import create_dataset, create_loader
from torch.utils.flop_counter import FlopCounterMode

from mjp.commands.options import BenchTrainOptions
from mjp.commands.terminal import choose_device, hardware, progress, results
from mjp.commands.watching import Silent
from mjp.core.errors import ConfigError
from mjp.core.records import Record, Scalar, append_records
from mjp.core.team import Team
from mjp.data.batch import Finisher
from mjp.data.config import AugmentSettings
from mjp.data.feed import train_transform
from mjp.data.folder import FolderSource
from mjp.data.order import Batching
from mjp.data.source import Sample, Source
from mjp.data.workers import WorkerFeed
from mjp.train.loop import Trainer
from mjp.train.recipe import Recipe, read_recipe
from mjp.train.setup import image_format, make_feed, make_model

WARM_UP = 3
CLASSES = 100


@dataclass(frozen=True)
class Timing:
    """Images a second of two sides, timed in turn."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """Ours to theirs, pair by pair."""
        return [mine / other for mine, other in zip(self.ours, self.theirs, strict=True)]


class MadeUpSource(Source):
    """Random pictures of one size, with structure, so that they compress as photographs do."""

    def __init__(self, count: int, size: tuple[int, int], seed: int) -> None:
        draw = np.random.default_rng(seed)
        coarse = draw.integers(0, 256, (count, 9, 9, 3), dtype=np.uint8)
        height, width = size
        self._images = [
            np.asarray(Image.fromarray(one).resize((width, height), Image.Resampling.BICUBIC))
            for one in coarse
        ]
        labels = draw.integers(0, CLASSES, count)
        super().__init__(tuple(map(str, range(CLASSES))), labels, "made-up images")

    def name_of(self, index: int) -> str:
        return f"made-up image {index}"

    def __getitem__(self, index: int) -> Sample:
        return Sample(self._images[index], int(self.labels[index]))


def run(options: BenchTrainOptions) -> None:
    """Measures and prints."""
    if options.rounds < 2 or options.images < 64:
        raise ConfigError("rounds must be at least 2, images at least 64")
    device = choose_device(options.device)
    recipe = resolve(options, device)
    if "step" in options.parts:
        _report_step(options, recipe, device, *time_step(options, recipe, device))
    if "workers" in options.parts:
        _report_workers(options, recipe, time_workers(options, recipe))


def resolve(options: BenchTrainOptions, device: torch.device) -> Recipe:
    """The recipe to time, with the choices made that were left open."""
    recipe = read_recipe(options.name)
    on_gpu = device.type == "cuda"
    batch = options.batch or (2048 if on_gpu else 32)
    run = replace(
        recipe.run,
        batch=batch,
        warmup_epochs=0,
        compile=options.compile or (recipe.run.compile if on_gpu else "off"),
        precision="bf16" if on_gpu else "fp32",
        seed=options.seed,
        device=str(device),
    )
    data = replace(recipe.data, feed="resident", workers=options.workers)
    augment = recipe.augment if options.augment == "recipe" else AugmentSettings(repeats=1)
    mjp = replace(recipe.mjp, probability=1.0)
    return replace(recipe, run=run, data=data, augment=augment, mjp=mjp)


def time_step(
    options: BenchTrainOptions, recipe: Recipe, device: torch.device
) -> tuple[Timing, float]:
    """A step on resident data against the same step on one batch; also operations an image."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    source = MadeUpSource(options.images, recipe.model.image_size, options.seed)
    model = make_model(recipe, source.classes)
    team = Team(0, 1, device)
    feed = make_feed(recipe, model, source, source, team)
    feed.prepare(lambda what, done, total: None)
    trainer = Trainer(recipe, model, feed, team, options.out, Silent())
    steps = options.steps or (10 if device.type == "cuda" else 1)
    real = feed.train(0, 10**9)
    first = next(real)
    operations = _operations(trainer, first)
    timing = Timing([], [])
    sides = ((itertools.repeat(first), timing.theirs), (real, timing.ours))
    with progress() as bar:
        task = bar.add_task("compiling and warming up", total=options.rounds + 1)
        for batches, _ in sides:
            _time(trainer, batches, WARM_UP)
        for number in range(options.rounds):
            bar.update(task, advance=1, description="timing")
            for batches, times in sides if number % 2 else reversed(sides):
                times.append(recipe.run.batch * steps / _time(trainer, batches, steps))
    return timing, operations


def _time(trainer: Trainer, batches: Iterator[Any], steps: int) -> float:
    _wait(trainer.team.device)
    start = time.perf_counter()
    for _ in range(steps):
        trainer.train_step(batches)
    _wait(trainer.team.device)
    return time.perf_counter() - start


def _operations(trainer: Trainer, batch: Any) -> float:
    """Floating-point operations of training on one image: forward and backward."""
    few = {name: values[:2] for name, values in batch.inputs.items()}
    with FlopCounterMode(display=False) as counter:
        classification, localization = trainer.objective(**few)
        (classification + localization).backward()
    trainer.optimizer.zero_grad(set_to_none=True)
    return counter.get_total_flops() / 2


def peak(device: torch.device) -> float:
    """Operations a second of a large matrix product in bf16: what the chip can do at most."""
    side = 8192 if device.type == "cuda" else 1024
    one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(6):
        _wait(device)
        start = time.perf_counter()
        for _ in range(5):
            one @ other
        _wait(device)
        best = min(best, (time.perf_counter() - start) / 5)
    return 2 * side**3 / best


def time_workers(options: BenchTrainOptions, recipe: Recipe) -> Timing:
    """The worker feed against timm's loader: the same files, transforms and processes."""
    settings = AugmentSettings(repeats=1, mixup=0.0, cutmix=0.0)
    batch = min(64, options.images)
    team = Team(0, 1, torch.device("cpu"))
    model = make_model(recipe, tuple(map(str, range(CLASSES))))
    form = image_format(recipe, model)
    timing = Timing([], [])
    with tempfile.TemporaryDirectory() as folder, progress() as bar:
        task = bar.add_task("writing pictures", total=options.rounds + 1)
        _write_pictures(Path(folder), options.images, options.seed)
        source = FolderSource(Path(folder))
        seed = options.seed
        finish = Finisher(settings, form, len(source.classes), batch, seed)
        feed = WorkerFeed(
            source, source, recipe.data, settings, form, Batching(batch), finish, seed, team.device
        )
        theirs = create_loader(
            create_dataset("", folder),
            input_size=(3, *form.size),
            batch_size=batch,
            is_training=True,
            re_prob=settings.erasing,
            re_mode="pixel",
            mean=form.mean,
            std=form.std,
            num_workers=feed.num_workers,
            device=team.device,
            persistent_workers=False,
        )
        # The very same transform: timm's own fails in one of some hundred images with Pillow 13.
        theirs.dataset.transform = train_transform(settings, form)
        steps = options.images // batch
        for number in range(options.rounds):
            bar.update(task, advance=1, description="timing")
            # Other steps in every round, because what is drawn decides how long it takes.
            ours = feed.train(number * steps, (number + 1) * steps)
            sides = ((ours, timing.ours), (theirs, timing.theirs))
            for batches, times in sides if number % 2 else reversed(sides):
                times.append(_rate(batches, batch))
    return timing


def _rate(batches: Any, batch: int) -> float:
    """Images a second of a whole pass, the start of the processes included.

    From the first batch on would not be fair: timm's loader holds one back.
    """
    start = time.perf_counter()
    count = sum(1 for _ in batches)
    return count * batch / (time.perf_counter() - start)


def _write_pictures(folder: Path, count: int, seed: int) -> None:
    """JPEG files of about the size of ImageNet's."""
    distinct = MadeUpSource(min(count, 64), (375, 500), seed)
    draw = np.random.default_rng(seed)
    for index in range(count):
        target = folder / f"class{index % 4}"
        target.mkdir(exist_ok=True)
        pixels = distinct[index % len(distinct)].content
        assert isinstance(pixels, np.ndarray)
        noisy = pixels + draw.normal(0, 12, pixels.shape)
        picture = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        picture.save(target / f"{index:06d}.jpg", quality=90)


def _report_step(
    options: BenchTrainOptions,
    recipe: Recipe,
    device: torch.device,
    timing: Timing,
    operations: float,
) -> None:
    share = statistics.median(timing.ours) * operations / peak(device)
    run = recipe.run
    title = f"{recipe.model.name}, {recipe.model.image_size[0]} px, batch {run.batch}, "
    title += f"{run.precision}, compile {run.compile}, MJP at ratio {recipe.mjp.ratio:g}\n"
    title += f"augmentation: {options.augment}; {hardware(device)}"
    _print_sides(title, "training step", ("one batch, again and again", "resident feed"), timing)
    results().print(
        f"{operations / 1e9:.2f} GFLOP an image: {100 * share:.1f} % of what a large bf16 matrix "
        f"product reaches here"
    )
    conditions: dict[str, Scalar] = {
        "part": "step",
        "recipe": options.name,
        "model": recipe.model.name,
        "batch": run.batch,
        "compile": run.compile,
        "precision": run.precision,
        "augment": options.augment,
        "ratio": recipe.mjp.ratio,
        "seed": options.seed,
        "hardware": hardware(device),
        "torch": torch.__version__,
    }
    _record(options, conditions, timing, {"share_of_peak": share, "gflop": operations / 1e9})


def _report_workers(options: BenchTrainOptions, recipe: Recipe, timing: Timing) -> None:
    side = recipe.model.image_size[0]
    title = f"JPEGs of 500x375 to {side} px, all augmentation, no model"
    _print_sides(title, "loader", ("timm's", "worker feed"), timing)
    conditions: dict[str, Scalar] = {
        "part": "workers",
        "side": side,
        "images": options.images,
        "workers": options.workers,
        "seed": options.seed,
        "hardware": hardware(torch.device("cpu")),
        "torch": torch.__version__,
    }
    _record(options, conditions, timing, {})


def _print_sides(title: str, what: str, names: tuple[str, str], timing: Timing) -> None:
    """A table of what was compared with, and of ours."""
    low, middle, high = statistics.quantiles(timing.ratios, n=4)
    table = Table(title=title)
    table.add_column(what)
    for column in ("images/s, median", "ratio, median", "quartiles"):
        table.add_column(column, justify="right")
    table.add_row(names[0], f"{statistics.median(timing.theirs):,.0f}", "1", "")
    table.add_row(
        names[1],
        f"{statistics.median(timing.ours):,.0f}",
        f"{middle:.4f}",
        f"{low:.4f} to {high:.4f}",
    )
    results().print(table)


def _record(
    options: BenchTrainOptions,
    conditions: dict[str, Scalar],
    timing: Timing,
    more: dict[str, Scalar],
) -> None:
    low, middle, high = statistics.quantiles(timing.ratios, n=4)
    values: dict[str, Scalar] = {
        "images_per_second": statistics.median(timing.ours),
        "compared_images_per_second": statistics.median(timing.theirs),
        "ratio": middle,
        "ratio_quartile_low": low,
        "ratio_quartile_high": high,
    }
    record = Record("bench train", conditions, values | more)
    append_records(options.out / "records.jsonl", [record])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
