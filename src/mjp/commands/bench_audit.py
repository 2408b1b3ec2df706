"""`mjp bench audit`: what closed-form attacks take, against the clients' gradients alone."""

import statistics
import time
from collections.abc import Callable

import torch
from rich.table import Table
from torch import Tensor

from mjp.commands.evaluating import claim
from mjp.commands.options import BenchAuditOptions
from mjp.commands.terminal import choose_device, hardware, meter, results
from mjp.core.precision import float32_precision
from mjp.core.ranges import check_count, check_ratio
from mjp.core.records import Record, append_records
from mjp.core.seeds import generator_for
from mjp.data.photographs import PHOTOGRAPHS, photograph
from mjp.data.view import View
from mjp.models.config import MJPConfig
from mjp.models.factory import wrap
from mjp.models.opening import RANDOM, ModelName, open_model
from mjp.privacy.attacking import attack_each
from mjp.privacy.defences import Defence, parse_defence
from mjp.privacy.metrics import psnr, psnr_where
from mjp.privacy.public import PublicModel

CHUNK = 32
"""Clients that are computed together."""


def run(options: BenchAuditOptions) -> None:
    """Times both attacks, in turn with the gradients alone."""
    for name in ("images", "adaptive_images", "rounds"):
        if getattr(options, name) is not None:
            check_count(name, getattr(options, name))
    check_ratio("ratio", options.ratio)
    claim(options.out)
    device = choose_device(options.device)
    gpu = device.type == "cuda"
    name = options.model or ("deit_small_patch16_224" if gpu else "deit_tiny_patch16_224")
    model = wrap(open_model(ModelName(name, name, RANDOM)), MJPConfig(ratio=options.ratio))
    public = PublicModel.of(model.to(device).eval())
    plans = (
        ("patch_solve", "none", options.images or (1000 if gpu else 8)),
        ("adaptive_solve", f"mjp={options.ratio:g}", options.adaptive_images or (64 if gpu else 4)),
    )
    records = []
    with float32_precision("fp32"), meter("timing", 2 * options.rounds * len(plans)) as tell:
        for attack, text, count in plans:
            records.append(_measure(public, attack, text, count, options, tell))
    append_records(options.out / "records.jsonl", records)
    results().print(_table(records, name, device))
    results().print(f"records: {options.out / 'records.jsonl'}", highlight=False)


def _measure(
    public: PublicModel,
    attack: str,
    text: str,
    count: int,
    options: BenchAuditOptions,
    tell: Callable[[int], None],
) -> Record:
    defence = parse_defence(text)
    images = _pictures(public, count)
    _attacked(public, defence, attack, images[: min(4, count)], options.seed)  # Warms up.
    alone, whole = [], []
    quality: list[float] = []
    for _ in range(options.rounds):
        alone.append(_timed(public, lambda: _shared(public, defence, images, options.seed)))
        tell(1)

        def both() -> None:
            quality.append(_attacked(public, defence, attack, images, options.seed))

        whole.append(_timed(public, both))
        tell(1)
    seconds = statistics.median(whole)
    return Record(
        "bench audit",
        {
            "attack": attack,
            "defence": text,
            "images": count,
            "image_size": "x".join(map(str, public.size)),
            "hardware": hardware(public.device),
            "torch": torch.__version__,
            "seed": options.seed,
        },
        {
            "seconds": seconds,
            "seconds_per_image": seconds / count,
            "gradients_alone": statistics.median(alone),
            "ratio": statistics.median([w / a for w, a in zip(whole, alone, strict=True)]),
            "psnr": quality[-1],
        },
    )


def _pictures(public: PublicModel, count: int) -> Tensor:
    """The bundled photographs again and again, each time moved a little, so that all differ."""
    cut = View(public.size).transform()
    base = torch.stack([torch.as_tensor(cut(photograph(name))) for name in PHOTOGRAPHS])
    shifts = [base.roll(7 * turn, dims=3) for turn in range(-(-count // len(base)))]
    return torch.cat(shifts)[:count].to(public.device).float() / 255


def _updates(public: PublicModel, defence: Defence, images: Tensor, seed: int):  # type: ignore[no-untyped-def]
    """Chunks of what clients send, with the plans that nobody else sees."""
    for number, part in enumerate(images.split(CHUNK)):
        labels = torch.zeros(len(part), dtype=torch.int64, device=part.device)
        generator = generator_for(seed, "bench", step=number)
        plan = defence.draw_plan(public, 1, generator, clients=len(part))
        inputs = public.normalized(part)
        yield part, plan, list(defence.share_each(public, inputs, labels, plan, generator))


def _shared(public: PublicModel, defence: Defence, images: Tensor, seed: int) -> None:
    for _ in _updates(public, defence, images, seed):
        pass


def _attacked(
    public: PublicModel, defence: Defence, attack: str, images: Tensor, seed: int
) -> float:
    """Shares, attacks, and says how much came back: mean PSNR, of unmasked patches."""
    total = 0.0
    for part, plan, updates in _updates(public, defence, images, seed):
        found = attack_each(attack, public, [(update,) for update in updates])
        recovered = torch.cat([one.images for one in found if one.images is not None])
        if plan is None:
            total += float(psnr(recovered, part).sum())
        else:
            total += float(psnr_where(recovered, part, ~plan.masked, public.grid).sum())
    return total / len(images)


def _timed(public: PublicModel, work: Callable[[], object]) -> float:
    _wait(public.device)
    start = time.perf_counter()
    work()
    _wait(public.device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _table(records: list[Record], name: str, device: torch.device) -> Table:
    table = Table(title=f"{name}, random weights, {hardware(device)}; sharing included")
    for column in ("attack", "defence"):
        table.add_column(column)
    for column in (
        *("pictures", "seconds", "seconds a picture", "times the gradients alone"),
        "PSNR of unmasked patches, dB",
    ):
        table.add_column(column, justify="right")
    for record in records:
        values = record.values
        table.add_row(
            str(record.conditions["attack"]),
            str(record.conditions["defence"]),
            str(record.conditions["images"]),
            f"{values['seconds']:.2f}",
            f"{values['seconds_per_image']:.4f}",
            f"{values['ratio']:.2f}",
            f"{values['psnr']:.1f}",
        )
    return table
