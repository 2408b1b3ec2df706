"""`mjp probe`: what the position embeddings of one model or several learned."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from mjp import __version__
from mjp.commands.evaluating import claim, finish, label_of, numbers
from mjp.commands.options import ProbePositionsOptions
from mjp.commands.terminal import meter
from mjp.core.errors import ConfigError
from mjp.core.ranges import check_count
from mjp.core.records import Record, Scalar
from mjp.evaluate.positions import (
    Projection,
    project,
    regress,
    similarity,
    spectrum,
    spectrum_values,
)
from mjp.jigsaw import PatchGrid
from mjp.models.facts import model_facts
from mjp.models.opening import open_models
from mjp.models.surface import position_embeddings
from mjp.report import paper
from mjp.report.positions import draw_projections, draw_similarity, draw_spectrum

UNITS = (
    "1-D in patches (row × columns + column); 2-D in cells of the grid, the mean of row and column"
)


def run(options: ProbePositionsOptions) -> None:
    """Measures, prints, draws."""
    check_count("folds", options.folds, 2)
    check_count("repeats", options.repeats)
    claim(options.out)
    models = open_models(options.model, options.size)
    tables: dict[str, np.ndarray] = {}
    grids: dict[str, PatchGrid] = {}
    for label, model in models.items():
        try:
            table, grids[label] = position_embeddings(model)
        except ConfigError as error:
            raise ConfigError(f"{label}: {error}") from error
        tables[label] = table.double().numpy()
    records = []
    with meter("regressing", len(tables)) as tell:
        for label, model in models.items():
            records.append(_measure(label, model, tables[label], grids[label], options))
            tell(1)
    draw = partial(_draw, tables, grids, options)
    finish(options, records, [_table(records, options)], draw)


def _draw(
    tables: dict[str, np.ndarray], grids: dict[str, PatchGrid], options: ProbePositionsOptions
) -> list[Path]:
    methods: tuple[Projection, ...] = ("pca", "umap") if options.umap else ("pca",)
    paths = []
    with meter("projecting", 2 * len(methods) * len(tables)) as tell:
        for method in methods:
            for dimensions in (2, 3):
                points = {}
                for label, one in tables.items():
                    points[label] = project(one, method, dimensions, options.seed)
                    tell(1)
                paths += draw_projections(points, grids, method, options.out)
    paths += draw_similarity({n: similarity(t, grids[n]) for n, t in tables.items()}, options.out)
    paths += draw_spectrum({n: spectrum(t) for n, t in tables.items()}, options.out)
    return paths


def _measure(
    label: str, model: Any, table: np.ndarray, grid: PatchGrid, options: ProbePositionsOptions
) -> Record:
    seeds = range(options.seed, options.seed + options.repeats)
    errors = regress(table, grid, seeds, options.folds)
    conditions: dict[str, Scalar] = {
        **model_facts(label, model),
        "rows": grid.rows,
        "cols": grid.cols,
        "dim": table.shape[1],
        "folds": options.folds,
        "repeats": options.repeats,
        "seed": options.seed,
        "unit_1d": "patches",
        "unit_2d": "cells of the grid",
        "mjp": __version__,
    }
    values: dict[str, Scalar] = {}
    for name, error in errors.items():
        values |= {f"mae_{name}": error.mean, f"mae_{name}_std": error.std}
    middle = np.abs(np.arange(grid.num_patches) - (grid.num_patches - 1) / 2).mean()
    row, col = grid.coordinates().numpy().T
    two = (np.abs(row - row.mean()).mean() + np.abs(col - col.mean()).mean()) / 2
    values |= {"mae_1d_of_the_middle": float(middle), "mae_2d_of_the_middle": float(two)}
    values |= spectrum_values(spectrum(table))
    values["mean_norm"] = float(np.linalg.norm(table, axis=1).mean())
    return Record("probe positions", conditions, values)


def _table(records: list[Record], options: ProbePositionsOptions) -> Table:
    beside = any(paper.regression(record.conditions) for record in records)
    table = Table(
        title=f"position told from its embedding by linear regression: mean absolute error, "
        f"{options.folds} folds, mean ± std over {options.repeats} seeds\n{UNITS}"
    )
    table.add_column("model")
    numbers(table, "grid, width", "1-D MAE", "2-D MAE", "row, column")
    numbers(table, "always the middle", "effective rank")
    if beside:
        numbers(table, "paper: 1-D, 2-D")
    for record in records:
        values, conditions = record.values, record.conditions
        told = paper.regression(conditions)
        line = [
            f"{conditions['rows']}×{conditions['cols']}, {conditions['dim']}",
            f"{values['mae_1d']:.3f} ± {values['mae_1d_std']:.3f}",
            f"{values['mae_2d']:.3f} ± {values['mae_2d_std']:.3f}",
            f"{values['mae_row']:.3f}, {values['mae_col']:.3f}",
            f"{values['mae_1d_of_the_middle']:.1f}, {values['mae_2d_of_the_middle']:.2f}",
            f"{values['effective_rank']:.1f}",
        ]
        if beside:
            line.append(
                f"{told.one[0]:.3f} ± {told.one[1]:.3f}, {told.two[0]:.3f} ± {told.two[1]:.3f}"
                if told
                else ""
            )
        table.add_row(label_of(record), *line)
    return table
