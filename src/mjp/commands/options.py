"""The options of each verb. Nothing here imports torch, so that `mjp --help` answers at once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mjp.data.config import SourceName
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
class ReportOptions:
    """Write one self-contained HTML page on any runs: training, evaluation, probes, audits."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN …]")]
    """Folders that other verbs wrote; those inside them count too."""
    out: Path = Path("report.html")
    """The page."""
    title: str = ""
    """Its heading, if not the names of the runs."""


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


Models = Annotated[tuple[str, ...], arg(metavar="MODEL [MODEL …]")]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which models are looked at, and how."""

    model: Models
    """A folder (of a training run, or written by mjp.save or timm), a timm name, hf-hub:NAME,
    local-dir:PATH, or pretrained:NAME for a trained model of the package (mini-imagenet-plain,
    mini-imagenet-mjp). NAME@FILE takes the weights from a file, LABEL=MODEL gives it a name in the
    results. Several are set side by side."""
    size: tuple[int, int] | None = None
    """Height and width of the images, if not the model's own; position tables are resampled."""
    json: bool = False
    """Print records as JSON lines in place of tables."""


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
    among: Literal["all", "data"] = "all"
    """Whether all of the model's classes compete, or only those of the data."""
    out: Path = Path("runs/eval")
    """Folder for records and figures."""


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
    among: Literal["all", "data"] = "all"
    """Whether all of the model's classes compete, or only those of the data."""
    out: Path = Path("runs/eval-corruptions")
    """Folder for records and figures."""


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
