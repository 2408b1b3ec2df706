"""Columns of a study's tables: means, differences and the paper's numbers, each with its cells."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mjp.core.records import Record
from mjp.report.page import Column, DataTable, Row, fixed
from mjp.report.reading import MISSING
from mjp.report.study import Quantity, StudyRun
from mjp.report.study_derived import Compared, Derived, Summed

Cell = tuple[str, tuple[Record, ...]]
EMPTY: Cell = (MISSING, ())
BASES = {"seeds": "", "images": " †", "images apart": " ‡", "other seeds": " §", "nothing": ""}
"""What an interval is over, where that is not the seeds; tables say so below."""


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with their standard deviation."""

    title: str
    quantity: Quantity
    digits: int = 2

    def cell(self, view: Derived, run: StudyRun, than: StudyRun | None, seeds: int) -> Cell:
        found = view.sum(run, self.quantity)
        return (mean(found, self.digits, seeds), found.records) if found else EMPTY


@dataclass(frozen=True)
class Difference:
    """What a run has more than its baseline, with an interval."""

    title: str
    quantity: Quantity
    digits: int = 2

    def cell(self, view: Derived, run: StudyRun, than: StudyRun | None, seeds: int) -> Cell:
        found = view.pair(run, than, self.quantity)
        return (difference(found, self.digits), found.records) if found else EMPTY


@dataclass(frozen=True)
class Seeds:
    """How many seeds the first mean of the row is of; others say so where they are of fewer."""

    title: str
    quantity: Quantity

    def cell(self, view: Derived, run: StudyRun, than: StudyRun | None, seeds: int) -> Cell:
        found = view.sum(run, self.quantity)
        return (str(seeds), found.records) if found else EMPTY


@dataclass(frozen=True)
class Papers:
    """The paper's number for a run."""

    title: str
    look_up: Callable[[StudyRun], float | None]
    digits: int = 1
    sign: str = ""

    def cell(self, view: Derived, run: StudyRun, than: StudyRun | None, seeds: int) -> Cell:
        value = self.look_up(run)
        return (MISSING if value is None else f"{value:{self.sign}.{self.digits}f}", ())


AnyColumn = Mean | Difference | Seeds | Papers


def mean(found: Summed, digits: int, seeds: int) -> str:
    """Such as `81.20 ± 0.31`; with its seeds where they are not as many as the row's."""
    told = fixed(found.spread.mean, digits)
    if found.spread.sd is not None:
        told += f" ± {fixed(found.spread.sd, digits)}"
    if found.spread.count == seeds:
        return told
    return f"{told} ({found.spread.count} seed{'s' if found.spread.count > 1 else ''})"


def difference(found: Compared, digits: int = 2) -> str:
    """Such as `+1.20 [+0.80…+1.60]`, with what it is over where that is not the seeds."""
    own = found.comparison
    told = f"{own.difference:+.{digits}f}"
    if own.low is not None and own.high is not None:
        told += f" [{own.low:+.{digits}f}…{own.high:+.{digits}f}]"
    return told + BASES[own.over]


def table_of(
    view: Derived,
    rows: Sequence[tuple[StudyRun, StudyRun | None]],
    columns: Sequence[AnyColumn],
    caption: str,
    note: str = "",
    first: str = "Run",
) -> DataTable:
    """A row for each run; columns that are empty in all rows are left out.

    Args:
        rows: each with the run that it is compared with.
    """
    lines = []
    for run, than in rows:
        sums = [view.sum(run, one.quantity) for one in columns if isinstance(one, Mean)]
        seeds = next((one.spread.count for one in sums if one), 0)
        lines.append([column.cell(view, run, than, seeds) for column in columns])
    kept = [
        place for place in range(len(columns)) if any(line[place][0] != MISSING for line in lines)
    ]
    told = [
        Row(
            (run.label, *(line[place][0] for place in kept)),
            tuple(record for place in kept for record in line[place][1]),
        )
        for (run, _), line in zip(rows, lines, strict=True)
    ]
    heads = [Column(first, False), *(Column(columns[place].title) for place in kept)]
    return DataTable(caption, heads, told, note)
