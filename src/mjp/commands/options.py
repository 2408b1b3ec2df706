"""The options of each verb. Nothing here imports torch, so that `mjp --help` answers at once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mjp.train.recipe import Recipe

DEFAULT_RECIPE = "digits"
Variant = Literal["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"]


@dataclass(frozen=True)
class DemoOptions:
    """Show the method on a photograph: masked blocks, jigsaw, inverse, identity with timm."""

    out: Path = Path("runs/demo")
    """Folder for the picture and the records."""
    ratio: float = 0.27
    """Share of patches to mask and shuffle, between 0 and 1."""
    seed: int = 0
    """Seed of the jigsaw and of the model's random weights."""
    image: Path | None = None
    """A picture of your own, instead of the bundled one."""


@dataclass(frozen=True)
class TrainOptions:
    """Train a model by a recipe; `torchrun -m mjp train …` does so on many GPUs.

    Every value of the recipe is a flag. The help shows those of the recipe that is named.
    """

    name: Annotated[Positional[str], arg(metavar="RECIPE")] = DEFAULT_RECIPE
    """digits, mini-imagenet-64, imagenet-deit-s, … or the path of a TOML file."""
    out: Path | None = None
    """Folder for checkpoints, records and models; by default runs/ and the recipe's name."""
    variant: Variant | None = None
    """A row of the paper's ablation, A (plain) to J (MJP), in place of the recipe's mjp section."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder."""
    fresh: bool = False
    """Remove what an earlier run left in the folder, and start over."""
    recipe: Annotated[Recipe, arg(name="")] = field(default_factory=Recipe)


@dataclass(frozen=True)
class CheckOptions:
    """Show a recipe with all its values, what it will take, and what is wrong with it."""

    name: Annotated[Positional[str], arg(metavar="RECIPE")] = DEFAULT_RECIPE
    """digits, mini-imagenet-64, imagenet-deit-s, … or the path of a TOML file."""
    variant: Variant | None = None
    """A row of the paper's ablation, A (plain) to J (MJP), in place of the recipe's mjp section."""
    processes: int = 1
    """How many processes torchrun will start."""
    recipe: Annotated[Recipe, arg(name="")] = field(default_factory=Recipe)


@dataclass(frozen=True)
class BenchStepOptions:
    """Time a training step with and without MJP, in one run, and print the ratio.

    What is left open is chosen by the device: DeiT-S, batch 512, bf16, compiled on a GPU; DeiT-Ti,
    batch 16, fp32, eager on a CPU.
    """

    device: str | None = None
    """A torch device; the GPU if there is one."""
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
    seed: int = 0
    """Seed of weights, images and jigsaws."""
    out: Path = Path("runs/bench")
    """Folder for the records."""


@dataclass(frozen=True)
class BenchPlanOptions:
    """Time drawing the jigsaw for a batch."""

    device: str | None = None
    """A torch device; the GPU if there is one."""
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
    seed: int = 0
    """Seed of the draws."""
    out: Path = Path("runs/bench")
    """Folder for the records."""


@dataclass(frozen=True)
class BenchTrainOptions:
    """Time training: the model alone, and with its data, in turn, in one run.

    The resident feed is timed with the model; the worker feed against timm's loader with the same
    transforms and processes. What is left open is chosen by the device.
    """

    name: Annotated[Positional[str], arg(metavar="RECIPE")] = "mini-imagenet-64"
    """The recipe to time; its data are made up, of the size that it trains at."""
    device: str | None = None
    """A torch device; the GPU if there is one."""
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
    seed: int = 0
    """Seed of everything that is random."""
    out: Path = Path("runs/bench")
    """Folder for the records."""
