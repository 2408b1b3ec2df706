"""What a recipe of classification holds. Light: imports no torch."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjp.core.configuration import check_at_least, check_count, check_ratio
from mjp.core.errors import ConfigError
from mjp.data.config import AugmentSettings, DataSettings
from mjp.models.config import VARIANTS, MJPConfig
from mjp.train.config import OptimizerSettings, RunSettings, TaskConfig

if TYPE_CHECKING:
    from mjp.tasks.classify.task import ClassifyTask


@dataclass(frozen=True)
class LocalizationWeight:
    """λ from `start` at the beginning of training to `final_ratio` of it at the end, by a cosine.

    The defaults are the reference code's.
    """

    start: float = 0.01
    final_ratio: float = 0.5

    def __post_init__(self) -> None:
        check_at_least("start", self.start, 0)
        check_at_least("final_ratio", self.final_ratio, 0)

    def at(self, progress: float) -> float:
        """λ after this share of training, 0 at its beginning and 1 at its end."""
        check_ratio("progress", progress)
        falling = (1 + math.cos(math.pi * progress)) / 2
        return self.start * (self.final_ratio + (1 - self.final_ratio) * falling)


@dataclass(frozen=True)
class ModelSettings:
    """The backbone.

    Args:
        name: an architecture of timm's.
        image_size: height and width in pixels.
        drop_path: the last block's chance of being skipped for an image.
        arguments: more of timm's arguments, such as patch_size or embed_dim.
    """

    name: str = "deit_small_patch16_224"
    image_size: tuple[int, int] = (224, 224)
    drop_path: float = 0.1
    arguments: dict[str, int | float | bool | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for side in self.image_size:
            check_count("model.image_size", side)
        check_ratio("model.drop_path", self.drop_path)
        for name in ("img_size", "drop_path_rate", "num_classes", "mjp", "pretrained"):
            if name in self.arguments:
                raise ConfigError(f"model.arguments must not hold {name}, which has another place")


@dataclass(frozen=True)
class ClassifyConfig(TaskConfig):
    """All that decides the outcome of a run.

    Args:
        init: weights to start from: a file, a folder that mjp or timm wrote, or a timm name with a
            tag to download. A head for other classes is drawn anew.
    """

    task = "classify"

    init: str | None = None
    model: ModelSettings = field(default_factory=ModelSettings)
    mjp: MJPConfig = field(default_factory=MJPConfig)
    localization: LocalizationWeight = field(default_factory=LocalizationWeight)
    data: DataSettings = field(default_factory=DataSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def make_task(self) -> "ClassifyTask":
        from mjp.tasks.classify.task import ClassifyTask

        return ClassifyTask(self)

    def with_variant(self, variant: str) -> "ClassifyConfig":
        """Ratio, probability and shape stay the recipe's where the variant shuffles a part."""
        if variant not in VARIANTS:
            raise ConfigError(f"there is no variant {variant!r}; there is {', '.join(VARIANTS)}")
        config = VARIANTS[variant]
        names = ("probability", "shape", "position_init_std", "absolute_positions", "jigsaw_patch")
        kept: dict[str, Any] = {name: getattr(self.mjp, name) for name in names}
        if 0 < config.ratio < 1:
            kept["ratio"] = self.mjp.ratio or config.ratio
        return replace(self, mjp=replace(config, **kept))

    def decisive(self) -> dict[str, Any]:
        """Of the weights to start from, the file's name."""
        init = None if self.init is None else Path(self.init).name
        return {**super().decisive(), "init": init}
