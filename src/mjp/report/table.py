"""`Table`: the columns of one kind of record, declared once, for terminal, HTML and Markdown.

A plug-in declares its `Section`s beside its verbs; commands print their tables, and the report
shows them with their figures. Nothing here imports torch.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich import box
from rich.markup import escape
from rich.table import Table as TerminalTable

from mjp.core.records import Record, Scalar

MISSING = "–"
"""Stands where there is no number."""

Value = str | Callable[[Record], Scalar]


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
    """

    title: str
    value: Value
    digits: int | None = 2
    interval: int | None = None
    signed: bool = False
    numeric: bool = True
    optional: bool = False
    note: str = ""

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


@dataclass(frozen=True)
class Row:
    """The cells of a row, and the records that they come from."""

    cells: tuple[str, ...]
    records: tuple[Record, ...] = ()


@dataclass(frozen=True)
class FilledTable:
    """A table with its rows.

    Args:
        folded: whether a page shows it only to those who open it.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Table:
    """The columns of a kind of record.

    Args:
        kind: of the records that are its rows.
        title: may name values and conditions of the first row in braces.
        note: stands below.
        folded_from: how many rows are too many to show at once on a page.
    """

    kind: str
    title: str
    columns: tuple[Column, ...]
    note: str = ""
    folded_from: int = 24

    def fill(self, records: Sequence[Record]) -> FilledTable | None:
        """The table of those of the records that are of its kind; None where none is."""
        chosen = [record for record in records if record.kind == self.kind]
        if not chosen:
            return None
        rows = [[column.cell(record) for column in self.columns] for record in chosen]
        kept = [
            place
            for place, column in enumerate(self.columns)
            if not column.optional or any(row[place] not in ("", MISSING) for row in rows)
        ]
        first = {**chosen[0].conditions, **chosen[0].values}
        return FilledTable(
            self.title.format_map(
                defaultdict(
                    lambda: MISSING, {name: format_scalar(first[name], None) for name in first}
                )
            ),
            tuple(self.columns[place] for place in kept),
            tuple(
                Row(tuple(row[place] for place in kept), (record,))
                for row, record in zip(rows, chosen, strict=True)
            ),
            " ".join(filter(None, [self.note, *(self.columns[place].note for place in kept)])),
            len(rows) >= self.folded_from,
        )


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
    """

    pattern: str
    caption: str
    most: int = 1


@dataclass(frozen=True)
class Section:
    """What a plug-in's records look like on a page.

    Args:
        id: of its place on the page.
        chapter: the heading it stands under.
        title: may name conditions of its first record in braces.
        intro: a fixed text above the tables.
        per: the condition that each section has one value of, such as `data`.
        files: figures in the folders that its records are from.
    """

    id: str
    chapter: str
    title: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...] = field(default=())
    intro: str = ""
    per: str = ""
    files: tuple[FigureFile, ...] = ()

    @property
    def kinds(self) -> set[str]:
        """The kinds of records that it shows."""
        return {table.kind for table in self.tables}


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
    if digits is None:
        return f"{value:{sign}g}"
    # Rounded before it is printed, so that a last bit does not decide on a digit.
    return f"{round(value, 9):{sign}.{digits}f}"


def to_terminal(table: FilledTable) -> TerminalTable:
    """The table for a console; what repeats in the first column stands once."""
    result = TerminalTable(title=escape(table.title), box=box.SIMPLE_HEAD, caption=table.note)
    for column in table.columns:
        justify: Literal["right", "left"] = "right" if column.numeric else "left"
        result.add_column(escape(column.title), justify=justify, overflow="fold")
    before = None
    for row in table.rows:
        first, *others = map(escape, row.cells)
        result.add_row("" if first == before else first, *others)
        before = first
    return result


def to_markdown(table: FilledTable) -> str:
    """The table for a document."""
    lines = [
        [column.title for column in table.columns],
        ["--:" if column.numeric else "---" for column in table.columns],
        *(row.cells for row in table.rows),
    ]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def condition(name: str, names: Mapping[str, str]) -> Callable[[Record], Scalar]:
    """A function of a record that gives a condition in other words."""
    return lambda record: names.get(str(record.conditions.get(name)), record.conditions.get(name))
