"""What a page says of position embeddings and attention: numbers, and the figures beside them."""

from collections.abc import Sequence

from markupsafe import Markup

from mjp.core.records import Record
from mjp.report import paper
from mjp.report.leaks import number, words
from mjp.report.page import Column, DataTable, Renderer, Row, Section, embedded, fixed
from mjp.report.reading import MISSING, counted, label_of
from mjp.report.runs import Run

CHAPTER = "Inside the models"
FIGURES = {
    "pca-2d": "Every position’s embedding on its two leading principal directions, joined to its "
    "neighbours on the grid. A sheet means that the table knows the grid.",
    "pca-3d": "The same on three directions.",
    "umap-2d": "UMAP keeps neighbours together: a sheet again means that the table knows the grid.",
    "umap-3d": "UMAP in three dimensions.",
    "similarity": "Each small map is one position’s similarity to all others; bright around its "
    "own place means that near positions have like embeddings.",
    "spectrum": "How many directions the table uses.",
}
"""The figures of `mjp probe`, in words."""
MOST_PICTURES = 6
"""Pictures of attention by head that one page shows."""


def probing_sections(runs: Sequence[Run], renderer: Renderer) -> list[Section]:
    """Sections on positions and on attention, where they were probed."""
    sections = []
    for kind, id_, title, make in (
        ("probe positions", "positions", "What the position embeddings learned", _positions),
        ("probe attention", "attention", "Where the models look", _attention),
    ):
        found = [run for run in runs if run.of(kind)]
        if found:
            sections.append(Section(id_, title, make(found, renderer), CHAPTER))
    return sections


def _positions(runs: Sequence[Run], renderer: Renderer) -> Markup:
    body = renderer.paragraphs(
        "If a linear regression can tell from an embedding where it belongs, the table has learned "
        "the grid. (An attacker does not need that: the rows of the table’s gradient are in order "
        "whatever was learned.) “Always the middle” is what not knowing anything scores; the 1-D "
        "error counts patches in reading order, the 2-D error cells of the grid, the mean of rows "
        "and columns. A model that was also trained on mirror images may tell rows and not columns."
    )
    body += renderer.table(
        positions_table([one for run in runs for one in run.of("probe positions")])
    )
    for run in runs:
        for name, caption in FIGURES.items():
            path = run.folder / f"{name}.svg"
            if path.is_file():
                body += renderer.figure(embedded(path, caption, caption))
    return body


def positions_table(records: Sequence[Record]) -> DataTable:
    """A row for each model."""
    beside = any(paper.regression(one.conditions) for one in records)
    titles = ["Grid, width", "1-D MAE", "2-D MAE", "Of it: row, column"]
    titles += ["Always the middle: 1-D, 2-D", "Effective rank"]
    rows = []
    for one in records:
        values, told = one.values, paper.regression(one.conditions)
        rows_of, cols_of, width = (one.conditions.get(name) for name in ("rows", "cols", "dim"))
        cells = [
            label_of(one),
            f"{rows_of}×{cols_of}, {width}",
            *(
                f"{fixed(number(values, name), 3)} ± {fixed(number(values, f'{name}_std'), 3)}"
                for name in ("mae_1d", "mae_2d")
            ),
            f"{fixed(number(values, 'mae_row'), 3)}, {fixed(number(values, 'mae_col'), 3)}",
            f"{fixed(number(values, 'mae_1d_of_the_middle'))}, "
            f"{fixed(number(values, 'mae_2d_of_the_middle'), 2)}",
            fixed(number(values, "effective_rank")),
        ]
        if beside:
            both = MISSING
            if told is not None:
                both = (
                    f"{told.one[0]:.3f} ± {told.one[1]:.3f}, {told.two[0]:.3f} ± {told.two[1]:.3f}"
                )
            cells.append(both)
        rows.append(Row(cells, (one,)))
    titles += ["Paper: 1-D, 2-D"] if beside else []
    columns = [Column("Model", False), *map(Column, titles)]
    return DataTable("Position told from its embedding by linear regression", columns, rows)


def _attention(runs: Sequence[Run], renderer: Renderer) -> Markup:
    body = renderer.paragraphs(
        "The last self-attention, from the class token to the patches; each map up to its own "
        "largest weight."
    )
    for run in runs:
        paths = [run.folder / "attention.png", *sorted(run.folder.glob("attention-*.png"))]
        for path in [one for one in paths if one.is_file()][: 1 + MOST_PICTURES]:
            name = path.stem.partition("-")[2]
            about = f"every head on {name}" if name else "mean over heads"
            alt = f"Attention, {about}, {run.name}"
            body += renderer.figure(embedded(path, alt, about.capitalize()))
    records = [one for run in runs for one in run.of("probe attention")]
    rows = [
        Row(
            (
                label_of(one),
                words(one.conditions, "image"),
                counted(number(one.values, "heads")),
                fixed(number(one.values, "attention_on_patches"), 3),
            ),
            (one,),
        )
        for one in records
    ]
    columns = (
        Column("Model", False),
        Column("Picture", False),
        Column("Heads"),
        Column("Share of attention on patches"),
    )
    return body + renderer.table(DataTable("Attention, picture by picture", columns, rows))
