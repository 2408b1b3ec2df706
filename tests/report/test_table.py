"""A table is declared once and says the same in the terminal and in Markdown."""

from rich.console import Console

from mjp.core.records import Record
from mjp.report.table import Column, Table, to_markdown, to_terminal

TABLE = Table(
    "eval",
    "On {data}",
    (
        Column("Model", "model", numeric=False),
        Column("Top-1, %", "top1", interval=1),
        Column("Images", "images"),
        Column("Difference", "more", signed=True, interval=2),
        Column("Paper", lambda record: record.conditions.get("paper"), optional=True),
    ),
)


def record(model="A", kind="eval", **values):
    values = {"top1": 71.049999999999, "top1_low": 70.0, "top1_high": 72.0, **values}
    return Record(kind, {"model": model, "data": "[b]{x}|y"}, values)


def test_cells_hold_values_with_intervals_signs_and_groups_of_digits():
    rows = [record(images=12345), record("B", more=0.5, more_low=-0.25, more_high=1.25)]
    filled = TABLE.fill([*rows, record(kind="another")])
    assert [row.cells for row in filled.rows] == [
        ("A", "71.05 [70.0–72.0]", "12,345", "–"),
        ("B", "71.05 [70.0–72.0]", "–", "+0.50 [-0.25…+1.25]"),
    ]
    assert [row.records for row in filled.rows] == [(row,) for row in rows]
    assert filled.title == "On [b]{x}|y"


def test_a_number_at_the_edge_is_rounded_alike_whatever_its_last_bit():
    column = Column("", "value")
    cells = {
        column.cell(Record("", {}, {"value": -0.555 + bits * 2**-53})) for bits in range(-4, 5)
    }
    assert len(cells) == 1


def test_a_column_that_nobody_fills_is_left_out_only_where_it_is_optional():
    titles = [column.title for column in TABLE.fill([record()]).columns]
    assert titles == ["Model", "Top-1, %", "Images", "Difference"]
    row = Record("eval", {"model": "A", "data": "", "paper": 1.5}, {})
    assert TABLE.fill([row]).rows[0].cells[-1] == "1.50"
    assert TABLE.fill([record(kind="another")]) is None


def test_terminal_and_markdown_show_the_same_cells():
    filled = TABLE.fill([record("[red]A|"), record("[red]A|")])
    console = Console(width=200, record=True)
    console.print(to_terminal(filled))
    printed = console.export_text()
    assert printed.count("[red]A|") == 1
    assert printed.count("71.05 [70.0–72.0]") == 2
    assert to_markdown(filled).splitlines()[2] == "| [red]A\\| | 71.05 [70.0–72.0] | – | – |"
