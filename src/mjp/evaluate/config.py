"""The options of evaluations and probes. Imports no torch, so that help answers at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mjp.core.configuration import check_count, check_crop, check_ratio
from mjp.core.errors import ConfigError
from mjp.data.config import SourceName
from mjp.models.config import ModelOptions

Among = Literal["all", "data"]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(ModelOptions):
    """What every evaluation on images is told."""

    data: str
    """A folder, a Parquet or tar file, a hub data set (with --source hub), digits or positions."""
    source: SourceName = "auto"
    """What kind of data it is, where that cannot be seen."""
    split: str | None = None
    """Which part of the data: a subfolder, a word in file names, or the hub's split; by default
    the validation images, or all where there is no such part."""
    images: int | None = None
    """Evaluate on so many images, drawn at random, rather than on all."""
    crop: float | None = None
    """Share of the resized image that the central crop keeps, if not the model's own; 1 for images
    that have been cropped already."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Arithmetic of the model; tf32 and bf16 are faster on a GPU."""
    compile: bool = False
    """Run the model through torch.compile; worth it for large sets."""
    batch: int | None = None
    """Most images in a forward pass: 256 on a GPU, 32 on a CPU. Results differ by rounding only."""
    device: str | None = None
    """A torch device; the GPU if there is one."""
    seed: int = 0
    """Seed of everything that is random."""
    workers: int | None = None
    """Processes that decode; by default one for each core."""
    skip_corrupt: bool = False
    """Leave unreadable images out and say so, in place of stopping."""
    out: Path = Path("runs/eval")
    """Folder for records and figures."""

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("workers", 0), ("images", 1)):
            if (value := getattr(self, name)) is not None:
                check_count(name, value, least)
        check_crop(self.crop)


@dataclass(frozen=True, kw_only=True)
class EvalAccuracyOptions(EvaluationOptions):
    """Accuracy, and what a jigsaw of the image does to it: consistency, Diff. Norm., the curve.

    Plain models are shown the jigsaw's pixels, MJP models their unknown positions.
    """

    ratios: tuple[float, ...] = (0.03, 0.09, 0.15, 0.21, 0.27, 0.5, 0.9)
    """Shares of the patches that a jigsaw moves."""
    draws: int = 3
    """Jigsaws of each image at each ratio."""
    jigsaw: Literal["auto", "pixels"] = "auto"
    """pixels: show the jigsaw's pixels to MJP models too, without their unknown positions."""
    patch: int | None = None
    """Side in pixels of the patches that move in pixel space; the model's own, else 16."""
    among: Among = "all"
    """Whether all of the model's classes compete, or only those of the data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for ratio in self.ratios:
            check_ratio("ratios", ratio)
        if len(set(self.ratios)) < len(self.ratios):
            raise ConfigError(f"ratios lists a value twice: {self.ratios}")
        check_count("draws", self.draws)


@dataclass(frozen=True, kw_only=True)
class EvalCorruptionsOptions(EvaluationOptions):
    """Errors under ImageNet-C's corruptions, made of clean images on the way, or from its files.

    A folder with one folder for each corruption is read as a copy of ImageNet-C.
    """

    corruptions: tuple[str, ...] = ()
    """Some of the corruptions, by name; all fifteen by default."""
    extra: bool = False
    """Also the four extra corruptions, which are not part of mCE."""
    jpeg: int = 85
    """Quality of the JPEG that corrupted images go through, as ImageNet-C's did; 0 for none."""
    keep: Path | None = None
    """Folder to write the corrupted images to, in ImageNet-C's layout. All of ImageNet: 500 GB."""
    resume: bool = False
    """Take what an earlier run in the folder found, for the same weights and conditions."""
    among: Among = "all"
    """Whether all of the model's classes compete, or only those of the data."""
    out: Path = Path("runs/eval-corruptions")
    """Folder for records and figures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("jpeg", self.jpeg, 0)
        if self.jpeg > 95:
            raise ConfigError(f"jpeg is a quality of at most 95, or 0 for none; got {self.jpeg}")
        if self.keep is not None and (self.skip_corrupt or self.resume or not self.jpeg):
            raise ConfigError(
                "--keep writes whole sets of JPEG files; leave out --skip-corrupt, --resume and "
                "--jpeg 0"
            )


@dataclass(frozen=True, kw_only=True)
class EvalNaturalOptions(EvaluationOptions):
    """ImageNet-A: accuracy over its 200 classes, AURRA, calibration error."""

    out: Path = Path("runs/eval-imagenet-a")
    """Folder for records and figures."""


@dataclass(frozen=True, kw_only=True)
class EvalOutliersOptions(EvaluationOptions):
    """ImageNet-O: how well low confidence finds images of no known class (AUPR, AUROC, FPR95)."""

    inliers: str
    """ImageNet's validation images; those of ImageNet-O's 200 classes are used."""
    inliers_source: SourceName = "auto"
    """What kind of data they are, where that cannot be seen."""
    out: Path = Path("runs/eval-imagenet-o")
    """Folder for records and figures."""


@dataclass(frozen=True, kw_only=True)
class ProbePositionsOptions(ModelOptions):
    """What the position embeddings learned: regression to the grid, projections, similarity."""

    folds: int = 5
    """Folds of the cross-validation."""
    repeats: int = 10
    """How often patches are divided into folds anew."""
    umap: bool = True
    """Also draw UMAP projections, which take some seconds."""
    seed: int = 0
    """Seed of the folds and of UMAP."""
    out: Path = Path("runs/probe")
    """Folder for records and figures."""

    def __post_init__(self) -> None:
        check_count("folds", self.folds, 2)
        check_count("repeats", self.repeats)


@dataclass(frozen=True, kw_only=True)
class ProbeAttentionOptions(ModelOptions):
    """Where the last self-attention looks: class token to patches, per head and mean."""

    images: Path
    """A picture, or a folder of pictures."""
    most: int = 8
    """How many pictures of a folder to show."""
    crop: float | None = None
    """Share of the resized image that the central crop keeps, if not the model's own."""
    device: str | None = None
    """A torch device; the GPU if there is one."""
    out: Path = Path("runs/attention")
    """Folder for records and figures."""

    def __post_init__(self) -> None:
        check_count("most", self.most)
        check_crop(self.crop)
