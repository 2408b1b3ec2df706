"""What evaluations and probes look like: columns, figures and fixed texts, for every kind of
record. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mjp.core.records import Record, Scalar
from mjp.report import paper
from mjp.report.table import (
    Column,
    Figure,
    FigureFile,
    Section,
    Table,
    Value,
    format_scalar,
    look_up,
    number,
    text_of,
)

DIFFERENCES = {
    "top1": "top-1 accuracy, points",
    "accuracy": "accuracy of the jigsaw, points",
    "consistency": "consistency, points",
    "diff_norm": "Diff. Norm.",
}


def _joined(*names: str, digits: int = 1, by: str = ", ") -> Callable[[Record], Scalar]:
    """A function of a record that gives several numbers in one cell; None where all lack."""

    def join(record: Record) -> Scalar:
        values = [look_up(record, name) for name in names]
        if all(value is None for value in values):
            return None
        return by.join(format_scalar(value, digits) for value in values)

    return join


def _paper(
    title: str,
    row_of: Callable[[Mapping[str, Scalar]], Any],
    value: Callable[[Any, Mapping[str, Scalar]], Scalar],
    note: str = "",
) -> Column:
    """A column of what a row of the paper says of the model; its second argument are the
    conditions of the record."""

    def look(record: Record) -> Scalar:
        row = row_of(record.conditions)
        return None if row is None else value(row, record.conditions)

    return Column(title, look, digits=1, optional=True, note=note)


def _papers_jigsaw(row: paper.Classification, conditions: Mapping[str, Scalar]) -> Scalar:
    if conditions.get("ratio") != paper.CONSISTENCY_RATIO:
        return None
    norm = "" if row.diff_norm is None else f", {row.diff_norm:.2f}"
    return f"{row.consistency:.1f}{norm}"


def _is_clear(record: Record) -> Scalar:
    """Whether the interval of a difference leaves 0 out."""
    low, high = (number(record.values, f"difference_{end}") for end in ("low", "high"))
    return None if low is None or high is None else low > 0 or high < 0


def _patches_seen(record: Record) -> Scalar:
    """The mean over the heads, of all the patches."""
    heads = [name for name in record.values if name.startswith("patches_seen_by_head_")]
    seen = [value for name in heads if (value := number(record.values, name)) is not None]
    if not seen:
        return None
    return f"{sum(seen) / len(seen):.1f} of {format_scalar(record.values.get('patches'))}"


def _text(title: str, value: Value) -> Column:
    return Column(title, value, numeric=False)


MODEL = _text("Model", "model")
ACCURACY = Table(
    "eval accuracy",
    "Accuracy on untouched images of {data}; 95 % intervals",
    (
        MODEL,
        Column("Parameters", "parameters"),
        Column("Images", "images"),
        Column("Top-1, %", "top1", interval=1),
        Column("Top-5, %", "top5", interval=1),
        _paper("Paper: top-1, %", paper.classification, lambda row, _: row.top1),
    ),
    glance="Accuracy of {model} on {data}: {top1} %",
)
JIGSAW = Table(
    "eval jigsaw",
    "Under a jigsaw of so many patches, {draws} of each image",
    (
        MODEL,
        _text("Jigsaw in", "jigsaw"),
        Column("Share moved", "ratio", digits=None),
        Column("Patches moved", _joined("patches_moved", "patches", by=" of ")),
        Column("Accuracy, %", "accuracy", interval=1),
        Column("Consistency, %", "consistency", interval=1),
        Column("Diff. Norm.", "diff_norm", interval=2),
        _paper(
            "Paper: consistency, Diff. Norm.",
            paper.classification,
            _papers_jigsaw,
            "The paper does not state the ratio of its consistency; its numbers stand at "
            f"{paper.CONSISTENCY_RATIO:g}, the default of its script.",
        ),
    ),
)
DIFFERENCE = Table(
    "eval difference",
    "Differences, image by image",
    (
        _text("Models", _joined("model", "than", by=" − ")),
        _text("Of what", lambda record: DIFFERENCES.get(str(record.conditions.get("value")))),
        Column("Share moved", "ratio", digits=None),
        Column("Difference [95 %]", "difference", interval=2, signed=True),
        _text("0 outside", _is_clear),
    ),
    folded_from=9,
)
CORRUPTION = Table(
    "eval corruption",
    "Top-1 error under each corruption of {data}; 95 % intervals",
    (
        _text(
            "Corruption", lambda record: text_of(record.conditions, "corruption").replace("_", " ")
        ),
        MODEL,
        Column("Error, % (mean of severities)", "error", interval=1),
        Column(
            "÷ AlexNet’s, %",
            "relative_to_alexnet",
            digits=1,
            optional=True,
            note="AlexNet’s errors are those on ImageNet’s classes and the fifteen corruptions; "
            "elsewhere there is no normalised error.",
        ),
        _paper(
            "Paper: error, %",
            paper.robustness,
            lambda row, conditions: row.errors.get(text_of(conditions, "corruption")),
        ),
    ),
)
CORRUPTION_SUMMARY = Table(
    "eval corruption summary",
    "Over all corruptions",
    (
        MODEL,
        Column("Clean error, %", "clean_error"),
        Column("Mean error, %", "mean_error", interval=1),
        Column("mCE, %", "mce", interval=1, optional=True),
        _paper(
            "Paper: mean error, mCE",
            paper.robustness,
            lambda row, _: f"{row.printed_mean:.1f}, {row.mce:.1f}",
            "The paper prints ten of the fifteen corruptions; for DeiT-S with MJP their mean is "
            "43.2, not the 41.5 printed.",
        ),
    ),
)
NATURAL = Table(
    "eval imagenet-a",
    "ImageNet-A; 95 % intervals",
    (
        MODEL,
        Column("Images", "images"),
        Column("Accuracy, %", "accuracy", interval=1),
        Column("AURRA, %", "aurra", interval=1),
        Column("RMS calibration error, %", "calibration_error", interval=1),
        _paper(
            "Paper: accuracy, AURRA",
            paper.robustness,
            lambda row, _: f"{row.imagenet_a:.1f}, {row.aurra:.1f}",
        ),
    ),
)
OUTLIERS = Table(
    "eval imagenet-o",
    "ImageNet-O: outliers by minus the largest softmax over 200 classes; 95 % intervals",
    (
        MODEL,
        Column("Outliers", "outliers"),
        Column("Inliers", "inliers"),
        Column("AUPR, %", "aupr", interval=1),
        Column("AUROC, %", "auroc", interval=1),
        Column("FPR95, %", "fpr95", interval=1),
        Column("Accuracy on inliers, %", "inlier_accuracy"),
        _paper("Paper: AUPR, %", paper.robustness, lambda row, _: row.aupr),
    ),
)
POSITIONS = Table(
    "probe positions",
    "Position told from its embedding by linear regression: mean absolute error, {folds} folds, "
    "mean ± std over {repeats} seeds",
    (
        MODEL,
        Column("Grid", _joined("rows", "cols", by="×")),
        Column("Width", "dim"),
        Column("1-D MAE", _joined("mae_1d", "mae_1d_std", digits=3, by=" ± ")),
        Column("2-D MAE", _joined("mae_2d", "mae_2d_std", digits=3, by=" ± ")),
        Column("Of it: row, column", _joined("mae_row", "mae_col", digits=3)),
        Column(
            "Always the middle: 1-D, 2-D",
            _joined("mae_1d_of_the_middle", "mae_2d_of_the_middle", digits=2),
        ),
        Column("Effective rank", "effective_rank", digits=1),
        _paper(
            "Paper: 1-D, 2-D",
            paper.regression,
            lambda row, _: "{:.3f} ± {:.3f}, {:.3f} ± {:.3f}".format(*row.one, *row.two),
        ),
    ),
    note="1-D in patches (row × columns + column); 2-D in cells of the grid, the mean of row and "
    "column.",
    glance="{model}: position told from its embedding to {mae_2d} cells; always the middle: "
    "{mae_2d_of_the_middle}",
)
ATTENTION = Table(
    "probe attention",
    "Last self-attention, picture by picture",
    (
        MODEL,
        _text("Picture", "image"),
        _text("Looks from", "query"),
        Column("Heads", "heads"),
        Column("Patches a head looks at, in effect", _patches_seen),
        Column("Share of attention on patches", "attention_on_patches", digits=3),
    ),
)


def _draw_curves(records: Sequence[Record], out: Path) -> list[Path]:
    from mjp.report.figures import draw_curves

    return draw_curves(records, out)


def _draw_corruptions(records: Sequence[Record], out: Path) -> list[Path]:
    from mjp.report.figures import draw_corruptions

    return draw_corruptions(records, out)


EVALUATION = Section(
    "evaluation",
    "Evaluation",
    "Accuracy and jigsaws: {data}",
    (ACCURACY, JIGSAW, DIFFERENCE),
    (
        Figure(
            _draw_curves,
            "Accuracy, consistency and Diff. Norm. over the share of patches moved",
            "What a jigsaw of so many patches does to the answers of each model.",
        ),
    ),
    intro="Consistency is how often a model gives the same answer for a picture and for its "
    "jigsaw; Diff. Norm. is the distance between the features of the two. Plain models are shown "
    "the jigsaw’s pixels; models with MJP know which positions are unknown. Intervals are 95 %, "
    "over images.",
    per="data",
)
CORRUPTED = Section(
    "corruptions",
    "Robustness",
    "Corrupted images",
    (CORRUPTION, CORRUPTION_SUMMARY),
    (
        Figure(
            _draw_corruptions,
            "Top-1 error at each severity of each corruption, a map for each model",
            "Errors by corruption and severity.",
        ),
    ),
)
FOOLING = Section(
    "eval-imagenet-a",
    "Robustness",
    "ImageNet-A: images that fool models",
    (NATURAL,),
    files=(FigureFile("imagenet-a.svg", "Accuracy by response rate, and calibration."),),
)
UNKNOWN = Section(
    "eval-imagenet-o",
    "Robustness",
    "ImageNet-O: images of no known class",
    (OUTLIERS,),
    files=(FigureFile("imagenet-o.svg", "How sure models are of outliers and of inliers."),),
)
PROBED_POSITIONS = Section(
    "positions",
    "Inside the models",
    "What the position embeddings learned",
    (POSITIONS,),
    intro="If a linear regression can tell from an embedding where it belongs, the table has "
    "learned the grid. (An attacker does not need that: the rows of the table’s gradient are in "
    "order whatever was learned.) “Always the middle” is what not knowing anything scores; the 1-D "
    "error counts patches in reading order, the 2-D error cells of the grid, the mean of rows "
    "and columns. A model that was also trained on mirror images may tell rows and not columns.",
    files=(
        FigureFile(
            "pca-2d.svg",
            "Every position’s embedding on its two leading principal directions, joined to its "
            "neighbours on the grid. A sheet means that the table knows the grid.",
        ),
        FigureFile("pca-3d.svg", "The same on three directions."),
        FigureFile(
            "umap-2d.svg",
            "UMAP keeps neighbours together: a sheet again means that the table knows the grid.",
        ),
        FigureFile("umap-3d.svg", "UMAP in three dimensions."),
        FigureFile(
            "similarity.svg",
            "Each small map is one position’s similarity to all others; bright around its own "
            "place means that near positions have like embeddings.",
        ),
        FigureFile("spectrum.svg", "How many directions the table uses."),
    ),
)
PROBED_ATTENTION = Section(
    "attention",
    "Inside the models",
    "Where the models look",
    (ATTENTION,),
    intro="The last self-attention, from the class token to the patches; each map up to its own "
    "largest weight.",
    files=(
        FigureFile("attention.png", "Mean over heads."),
        FigureFile("attention-*.png", "Every head on {name}.", most=6),
    ),
)

SECTIONS = (EVALUATION, CORRUPTED, FOOLING, UNKNOWN, PROBED_POSITIONS, PROBED_ATTENTION)
