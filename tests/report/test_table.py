"""A table is declared once, and filled with records."""

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


def test_the_terminal_shows_cells_as_they_are_and_a_repeated_first_one_once():
    filled = TABLE.fill([record("[red]A|"), record("[red]A|")])
    console = Console(width=200, record=True)
    console.print(to_terminal(filled))
    printed = console.export_text()
    assert printed.count("[red]A|") == 1
    assert printed.count("71.05 [70.0–72.0]") == 2


def test_rows_that_look_alike_say_in_which_conditions_they_differ():
    sizes = [
        Record("eval", {"model": "A", "data": "d", "image_size": size, "torch": size}, {"top1": 1})
        for size in ("224x224", "288x288")
    ]
    other = Record("eval", {"model": "B", "data": "d", "image_size": "64x64"}, {"top1": 2})
    filled = TABLE.fill([*sizes, other])
    assert filled.columns[-1].title == "Differs in"
    assert [row.cells[-1] for row in filled.rows] == [
        "image size 224x224",
        "image size 288x288",
        "",
    ]


def test_a_table_per_condition_groups_rows_and_words_a_glance():
    table = Table(
        "eval",
        "On {data}",
        (Column("Top-1", "top1", digits=1, look="bar", full=200),),
        per="data",
        group="model",
        counts="counts",
        glance="{model}: {top1} % on {data}",
    )
    records = [
        Record("eval", {"model": "A", "data": "one"}, {"top1": 50.125, "counts": False}),
        Record("eval", {"model": "B", "data": "two"}, {"top1": 300.0}),
        Record("eval", {"model": "C", "data": "two"}, {"top1": "no number"}),
        Record("eval", {"model": "D", "data": "two"}, {"top1": float("nan")}),
    ]
    one, two = table.fill_all(records)
    assert (one.title, two.title) == ("On one", "On two")
    assert [(row.bars, row.pale, row.group) for row in one.rows] == [((25.1,), True, "A")]
    assert [row.cells for row in two.rows] == [("300.0",), ("no number",), ("–",)]
    assert two.rows[0].bars == (100.0,)
    assert [column.header for column in to_terminal(two).columns] == ["", "Top-1"]
    assert [line for line, _ in table.glances(records)][:2] == [
        "A: 50.12 % on one",
        "B: 300 % on two",
    ]
    assert len(table.glances(records)) == 3  # Without the one that has no number.


def test_a_document_has_the_cells_of_the_terminal():
    filled = TABLE.fill([record("[red]A|", images=1234)])
    console = Console(width=200, record=True)
    console.print(to_terminal(filled))
    printed = console.export_text()
    assert all(cell in printed for cell in filled.rows[0].cells)
    head, rule, row = to_markdown(filled).splitlines()
    assert head == "| Model | Top-1, % | Images | Difference |"
    assert rule == "| --- | ---: | ---: | ---: |"
    assert row == "| [red]A\\| | 71.05 [70.0–72.0] | 1,234 | – |"
