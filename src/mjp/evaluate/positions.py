"""What a table of position embeddings knows of the grid: regression, projections, spectrum."""

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.model_selection import KFold, cross_val_predict

from mjp.core.errors import ConfigError
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.evaluate.config import ProbePositionsOptions
from mjp.evaluate.evaluation import finish
from mjp.evaluate.tables import PROBED_POSITIONS
from mjp.jigsaw import PatchGrid
from mjp.models.opening import open_models
from mjp.models.subject import model_facts
from mjp.models.surface import position_embeddings

Projection = Literal["pca", "umap"]
Embeddings = Float[np.ndarray, "patches dim"]


def run_positions(options: ProbePositionsOptions) -> None:
    """`mjp probe`: what the position embeddings of models learned; measures, prints, draws."""
    with Run.open(options.out, device="cpu", seed=options.seed) as run:
        models = open_models(options.model, options.size)
        tables: dict[str, np.ndarray] = {}
        grids: dict[str, PatchGrid] = {}
        for label, model in models.items():
            try:
                embeddings, grids[label] = position_embeddings(model)
            except ConfigError as error:
                raise ConfigError(f"{label}: {error}") from error
            tables[label] = embeddings.double().numpy()
        records = []
        with run.progress("regressing", len(tables)) as advance:
            for label, model in models.items():
                records.append(_record(label, model, tables[label], grids[label], options))
                advance(1)
        draw = partial(_draw, run, tables, grids, options)
        finish(run, options, run.write(*records), PROBED_POSITIONS, draw=draw)


def _record(
    label: str, model: Any, table: Embeddings, grid: PatchGrid, options: ProbePositionsOptions
) -> Record:
    seeds = range(options.seed, options.seed + options.repeats)
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
    }
    targets = _targets(grid)
    number, row, col = np.abs(targets - targets.mean(axis=0)).mean(axis=0)
    values: dict[str, Scalar] = {
        **regress(table, grid, seeds, options.folds),
        "mae_1d_of_the_middle": float(number),
        "mae_2d_of_the_middle": float((row + col) / 2),
        **spectrum_values(spectrum(table)),
        "mean_norm": float(np.linalg.norm(table, axis=1).mean()),
    }
    return Record("probe positions", conditions, values)


def _draw(
    run: Run,
    tables: Mapping[str, Embeddings],
    grids: Mapping[str, PatchGrid],
    options: ProbePositionsOptions,
) -> list[Path]:
    from mjp.report.probes import draw_projections, draw_similarity, draw_spectrum

    methods: tuple[Projection, ...] = ("pca", "umap") if options.umap else ("pca",)
    paths = []
    with run.progress("projecting", 2 * len(methods) * len(tables)) as advance:
        for method in methods:
            for dimensions in (2, 3):
                points = {}
                for label, table in tables.items():
                    places = project(table, method, dimensions, options.seed)
                    points[label] = places.reshape(grids[label].rows, grids[label].cols, dimensions)
                    advance(1)
                paths += draw_projections(points, method, run.out)
    maps = {}
    for label, table in tables.items():
        shape = 2 * (grids[label].rows, grids[label].cols)
        maps[label] = cosine_similarity(table).reshape(shape)
    paths += draw_similarity(maps, run.out)
    shares = {label: spectrum(table) for label, table in tables.items()}
    return paths + draw_spectrum(shares, run.out)


def _targets(grid: PatchGrid) -> Float[np.ndarray, "patches 3"]:
    """Each patch's number, row and column."""
    number = np.arange(grid.num_patches, dtype=np.float64)
    return np.column_stack((number, grid.coordinates().double().numpy()))


def regress(table: Embeddings, grid: PatchGrid, seeds: range, folds: int = 5) -> dict[str, float]:
    """Linear regression from embedding to position, cross-validated: mean absolute errors over
    held-out patches, their means and spreads over the seeds that divide patches into folds.

    `mae_1d` is of the patch's number (row times columns plus column), in patches; `mae_row` and
    `mae_col` of its row and its column, in cells of the grid; `mae_2d` averages over both.
    """
    if grid.num_patches < folds:
        raise ConfigError(f"{grid.num_patches} patches cannot be divided into {folds} folds")
    if not np.isfinite(table).all():
        raise ConfigError("the position table holds values that are not finite")
    targets = _targets(grid)
    errors = []
    for seed in seeds:
        divided = KFold(folds, shuffle=True, random_state=seed % 2**32)
        predicted = cross_val_predict(LinearRegression(), table, targets, cv=divided)
        errors.append(np.abs(predicted - targets).mean(axis=0))
    in_order, row, col = np.transpose(errors)
    values = {}
    for name, column in {"1d": in_order, "2d": (row + col) / 2, "row": row, "col": col}.items():
        values[f"mae_{name}"] = float(np.mean(column))
        values[f"mae_{name}_std"] = float(np.std(column, ddof=1)) if len(column) > 1 else 0.0
    return values


def project(
    table: Embeddings, method: Projection, dimensions: Literal[2, 3], seed: int
) -> Float[np.ndarray, "patches dimensions"]:
    """The embeddings in two or three dimensions, for a picture."""
    if len(table) <= dimensions + 1:
        raise ConfigError(f"{len(table)} positions are too few for a picture in {dimensions}-D")
    if method == "pca":
        points: np.ndarray = PCA(dimensions, svd_solver="full").fit_transform(table)
        return points
    from umap import UMAP

    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That a seed makes it run on one core; which is wanted.
        try:
            fitted: np.ndarray = UMAP(
                n_components=dimensions,
                n_neighbors=min(15, len(table) - 1),
                init="spectral" if len(table) > 20 else "random",
                random_state=seed % 2**32,
                n_jobs=1,
            ).fit_transform(table)
        finally:
            torch.set_num_threads(threads)  # Which Numba changes for the whole process.
    return fitted


def spectrum(table: Embeddings) -> Float[np.ndarray, " components"]:
    """The share of the embeddings' variance along each principal direction, largest first."""
    with np.errstate(invalid="ignore"):  # Of a table whose rows are all the same.
        shares = PCA(svd_solver="full").fit(table).explained_variance_ratio_
    return np.nan_to_num(shares)


def spectrum_values(shares: Float[np.ndarray, " components"]) -> dict[str, Scalar]:
    """The spectrum in a few numbers."""
    present = shares[shares > 0]
    entropy = float(-(present * np.log(present)).sum())
    return {
        "variance_in_2": float(shares[:2].sum()),
        "variance_in_3": float(shares[:3].sum()),
        "variance_in_10": float(shares[:10].sum()),
        "directions_for_90_percent": int(np.searchsorted(np.cumsum(shares), 0.9) + 1),
        "effective_rank": float(np.exp(entropy)),
    }
