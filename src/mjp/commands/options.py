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
    """Train small ViTs without and with MJP, measure and attack them, and write one page.

    A few minutes on two CPU cores. What is finished is not done again: the command goes on where
    it was stopped.
    """

    out: Path = Path("runs/demo")
    """Folder for models, records and report.html."""
    ratio: float = 0.27
    """γ: share of patches that MJP masks and shuffles, between 0 and 1."""
    seed: int = 0
    """Seed of everything that is random."""
    image: Path | None = None
    """A picture of your own to attack first, before the bundled photographs."""
    fresh: bool = False
    """Remove what an earlier demonstration left in the folder, and start over."""


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
