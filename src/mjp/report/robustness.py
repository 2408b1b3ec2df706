"""What a page says of corruptions, ImageNet-A and ImageNet-O."""

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from mjp.core.records import Record
from mjp.report import paper
from mjp.report.corruptions import draw_corruptions
from mjp.report.leaks import number, words
from mjp.report.page import (
    Column,
    DataTable,
    Renderer,
    Row,
    Section,
    drawn,
    embedded,
    fixed,
)
from mjp.report.reading import MISSING, counted, label_of, with_interval
from mjp.report.runs import Run

CHAPTER = "Robustness"


def robustness_sections(runs: Sequence[Run], renderer: Renderer) -> list[Section]:
    """A section for each kind of robustness that was measured."""
    sections = []
    found = [one for run in runs for one in run.of("eval corruption", "eval corruption summary")]
    if found:
        body = renderer.table(corruption_table(found))
        summaries = [one for one in found if one.kind == "eval corruption summary"]
        if summaries:
            body += renderer.table(summary_table(summaries))
        with drawn(partial(draw_corruptions, _drawable(found))) as paths:
            for path in paths:
                alt = "Top-1 error at each severity of each corruption, a map for each model"
                caption = "Errors by corruption and severity."
                body += renderer.figure(embedded(path, alt, caption))
        sections.append(Section("corruptions", "Corrupted images", body, CHAPTER))
    for kind, title, make in (
        ("eval imagenet-a", "ImageNet-A: images that fool models", natural_table),
        ("eval imagenet-o", "ImageNet-O: images of no known class", outlier_table),
    ):
        records = [one for run in runs for one in run.of(kind)]
        if records:
            body = renderer.table(make(records)) + _files(runs, kind, renderer)
            sections.append(Section(kind.replace(" ", "-"), title, body, CHAPTER))
    return sections


def _drawable(records: Sequence[Record]) -> list[Record]:
    """Those of models that have every corruption, as a map needs."""
    names: dict[str, set[str]] = {}
    for one in records:
        if one.kind == "eval corruption" and number(one.values, "error_5") is not None:
            names.setdefault(label_of(one), set()).add(words(one.conditions, "corruption"))
    most = max(names.values(), key=len, default=set())
    whole = {label for label, own in names.items() if own == most}
    return [one for one in records if label_of(one) in whole]


def _files(runs: Sequence[Run], kind: str, renderer: Renderer) -> Markup:
    """Figures that the evaluation left beside its records."""
    body = Markup()
    for run in runs:
        if run.of(kind):
            for path in sorted(run.folder.glob("*.svg")):
                name = path.stem.replace("-", " ")
                body += renderer.figure(embedded(path, f"{name}, {run.name}", name.capitalize()))
    return body


def corruption_table(records: Sequence[Record]) -> DataTable:
    """A row for each model and corruption."""
    titles = ("Error, % (mean of severities)", "÷ AlexNet’s, %", "Paper: error, %")
    rows = []
    for one in records:
        if one.kind != "eval corruption":
            continue
        name = words(one.conditions, "corruption")
        told = paper.robustness(one.conditions)
        papers = told.errors.get(name) if told else None
        cells = (
            name.replace("_", " "),
            label_of(one),
            with_interval(one.values, "error"),
            fixed(number(one.values, "relative_to_alexnet")),
            fixed(papers),
        )
        rows.append(Row(cells, (one,)))
    columns = [Column("Corruption", False), Column("Model", False), *map(Column, titles)]
    return DataTable("Top-1 error under each corruption", columns, rows)


def summary_table(records: Sequence[Record]) -> DataTable:
    """A row for each model, over all corruptions."""
    rows = []
    for one in records:
        told = paper.robustness(one.conditions)
        cells = (
            label_of(one),
            fixed(number(one.values, "clean_error"), 2),
            with_interval(one.values, "mean_error"),
            with_interval(one.values, "mce"),
            MISSING if told is None else f"{told.mce:.1f}",
        )
        rows.append(Row(cells, (one,)))
    titles = ("Clean error, %", "Mean error, %", "mCE", "Paper: mCE")
    return DataTable("Over all corruptions", [Column("Model", False), *map(Column, titles)], rows)


def natural_table(records: Sequence[Record]) -> DataTable:
    """A row for each model."""
    rows = []
    for one in records:
        told = paper.robustness(one.conditions)
        names = ("accuracy", "aurra", "calibration_error")
        cells = (
            label_of(one),
            counted(number(one.values, "images")),
            *(with_interval(one.values, name) for name in names),
            MISSING if told is None else f"{told.imagenet_a:.1f}, {told.aurra:.1f}",
        )
        rows.append(Row(cells, (one,)))
    titles = ("Images", "Accuracy, %", "AURRA, %", "Calibration error, %", "Paper: accuracy, AURRA")
    return DataTable("ImageNet-A", [Column("Model", False), *map(Column, titles)], rows)


def outlier_table(records: Sequence[Record]) -> DataTable:
    """A row for each model."""
    rows = []
    for one in records:
        told = paper.robustness(one.conditions)
        cells = (
            label_of(one),
            counted(number(one.values, "outliers")),
            counted(number(one.values, "inliers")),
            *(with_interval(one.values, name) for name in ("aupr", "auroc", "fpr95")),
            MISSING if told is None else f"{told.aupr:.1f}",
        )
        rows.append(Row(cells, (one,)))
    titles = ("Outliers", "Inliers", "AUPR, %", "AUROC, %", "FPR95, %", "Paper: AUPR, %")
    return DataTable("ImageNet-O", [Column("Model", False), *map(Column, titles)], rows)
