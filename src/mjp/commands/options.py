"""The options of each verb. Nothing here imports torch, so that `mjp --help` answers at once."""

from dataclasses import dataclass
from pathlib import Path


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
