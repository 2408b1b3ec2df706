"""What MJP costs, measured as ratios in one run: `mjp bench`. Imports no torch.

A bench is a function in `benches`, which yields conditions and values, and a line in `BENCHES`,
which names its options and its table.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from mjp.core.configuration import check_count
from mjp.core.records import Record
from mjp.core.verbs import Verb
from mjp.report.table import Column, Section, Table, to_terminal

LEAST = {"rounds": 2, "repeats": 2, "workers": 0}
"""The fewest there may be, where that is not one; two show a spread."""


@dataclass(frozen=True)
class BenchOptions:
    """What every bench is told; what is left open is chosen by the device."""

    device: str | None = None
    """A torch device; the GPU if there is one."""
    seed: int = 0
    """Seed of weights, images, jigsaws and whatever else is random."""
    out: Path = Path("runs/bench")
    """Folder for the records."""


@dataclass(frozen=True)
class BenchStepOptions(BenchOptions):
    """Time a training step with and without MJP, in one run, and print the ratio.

    A third row is MJP as `mjp train` does it: the last block computes only what the head reads.
    What is left open is chosen by the device: DeiT-S, batch 512, bf16, compiled on a GPU; DeiT-Ti,
    batch 16, fp32, eager on a CPU.
    """

    model: str | None = None
    """Name of a timm model."""
    batch: int | None = None
    """Images in a step."""
    precision: Literal["fp32", "bf16"] | None = None
    """bf16 runs the forward pass under autocast."""
    mode: Literal["eager", "compiled"] | None = None
    """Whether model and loss go through torch.compile."""
    ratio: float = 0.27
    """Share of patches to mask."""
    probability: float = 1.0
    """Chance that a batch gets a jigsaw."""
    rounds: int = 20
    """How often each side is timed, in turn."""
    steps: int | None = None
    """Steps in one timing: 10 on a GPU, 1 on a CPU."""


@dataclass(frozen=True)
class BenchPlanOptions(BenchOptions):
    """Time drawing the jigsaw for a batch."""

    batch: int = 512
    """Images in a batch."""
    rows: int = 14
    """Rows of the patch grid."""
    cols: int = 14
    """Columns of the patch grid."""
    ratios: tuple[float, ...] = (0.03, 0.27, 0.5, 0.9)
    """Shares of patches to mask."""
    repeats: int = 50
    """Draws to time at each ratio."""


@dataclass(frozen=True)
class BenchTrainOptions(BenchOptions):
    """Time training: the model alone, and with its data, in turn, in one run.

    The resident feed is timed with the model; the worker feed against timm's loader with the same
    transforms and processes. What is left open is chosen by the device.
    """

    name: Annotated[Positional[str], arg(metavar="RECIPE")] = "mini-imagenet-64"
    """The recipe to time; its data are made up, of the size that it trains at."""
    batch: int | None = None
    """Images in a step: 2048 on a GPU, 32 on a CPU."""
    compile: Literal["off", "on", "graphs"] | None = None
    """Whether the model goes through torch.compile: as the recipe says on a GPU, off on a CPU."""
    parts: tuple[Literal["step", "workers"], ...] = ("step", "workers")
    """step: the training step with resident data; workers: the worker feed against timm's."""
    augment: Literal["recipe", "all"] = "all"
    """The recipe's augmentation, or all of it: crop, flip, RandAugment, erasing, mixing."""
    images: int = 2048
    """Images to make up for each part."""
    workers: int | None = None
    """Processes that decode; by default one for each core."""
    rounds: int = 10
    """How often each side is timed, in turn."""
    steps: int | None = None
    """Steps in one timing: 10 on a GPU, 1 on a CPU."""


@dataclass(frozen=True)
class BenchEvalOptions(BenchOptions):
    """Time an evaluation from encoded images against the model alone, in turn, in one run."""

    model: str | None = None
    """A timm architecture, with random weights: DeiT-S on a GPU, DeiT-Ti on a CPU."""
    images: int | None = None
    """Pictures of 500x375 pixels to evaluate on: 8192 on a GPU, 64 on a CPU."""
    precision: Literal["fp32", "tf32", "bf16"] | None = None
    """Arithmetic of the model: bf16 on a GPU, fp32 on a CPU."""
    batch: int = 256
    """Images in a forward pass."""
    draws: int = 3
    """Jigsaws of each image at each of the seven default ratios."""
    workers: int | None = None
    """Processes that decode; by default one for each core."""
    rounds: int = 3
    """How often each side is timed, in turn."""


@dataclass(frozen=True)
class BenchAuditOptions(BenchOptions):
    """Time closed-form attacks, sharing included, against the clients' gradients alone."""

    model: str | None = None
    """A timm architecture, with random weights: DeiT-S on a GPU, DeiT-Ti on a CPU."""
    images: int | None = None
    """Pictures for patch_solve: 1000 on a GPU, 8 on a CPU."""
    adaptive_images: int | None = None
    """Pictures for adaptive_solve: 64 on a GPU, 4 on a CPU."""
    ratio: float = 0.09
    """MJP's ratio for adaptive_solve."""
    rounds: int = 3
    """How often each is timed, in turn."""


STEP = Table(
    "bench step",
    "A training step of {model}: batch {batch}, {precision}, {mode}, γ = {ratio}; {hardware}",
    (
        Column("Plain, ms", "plain_ms"),
        Column("With MJP, ms", "mjp_ms"),
        Column("Ratio", "time_ratio", 4),
        Column("Lower quartile", "time_ratio_quartile_low", 4),
        Column("Upper quartile", "time_ratio_quartile_high", 4),
        Column("As mjp train does it, ms", "trained_ms"),
        Column("Ratio", "trained_time_ratio", 4),
        Column("Ratio of peak memory", "memory_ratio", 4, optional=True),
    ),
)
PLAN = Table(
    "bench plan",
    "Drawing the jigsaws of {batch} images on a {grid} grid; {hardware}",
    (
        Column("γ", "ratio"),
        Column("ms, median", "ms", 3),
        Column("Lower quartile", "ms_quartile_low", 3),
        Column("Upper quartile", "ms_quartile_high", 3),
    ),
)
TRAIN = Table(
    "bench train",
    "Training from data, {hardware}",
    (
        Column("What", "part", numeric=False),
        Column("Compared with", "compared", numeric=False),
        Column("Images/s", "images_per_second", 0),
        Column("Compared, images/s", "compared_images_per_second", 0),
        Column("Ratio", "ratio", 4),
        Column("Lower quartile", "ratio_quartile_low", 4),
        Column("Upper quartile", "ratio_quartile_high", 4),
        Column("GFLOP an image", "gflop", optional=True),
        Column("Share of a large matrix product's speed", "share_of_peak", 3, optional=True),
    ),
)
EVAL = Table(
    "bench eval",
    "{model}, {precision}, {images} pictures, {passes} passes over each; {hardware}",
    (
        Column("The model alone, passes/s", "alone_per_second", 0),
        Column("From JPEG files, passes/s", "evaluated_per_second", 0),
        Column("Ratio", "ratio", 3),
        Column("Lowest", "ratio_lowest", 3),
        Column("Highest", "ratio_highest", 3),
    ),
)
AUDIT = Table(
    "bench audit",
    "Closed-form attacks on {model} with random weights, sharing included; {hardware}",
    (
        Column("Attack", "attack", numeric=False),
        Column("Defence", "defence", numeric=False),
        Column("Pictures", "images"),
        Column("Seconds", "seconds"),
        Column("Seconds a picture", "seconds_per_image", 4),
        Column("Times the gradients alone", "ratio"),
        Column("PSNR of unmasked patches, dB", "psnr", 1),
    ),
)
BENCHES = {
    "step": (BenchStepOptions, STEP),
    "plan": (BenchPlanOptions, PLAN),
    "train": (BenchTrainOptions, TRAIN),
    "eval": (BenchEvalOptions, EVAL),
    "audit": (BenchAuditOptions, AUDIT),
}
"""The options and the table of each bench; the function `time_NAME` in `benches` measures."""
MODEL = {"model": ("deit_small_patch16_224", "deit_tiny_patch16_224")}
PRECISION = {"precision": ("bf16", "fp32")}
STEPS = {"steps": (10, 1)}
USUAL: dict[str, dict[str, tuple[Any, Any]]] = {
    "step": {**MODEL, **PRECISION, **STEPS, "batch": (512, 16), "mode": ("compiled", "eager")},
    "train": {**STEPS, "batch": (2048, 32), "compile": (None, "off")},
    "eval": {**MODEL, **PRECISION, "images": (8192, 64)},
    "audit": {**MODEL, "images": (1000, 8), "adaptive_images": (64, 4)},
}
"""What options that are left open are on a GPU, and on a CPU."""
SECTIONS = (Section("bench", "Speed", "What MJP costs", tuple(t for _, t in BENCHES.values())),)


def run(options: Any) -> None:
    """Times, writes the records and prints their table."""
    from mjp.bench import benches
    from mjp.core.display import results
    from mjp.core.run import Run

    name = next(name for name, (kind, _) in BENCHES.items() if kind is type(options))
    for option, value in vars(options).items():
        if type(value) is int and option != "seed":
            check_count(option, value, LEAST.get(option, 1))
    with Run.open(options.out, device=options.device, seed=options.seed) as opened:
        for option, (on_gpu, on_cpu) in USUAL.get(name, {}).items():
            if getattr(options, option) is None:
                usual = on_gpu if opened.device.type == "cuda" else on_cpu
                options = replace(options, **{option: usual})
        measured = list(getattr(benches, f"time_{name}")(options, opened))
        seed = {"seed": options.seed}
        records = [Record(f"bench {name}", {**which, **seed}, values) for which, values in measured]
        if filled := BENCHES[name][1].fill(opened.write(*records)):
            results().print(to_terminal(filled))
        results().print(f"records: {opened.records_file}", highlight=False)


VERBS = tuple(Verb(f"bench {name}", options, run) for name, (options, _) in BENCHES.items())
