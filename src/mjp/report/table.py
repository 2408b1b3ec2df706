"""`Table`: the columns of one kind of record, declared once, for the terminal and for pages.

A plug-in declares its `Section`s beside its verbs; commands print their tables, and the report
shows them with their figures. Nothing here imports torch.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich import box
from rich.markup import escape
from rich.table import Table as TerminalTable

from mjp.core.records import ENVIRONMENT, Record, Scalar

MISSING = "–"
"""Stands where there is no number."""

Value = str | Callable[[Record], Scalar]
Joined = Iterable[tuple[Record, tuple[Record, ...]]]
"""For each row what its columns read, and the records that are its sources."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        title: its head.
        value: the name of a value or condition of the record, or a function of the record.
        digits: after the point, of numbers that are not whole; None for as many as tell.
        interval: digits of the ends `NAME_low` and `NAME_high` that stand behind the value; None
            for no interval.
        signed: whether the number bears its sign, as differences do.
        numeric: whether it holds numbers, which are set to the right.
        optional: whether it is left out where it would be empty, as the paper's numbers are.
        note: stands below the table where the column is shown.
        look: on a page. `badge`: a level, in its colour. `bar`: a bar below the number, which is
            full at `full`. `wide`: text of several lines.
    """

    title: str
    value: Value
    digits: int | None = 2
    interval: int | None = None
    signed: bool = False
    numeric: bool = True
    optional: bool = False
    note: str = ""
    look: Literal["", "badge", "bar", "wide"] = ""
    full: float = 100.0

    def cell(self, record: Record) -> str:
        """The text of the column for a record."""
        if callable(self.value):
            return format_scalar(self.value(record), self.digits, self.signed)
        value = look_up(record, self.value)
        text = format_scalar(value, self.digits, self.signed)
        if self.interval is None or value is None:
            return text
        low, high = (record.values.get(f"{self.value}_{end}") for end in ("low", "high"))
        if low is None or high is None:
            return text
        ends = (format_scalar(end, self.interval, self.signed) for end in (low, high))
        return f"{text} [{('…' if self.signed else '–').join(ends)}]"

    def share(self, record: Record) -> float:
        """How long the bar is, in percent."""
        value = None if callable(self.value) else number(record.values, self.value)
        return 0.0 if value is None else round(min(max(100 * value / self.full, 0.0), 100.0), 1)

    def identifies(self, record: Record) -> bool:
        """Whether it says what was measured, not what came out."""
        if callable(self.value):
            return not self.numeric
        return self.value not in record.values


@dataclass(frozen=True)
class Row:
    """The cells of a row, and the records that they come from.

    Args:
        bars: length of the bar of each cell, in percent.
        group: the heading that it stands under.
        pale: whether its numbers do not count.
        level: that its badge shows.
    """

    cells: tuple[str, ...]
    records: tuple[Record, ...] = ()
    bars: tuple[float, ...] = ()
    group: str = ""
    pale: bool = False
    level: str = ""


@dataclass(frozen=True)
class FilledTable:
    """A table with its rows; a page shows one that is folded only to those who open it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    folded: bool = False

    @property
    def groups(self) -> dict[str, list[Row]]:
        """The rows by their headings."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.group, []).append(row)
        return groups


@dataclass(frozen=True)
class Table:
    """The columns of a kind of record.

    Args:
        kind: of the records that are its rows.
        title: may name values and conditions of the first row in braces.
        note: stands below.
        folded_from: how many rows are too many to show at once on a page.
        join: makes rows of more than one record each; by default each record of the kind is one.
        per: the condition that each table has one value of.
        group: the condition whose values are headings of rows.
        counts: the value that is False where a row's numbers do not count.
        glance: a line on a row for the start of a page, with values and conditions in braces.
    """

    kind: str
    title: str
    columns: tuple[Column, ...]
    note: str = ""
    folded_from: int = 24
    join: Callable[[Sequence[Record]], Joined] | None = None
    per: str = ""
    group: str = ""
    counts: str = ""
    glance: str = ""

    def fill(self, records: Sequence[Record]) -> FilledTable | None:
        """The table of those of the records that are of its kind; None where none is.

        What the columns do not tell apart has one more column, with the conditions that do.
        """
        rows = self._rows(records)
        if not rows:
            return None
        shown = [record for record, _ in rows]
        columns = self.columns
        if any((apart := self._tell_apart(shown)).values()):
            last = Column("Differs in", lambda record: apart[id(record)], numeric=False)
            columns = (*columns, last)
        columns = tuple(
            column
            for column in columns
            if not column.optional or {column.cell(record) for record in shown} - {"", MISSING}
        )
        return FilledTable(
            filled_in(self.title, shown[0]),
            columns,
            tuple(
                Row(
                    tuple(column.cell(record) for column in columns),
                    sources,
                    tuple(column.share(record) for column in columns),
                    str(look_up(record, self.group)) if self.group else "",
                    bool(self.counts) and look_up(record, self.counts) is False,
                    next((c.cell(record) for c in columns if c.look == "badge"), ""),
                )
                for record, sources in rows
            ),
            " ".join(filter(None, [self.note, *(column.note for column in columns)])),
            len(rows) >= self.folded_from,
        )

    def fill_all(self, records: Sequence[Record]) -> list[FilledTable]:
        """A table for each value of the condition `per`; the note below the last."""
        parts = split(records, self.per) if self.per else [records]
        tables = [table for part in parts if (table := self.fill(part)) is not None]
        return [*(replace(table, note="") for table in tables[:-1]), *tables[-1:]]

    def glances(self, records: Sequence[Record]) -> list[tuple[str, tuple[Record, ...]]]:
        """Its lines for the start of a page, and their sources; none of a row without a number."""
        rows = self._rows(records) if self.glance else []
        lines = [(filled_in(self.glance, record), sources) for record, sources in rows]
        return [(line, sources) for line, sources in lines if MISSING not in line]

    def _rows(self, records: Sequence[Record]) -> list[tuple[Record, tuple[Record, ...]]]:
        if self.join is not None:
            return list(self.join(records))
        return [(record, (record,)) for record in records if record.kind == self.kind]

    def _tell_apart(self, records: list[Record]) -> dict[int, str]:
        """For rows that look like measurements of the same, the conditions that differ, by id."""
        alike: dict[tuple[Scalar, ...], list[Record]] = {}
        for record in records:
            told = [column.cell(record) for column in self.columns if column.identifies(record)]
            alike.setdefault((look_up(record, self.group), *told), []).append(record)
        return {
            id(record): text
            for same in alike.values()
            for record, text in zip(same, differences(same), strict=True)
        }


@dataclass(frozen=True)
class Figure:
    """A figure of a section.

    Args:
        draw: draws it of records into a folder; gives the files, none where there is nothing to
            draw. Loads what it needs only when called.
        alt: what it shows, for those who do not see it.
    """

    draw: Callable[[Sequence[Record], Path], list[Path]]
    alt: str
    caption: str


@dataclass(frozen=True)
class FigureFile:
    """Figures that a command left in the folder of its records, for a page to show.

    Args:
        pattern: of their names; `*` stands for what `{name}` in the caption is replaced by.
        most: how many of a folder to show.
        alt: what they show, for those who do not see it; by default the caption.
    """

    pattern: str
    caption: str
    most: int = 1
    alt: str = ""


@dataclass(frozen=True)
class Section:
    """What a plug-in's records look like on a page.

    Args:
        id: of its place on the page.
        chapter: the heading it stands under; a section without one comes first on the page.
        title: may name conditions of its first record in braces.
        intro: a fixed text above the tables, its paragraphs apart by a blank line.
        per: the condition that each section has one value of, such as `data`.
        files: figures in the folders that its records are from.
        also: kinds of the records that it shows besides those of its tables.
        template: a file of this folder that words the records, below `intro`.
        figures_first: whether the figures stand above the tables.
        check: of the records of a folder, a sentence on what is not finished; {path} stands for
            the folder.
    """

    id: str
    chapter: str
    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    intro: str = ""
    per: str = ""
    files: tuple[FigureFile, ...] = ()
    also: frozenset[str] = frozenset()
    template: str = ""
    figures_first: bool = False
    check: Callable[[Sequence[Record]], str] | None = None

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of records that it shows."""
        return self.also | {table.kind for table in self.tables}


def split(records: Sequence[Record], condition: str) -> list[list[Record]]:
    """The records by their values of a condition."""
    parts: dict[Scalar, list[Record]] = {}
    for record in records:
        parts.setdefault(record.conditions.get(condition), []).append(record)
    return list(parts.values())


def differences(records: Sequence[Record], besides: Iterable[str] = ()) -> list[str]:
    """For each record, those of its conditions, besides these, that are not the same in all."""
    names = dict.fromkeys(name for record in records for name in record.conditions)
    apart = ENVIRONMENT.union(besides)
    differing = [
        name
        for name in names
        if name not in apart and len({str(r.conditions.get(name)) for r in records}) > 1
    ]
    return [
        "; ".join(
            f"{name.replace('_', ' ')} {format_scalar(record.conditions.get(name), None)}"
            for name in differing
        )
        for record in records
    ]


def number(values: Mapping[str, Scalar], name: str) -> float | None:
    """A finite number of a record; None where there is none."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def interval(
    values: Mapping[str, Scalar], name: str, low: str = "low", high: str = "high"
) -> tuple[float, float, float] | None:
    """A number and its ends `NAME_low` and `NAME_high`, itself for an end that is not there."""
    middle, *ends = (number(values, key) for key in (name, f"{name}_{low}", f"{name}_{high}"))
    if middle is None:
        return None
    first, last = (middle if end is None else end for end in ends)
    return middle, first, last


def text_of(values: Mapping[str, Scalar], name: str) -> str:
    """A text of a record; empty where there is none."""
    return "" if (value := values.get(name)) is None else str(value)


def filled_in(template: str, record: Record) -> str:
    """A fixed text with values and conditions of a record in its braces."""
    both = {**record.conditions, **record.values}
    texts = {
        name: f"{value:.4g}"
        if isinstance(value, float) and math.isfinite(value)
        else format_scalar(value)
        for name, value in both.items()
    }
    return template.format_map(defaultdict(lambda: MISSING, texts))


def look_up(record: Record, name: str) -> Scalar:
    """A value of the record, or else a condition."""
    return record.values.get(name, record.conditions.get(name))


def format_scalar(value: Scalar, digits: int | None = 2, signed: bool = False) -> str:
    """A value as text: whole numbers in groups of three digits, a dash where there is none."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    sign = "+" if signed else ""
    if isinstance(value, int):
        return f"{value:{sign},d}"
    if not math.isfinite(value):
        return MISSING
    if digits is None:
        return f"{value:{sign}g}"
    if digits >= 3 and 0 < abs(value) < 0.5 * 10**-digits:
        return f"{value:{sign}.0e}"
    # Rounded before it is printed, so that a last bit does not decide on a digit.
    return f"{round(value, 9):{sign}.{digits}f}"


def to_terminal(table: FilledTable) -> TerminalTable:
    """The table for a console, without its wide columns; what repeats in the first stands once."""
    result = TerminalTable(title=escape(table.title), box=box.SIMPLE_HEAD, caption=table.note)
    is_grouped = any(row.group for row in table.rows)
    if is_grouped:
        result.add_column()
    for column in table.columns:
        if column.look != "wide":
            justify: Literal["right", "left"] = "right" if column.numeric else "left"
            result.add_column(escape(column.title), justify=justify, overflow="fold")
    before = None
    for row in table.rows:
        pairs = zip(table.columns, row.cells, strict=True)
        cells = [row.group] if is_grouped else []
        cells += [cell for column, cell in pairs if column.look != "wide"]
        first, *others = map(escape, cells)
        result.add_row("" if first == before else first, *others)
        before = first
    return result


def to_markdown(table: FilledTable) -> str:
    """The table for a document."""
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    cells = [[cell.replace("|", "\\|") for cell in row.cells] for row in table.rows]
    lines = [[column.title for column in table.columns], rules, *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
