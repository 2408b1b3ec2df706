"""What a page says of accuracy and jigsaws, data set by data set."""

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from mjp.core.records import Record
from mjp.report import paper
from mjp.report.jigsaw import draw_curves
from mjp.report.leaks import number, words
from mjp.report.page import (
    Column,
    DataTable,
    Renderer,
    Row,
    Section,
    drawn,
    embedded,
)
from mjp.report.reading import MISSING, counted, is_clear, label_of, signed, with_interval
from mjp.report.runs import Run

CHAPTER = "Evaluation"
KINDS = ("eval accuracy", "eval jigsaw", "eval difference")


def evaluation_sections(runs: Sequence[Run], renderer: Renderer) -> list[Section]:
    """A section for each data set that models were evaluated on."""
    sets: dict[str, list[Record]] = {}
    for run in runs:
        for record in run.of(*KINDS):
            sets.setdefault(words(record.conditions, "data"), []).append(record)
    return [
        Section(
            f"evaluation-{place}",
            f"Accuracy and jigsaws: {data or 'data without a name'}",
            _body(records, renderer),
            CHAPTER,
        )
        for place, (data, records) in enumerate(sets.items(), 1)
    ]


def _body(records: list[Record], renderer: Renderer) -> Markup:
    clean = [one for one in records if one.kind == "eval accuracy"]
    jigsaws = [one for one in records if one.kind == "eval jigsaw"]
    differences = [one for one in records if one.kind == "eval difference"]
    body = renderer.paragraphs(
        "Consistency is how often a model gives the same answer for a picture and for its jigsaw; "
        "Diff. Norm. is the distance between the features of the two. Plain models are shown the "
        "jigsaw’s pixels; models with MJP know which positions are unknown. Intervals are 95 %, "
        "over images."
    )
    if clean:
        body += renderer.table(accuracy_table(clean))
    with drawn(partial(draw_curves, [*clean, *jigsaws])) as paths:
        for path in paths:
            alt = "Accuracy, consistency and Diff. Norm. over the share of patches moved"
            caption = "What a jigsaw of so many patches does to the answers of each model."
            body += renderer.figure(embedded(path, alt, caption))
    if jigsaws:
        body += renderer.table(jigsaw_table(jigsaws))
    if differences:
        body += renderer.table(difference_table(differences))
    return body


def accuracy_table(records: Sequence[Record]) -> DataTable:
    """A row for each model."""
    beside = any(paper.classification(one.conditions) for one in records)
    columns = [Column("Model", False), *map(Column, ("Parameters", "Images", "Top-1, %"))]
    columns += [Column("Top-5, %"), *([Column("Paper: top-1, %")] if beside else [])]
    rows = []
    for one in records:
        told = paper.classification(one.conditions)
        cells = [
            label_of(one),
            counted(number(one.conditions, "parameters")),
            counted(number(one.values, "images")),
            with_interval(one.values, "top1"),
            with_interval(one.values, "top5"),
        ]
        rows.append(Row([*cells, *_papers_top1(told, beside)], (one,)))
    return DataTable("Accuracy on untouched images", columns, rows)


def _papers_top1(told: paper.Classification | None, beside: bool) -> list[str]:
    if not beside:
        return []
    return [MISSING if told is None else f"{told.top1:.1f}"]


def jigsaw_table(records: Sequence[Record]) -> DataTable:
    """A row for each model and ratio."""
    beside = any(paper.classification(one.conditions) for one in records)
    titles = ("Share moved", "Patches moved", "Accuracy, %", "Consistency, %", "Diff. Norm.")
    columns = [Column("Model (jigsaw in)", False), *map(Column, titles)]
    columns += [Column("Paper: consistency, Diff. Norm.")] if beside else []
    rows = []
    for one in records:
        ratio = number(one.conditions, "ratio")
        told = paper.classification(one.conditions)
        papers = MISSING
        if told is not None and ratio == paper.CONSISTENCY_RATIO:
            norm = "" if told.diff_norm is None else f", {told.diff_norm:.2f}"
            papers = f"{told.consistency:.1f}{norm}"
        moved, of = (number(one.values, name) for name in ("patches_moved", "patches"))
        cells = (
            f"{label_of(one)} ({words(one.conditions, 'jigsaw')})",
            MISSING if ratio is None else f"{ratio:g}",
            f"{counted(moved)} of {counted(of)}",
            with_interval(one.values, "accuracy"),
            with_interval(one.values, "consistency"),
            with_interval(one.values, "diff_norm", ends=2),
            *([papers] if beside else []),
        )
        rows.append(Row(cells, (one,)))
    note = ""
    if beside:
        note = (
            "The paper does not state the ratio of its consistency; its numbers stand at "
            f"{paper.CONSISTENCY_RATIO:g}, the default of its script."
        )
    return DataTable("Under a jigsaw", columns, rows, note)


def difference_table(records: Sequence[Record]) -> DataTable:
    """What each model has more or less than the first, on the same images and jigsaws."""
    titles = {"top1": "top-1 accuracy, points", "accuracy": "accuracy of the jigsaw, points"}
    titles |= {"consistency": "consistency, points", "diff_norm": "Diff. Norm."}
    rows = []
    for one in records:
        told = one.conditions
        ratio = number(told, "ratio")
        cells = (
            f"{label_of(one)} − {words(told, 'than')}",
            titles.get(words(told, "value"), words(told, "value")),
            "0" if ratio is None else f"{ratio:g}",
            signed(one.values, "difference"),
            "yes" if is_clear(one.values, "difference") else "no",
        )
        rows.append(Row(cells, (one,)))
    columns = (
        Column("Models", False),
        Column("Of what", False),
        Column("Share moved"),
        Column("Difference [95 %]"),
        Column("0 outside", False),
    )
    return DataTable("Differences, image by image", columns, rows, folded=len(rows) > 8)
