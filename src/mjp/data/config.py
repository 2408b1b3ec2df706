"""What a recipe says about data: where it is, how it is fed, how it is augmented. Light."""

from dataclasses import dataclass
from typing import Literal

from mjp.core.configuration import check_at_least, check_count, check_range, check_ratio
from mjp.core.errors import ConfigError

SourceName = Literal["auto", "folder", "parquet", "wds", "hub", "digits", "positions"]


@dataclass(frozen=True)
class DataSettings:
    """Where images come from and how they reach the model.

    Args:
        source: folder: a folder per class; parquet: tables in the hub's layout; wds: WebDataset
            tars; hub: a data set by its name; digits, positions: embedded. auto looks at the root.
        root: the folder, or the name of a data set on the hub.
        train: the training split: a subfolder, a pattern of file names, or the hub's split.
        val: the validation split, likewise.
        feed: workers: decoded and augmented by processes, for any size of data; resident: decoded
            once, kept on the device, augmented there.
        workers: processes that decode; by default one for each core.
        readers: threads that read Parquet row groups ahead.
        size: images of the procedural set `positions`; a fifth as many for validation.
        skip_corrupt: leave unreadable images out and report them, in place of stopping.
    """

    source: SourceName = "auto"
    root: str | None = None
    train: str = "train"
    val: str = "val"
    feed: Literal["workers", "resident"] = "workers"
    workers: int | None = None
    readers: int = 2
    size: int = 5000
    skip_corrupt: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_count("data.workers", self.workers, 0)
        check_count("data.readers", self.readers)
        check_count("data.size", self.size, 5)
        embedded = self.source in ("digits", "positions")
        if embedded and self.root is not None:
            raise ConfigError(
                f"data.source {self.source} is embedded and has no data.root; "
                "choose data.source folder, parquet, wds or hub to train on your own data"
            )


@dataclass(frozen=True)
class AugmentSettings:
    """How training images are changed, and how validation images are cut. The paper's defaults.

    Args:
        crop_scale: share of the image's area that a random crop covers.
        crop_ratio: aspect ratio of a random crop.
        flip: chance of a horizontal flip.
        interpolation: how images are resized.
        color_jitter: strength of brightness, contrast and saturation; has no effect where
            RandAugment is on, as in timm.
        rand_augment: magnitude of RandAugment; 0 switches it off.
        rand_augment_std: spread of the magnitude.
        rand_augment_layers: operations drawn for an image.
        erasing: chance that a rectangle is replaced by noise.
        repeats: copies of an image in a batch, each augmented differently; an epoch then sees so
            many times fewer images.
        mixup: alpha of mixup; 0 switches it off.
        cutmix: alpha of CutMix; 0 switches it off.
        mix_probability: chance that a batch is mixed.
        switch_probability: chance of CutMix where both are on.
        smoothing: label smoothing.
        eval_crop: share of the resized image's side that the central crop keeps in validation.
    """

    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: float = 0.5
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    color_jitter: float = 0.4
    rand_augment: float = 9.0
    rand_augment_std: float = 0.5
    rand_augment_layers: int = 2
    erasing: float = 0.25
    repeats: int = 3
    mixup: float = 0.8
    cutmix: float = 1.0
    mix_probability: float = 1.0
    switch_probability: float = 0.5
    smoothing: float = 0.1
    eval_crop: float = 0.875

    def __post_init__(self) -> None:
        check_range("augment.crop_scale", self.crop_scale)
        if self.crop_scale[1] > 1:
            raise ConfigError(f"augment.crop_scale is a share of 1, got {self.crop_scale!r}")
        check_range("augment.crop_ratio", self.crop_ratio)
        for name in ("flip", "erasing", "mix_probability", "switch_probability", "smoothing"):
            check_ratio(f"augment.{name}", getattr(self, name))
        for name in ("color_jitter", "rand_augment", "rand_augment_std", "mixup", "cutmix"):
            check_at_least(f"augment.{name}", getattr(self, name), 0)
        if self.rand_augment > 10:
            raise ConfigError(f"augment.rand_augment is at most 10, got {self.rand_augment!r}")
        check_count("augment.rand_augment_layers", self.rand_augment_layers)
        check_count("augment.repeats", self.repeats)
        check_ratio("augment.eval_crop", self.eval_crop)
        if self.eval_crop < 0.1:
            raise ConfigError(f"augment.eval_crop is between 0.1 and 1, got {self.eval_crop!r}")
