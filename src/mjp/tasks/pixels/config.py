"""What a recipe of the task holds. Light: imports no torch."""

from dataclasses import dataclass, field
from typing import Any

from mjp.core.configuration import check_count, check_ratio
from mjp.train.config import OptimizerSettings, RunSettings, TaskConfig


@dataclass(frozen=True)
class FillerSettings:
    """The transformer that fills in.

    Args:
        hidden: share of an image's patches that training hides.
    """

    dim: int = 48
    depth: int = 2
    hidden: float = 0.5

    def __post_init__(self) -> None:
        check_count("model.dim", self.dim, 4)
        check_count("model.depth", self.depth)
        check_ratio("model.hidden", self.hidden)


@dataclass(frozen=True)
class PixelsConfig(TaskConfig):
    """All that decides the outcome of a run."""

    task = "pixels"

    model: FillerSettings = field(default_factory=FillerSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def make_task(self) -> Any:
        from mjp.tasks.pixels.task import PixelsTask

        return PixelsTask(self)
