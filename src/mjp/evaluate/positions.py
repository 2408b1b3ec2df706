"""What a table of position embeddings knows of the grid: regression, projections, spectrum."""

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold

from mjp.core.errors import ConfigError
from mjp.core.ranges import check_count
from mjp.core.records import Scalar
from mjp.jigsaw import PatchGrid

Projection = Literal["pca", "umap"]
Table = Float[np.ndarray, "patches dim"]


@dataclass(frozen=True)
class PositionError:
    """Mean absolute error of positions told from embeddings, over held-out patches.

    Args:
        mean: over the seeds that divide patches into folds.
        std: over the same; 0 for a single seed.
    """

    mean: float
    std: float


def regress(
    table: Table, grid: PatchGrid, seeds: range, folds: int = 5
) -> dict[str, PositionError]:
    """Linear regression from embedding to position, cross-validated.

    `1d` is the patch's number (row times columns plus column), in patches; `row` and `col` are its
    row and its column, in cells of the grid; `2d` is the error averaged over both.
    """
    check_count("folds", folds, 2)
    if grid.num_patches < folds:
        raise ConfigError(f"{grid.num_patches} patches cannot be divided into {folds} folds")
    if not np.isfinite(table).all():
        raise ConfigError("the position table holds values that are not finite")
    number = np.arange(grid.num_patches, dtype=np.float64)[:, None]
    place = grid.coordinates().double().numpy()
    target = np.concatenate([number, place], axis=1)
    errors = np.array([_held_out_errors(table, target, folds, seed) for seed in seeds])
    one, row, col = errors.T
    told = {"1d": one, "2d": (row + col) / 2, "row": row, "col": col}
    return {name: _over_seeds(own) for name, own in told.items()}


def _over_seeds(errors: Float[np.ndarray, " seeds"]) -> PositionError:
    spread = float(np.std(errors, ddof=1)) if len(errors) > 1 else 0.0
    return PositionError(float(np.mean(errors)), spread)


def _held_out_errors(
    table: Table, target: Float[np.ndarray, "patches targets"], folds: int, seed: int
) -> Float[np.ndarray, " targets"]:
    predicted = np.empty_like(target)
    divided = KFold(folds, shuffle=True, random_state=seed % 2**32)
    for known, held_out in divided.split(table):
        predicted[held_out] = (
            LinearRegression().fit(table[known], target[known]).predict(table[held_out])
        )
    return np.abs(predicted - target).mean(axis=0)


def project(
    table: Table, method: Projection, dimensions: Literal[2, 3], seed: int
) -> Float[np.ndarray, "patches dimensions"]:
    """The embeddings in two or three dimensions, for a picture."""
    if len(table) <= dimensions + 1:
        raise ConfigError(f"{len(table)} positions are too few for a picture in {dimensions}-D")
    if method == "pca":
        return _principal(table)[0][:, :dimensions]
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


def similarity(table: Table, grid: PatchGrid) -> Float[np.ndarray, "rows cols rows cols"]:
    """Cosine of the angle between each position's embedding and each other's."""
    length = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(length == 0, 1, length)
    return (unit @ unit.T).reshape(grid.rows, grid.cols, grid.rows, grid.cols)


def spectrum(table: Table) -> Float[np.ndarray, " components"]:
    """The share of the embeddings' variance along each principal direction, largest first."""
    power = _principal(table)[1] ** 2
    total = power.sum()
    return power / total if total > 0 else power


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


def _principal(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates along the principal directions, and the singular values.

    The sign of a direction is chosen so that its largest coordinate is positive.
    """
    left, values, _ = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)
    largest = left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])]
    return left * np.where(largest < 0, -1, 1) * values, values
