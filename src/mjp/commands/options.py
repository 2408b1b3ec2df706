"""The options of each verb. Nothing here imports torch, so that `mjp --help` answers at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


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
