"""What a page says of studies: what was run, and each table with its claims and figures."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from mjp.core.records import Record
from mjp.report import study_derived
from mjp.report.glance import Finding
from mjp.report.leaks import number, words
from mjp.report.page import Column, DataTable, Renderer, Row, Section, embedded
from mjp.report.reading import MISSING, clock, counted
from mjp.report.runs import Run
from mjp.report.study import STUDY_KINDS, TABLES, StudyRun
from mjp.report.study_cells import AnyColumn, Mean, Seeds, table_of
from mjp.report.study_derived import Derived, derive
from mjp.report.study_figures import draw_table
from mjp.report.study_reading import studies_of
from mjp.report.study_tables import (
    ADAPTIVE_SOLVE,
    MAE,
    MOVED,
    PATCH_SOLVE,
    SAME,
    SAME_LESS,
    TOP1,
    tables_of,
    title_of,
)
from mjp.report.study_words import HEADS, by_level, overview, verdicts_of

CHAPTER = "The study"
SUMMARY_COLUMNS: tuple[AnyColumn, ...] = (
    Mean("Top-1, %", TOP1),
    Mean(f"Consistency at {SAME_LESS.ratio:g}, %", SAME_LESS),
    Mean(f"Consistency at {SAME.ratio:g}, %", SAME),
    Mean(f"Diff. Norm. at {MOVED.ratio:g}", MOVED),
    Mean("1-D MAE", MAE[0], 3),
    Mean("2-D MAE", MAE[1], 3),
    Mean("PSNR patch solve, dB", PATCH_SOLVE, 1),
    Mean("PSNR adaptive solve, dB", ADAPTIVE_SOLVE, 1),
    Seeds("Seeds", TOP1),
)


def derived_records(records: Iterable[Record]) -> list[Record]:
    """Means and comparisons of all studies that these records tell of, to be written after them."""
    found = studies_of(records)
    return [record for study in found for record in study_derived.derived_records(study)]


def summary_table(records: Iterable[Record]) -> DataTable:
    """A row for each run of the first study: means over its seeds."""
    found = studies_of(records)
    if not found:
        return DataTable("The study has no run yet", [Column("Run", False)], [])
    return summary_of(derive(found[0]))


def study_sections(runs: Sequence[Run], renderer: Renderer) -> list[Section]:
    """Sections on every study: its runs, then each of its tables."""
    sections: list[Section] = []
    views = views_of(runs)
    for place, view in enumerate(views, 1):
        chapter = CHAPTER if len(views) == 1 else f"{CHAPTER} “{view.study.name}”"
        start = "study" if place == 1 else f"study-{place}"
        sections.append(Section(f"{start}-runs", "What was run", _runs(view, renderer), chapter))
        for count, table in enumerate(view.study.tables, 1):
            id_ = f"{start}-{table if table in TABLES else f'table-{count}'}"
            sections.append(Section(id_, title_of(table), _body(view, table, renderer), chapter))
    return sections


def study_findings(runs: Sequence[Run]) -> list[Finding]:
    """How many claims hold, in a sentence for each study."""
    return [Finding(told, ()) for view in views_of(runs) if (told := overview(view))]


def views_of(runs: Sequence[Run]) -> list[Derived]:
    """The studies in these runs, with all that is worked out of them."""
    return [
        derive(study)
        for study in studies_of(record for run in runs for record in run.of(*STUDY_KINDS))
        if study.runs
    ]


def _body(view: Derived, table: str, renderer: Renderer) -> Markup:
    body = Markup()
    verdicts = verdicts_of(view, table)
    if verdicts:
        body += renderer.fill("study_claims.html", verdicts=verdicts)
    tables = tables_of(view, table)
    body += Markup().join(renderer.table(one) for one in tables if not one.folded)
    with tempfile.TemporaryDirectory(prefix="mjp-figures-") as folder:
        for figure in draw_table(view, table, Path(folder)):
            vector = next(path for path in figure.paths if path.suffix == ".svg")
            body += renderer.figure(embedded(vector, figure.alt, figure.caption))
    return body + Markup().join(renderer.table(one) for one in tables if one.folded)


def _runs(view: Derived, renderer: Renderer) -> Markup:
    told = renderer.paragraphs(
        f"The study “{view.study.name}” trains a model for each run and seed, and measures it. "
        "Runs of one seed draw the same pictures in the same order. Differences are over seeds "
        "where several were run, and over pictures where not."
    )
    if found := by_level(view):
        told += renderer.fill("study_overview.html", levels=found, heads=HEADS)
    return told + renderer.table(summary_of(view)) + renderer.table(trained_table(view))


def summary_of(view: Derived) -> DataTable:
    """A row for each run: means over its seeds."""
    rows = [(run, None) for run in view.study.runs.values()]
    caption = f"Study “{view.study.name}”: all runs, mean ± standard deviation over seeds"
    return table_of(view, rows, SUMMARY_COLUMNS, caption)


def trained_table(view: Derived) -> DataTable:
    """How each run was trained."""
    titles = ("Run", "Model", "Image", "Start", "γ", "Epochs", "Batch", "Images", "Of validation")
    more = ("Seeds", "Precision", "Hardware", "At a time", "Time")
    numeric = {"γ", "Epochs", "Batch", "Images", "Of validation", "At a time", "Time"}
    rows = [Row(tuple(_facts(run)), tuple(run.told.values())) for run in view.study.runs.values()]
    columns = [Column(name, name in numeric) for name in (*titles, *more)]
    note = (
        "“At a time”: how many runs at most shared the hardware. “Time”: of all epochs, compiling "
        "included and validation left out; from the quickest seed to the slowest."
    )
    return DataTable("How the runs were trained", columns, rows, note, folded=True)


def _facts(run: StudyRun) -> Iterator[str]:
    told = next((one.conditions for one in run.told.values()), {})
    ratio = number(told, "ratio")
    yield run.label
    arguments = re.sub(r"[{}'\"]", "", words(told, "arguments")).replace(": ", " ")
    yield ", ".join(filter(None, (words(told, "architecture"), arguments))) or MISSING
    yield words(told, "image_size") or MISSING
    yield run.start or "drawn"
    yield MISSING if ratio is None else f"{ratio:g}"
    for name in ("epochs", "batch", "train_images", "val_images"):
        yield counted(number(told, name))
    yield ", ".join(run.told) or MISSING
    yield words(told, "precision") or MISSING
    yield words(told, "hardware") or MISSING
    together = {number(one.conditions, "parallel") for one in run.told.values()}
    yield ", ".join(f"{one:g}" for one in sorted(filter(None, together))) or MISSING
    times = sorted(filter(None, (number(one.values, "seconds") for one in run.told.values())))
    yield " to ".join(dict.fromkeys(map(clock, times[:1] + times[-1:]))) or MISSING
