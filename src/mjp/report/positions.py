"""Pictures of position tables: projections, cosine similarity, spectrum. One panel per model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mjp.report.style import RAMP, look, shortened, styled, write

if TYPE_CHECKING:
    from mjp.jigsaw import PatchGrid


def draw_projections(
    points: Mapping[str, np.ndarray], grids: "Mapping[str, PatchGrid]", method: str, out: Path
) -> list[Path]:
    """Every position as a point, joined to its neighbours; coloured by row, and by column.

    Args:
        points: (patches, 2 or 3) for each model.
    """
    dimensions = next(iter(points.values())).shape[1]
    one_grid = len(set(grids.values())) == 1
    kind = {"projection": "3d"} if dimensions == 3 else {}
    with styled() as subplots:
        figure, axes = subplots(
            2,
            len(points),
            figsize=(1.6 + 4.3 * len(points), 8.2),
            squeeze=False,
            subplot_kw=kind,
        )
        for col, (label, places) in enumerate(points.items()):
            grid = grids[label]
            row_of, col_of = (index.ravel() for index in np.indices((grid.rows, grid.cols)))
            for line, (name, value, count) in enumerate(
                (("row", row_of, grid.rows), ("column", col_of, grid.cols))
            ):
                last = max(1, count - 1)
                shade = value if one_grid else value / last  # One scale for grids of all sizes.
                axis = axes[line, col]
                _draw_mesh(axis, places, grid)
                solid = {"depthshade": False} if dimensions == 3 else {"zorder": 3}
                dots = axis.scatter(
                    *places.T,
                    c=shade,
                    cmap=RAMP,
                    s=26,
                    vmin=0,
                    vmax=last if one_grid else 1,
                    **solid,
                )
                axis.set_xticks([])
                axis.set_yticks([])
                if dimensions == 3:
                    axis.set_zticks([])
                if line == 0:
                    axis.set_title(shortened(label))
                if col == len(points) - 1:
                    scale = name if one_grid else f"{name}, from first (0) to last (1)"
                    figure.colorbar(dots, ax=list(axes[line]), label=scale, aspect=30, shrink=0.85)
        figure.suptitle(f"position embeddings, {method.upper()} in {dimensions}-D")
        return write(figure, out, f"{method}-{dimensions}d")


def _draw_mesh(axis: Any, places: np.ndarray, grid: "PatchGrid") -> None:
    """Lines between positions that are neighbours on the grid."""
    mesh = places.reshape(grid.rows, grid.cols, -1)
    for line in (*mesh, *mesh.transpose(1, 0, 2)):
        axis.plot(*line.T, color="0.65", linewidth=0.7)


def draw_similarity(maps: Mapping[str, np.ndarray], out: Path) -> list[Path]:
    """For each position, a small map of its cosine similarity with all others.

    Args:
        maps: (rows, cols, rows, cols) for each model.
    """
    with styled() as subplots:
        figure, axes = subplots(
            1,
            len(maps),
            figsize=(1.3 + 6.2 * len(maps), 6.6),
            squeeze=False,
        )
        for axis, (label, cosine) in zip(axes[0], maps.items(), strict=True):
            rows, cols = cosine.shape[:2]
            framed = np.full((rows, cols, rows + 1, cols + 1), np.nan)
            framed[:, :, :rows, :cols] = cosine
            tiled = framed.transpose(0, 2, 1, 3).reshape(rows * (rows + 1), cols * (cols + 1))
            picture = axis.imshow(tiled[:-1, :-1], cmap=RAMP, vmin=-1, vmax=1)
            axis.set_xticks([(cols + 1) * c + (cols - 1) / 2 for c in range(cols)], range(cols))
            axis.set_yticks([(rows + 1) * r + (rows - 1) / 2 for r in range(rows)], range(rows))
            axis.tick_params(length=0, labelsize=9)
            for side in axis.spines.values():
                side.set_visible(False)
            axis.set_title(shortened(label, 40))
            axis.set_xlabel("column of the position")
            axis.set_ylabel("row of the position")
        figure.colorbar(picture, ax=list(axes[0]), label="cosine similarity", aspect=40)
        figure.suptitle("each position against all others")
        return write(figure, out, "similarity")


def draw_spectrum(shares: Mapping[str, np.ndarray], out: Path) -> list[Path]:
    """Variance along each principal direction, and how much the first ones hold together."""
    with styled() as subplots:
        figure, (left, right) = subplots(1, 2, figsize=(11, 4.6))
        for number, (label, share) in enumerate(shares.items()):
            style = look(number)
            place = np.arange(1, len(share) + 1)
            shown = share > 1e-12
            every = max(1, len(share) // 12)
            left.plot(place[shown], 100 * share[shown], markevery=every, label=label, **style)
            right.plot(place, 100 * np.cumsum(share), markevery=every, label=label, **style)
        left.set_yscale("log")
        left.yaxis.set_major_formatter("{x:g}")
        left.set_ylabel("share of the variance, %")
        right.set_ylabel("share of the first directions together, %")
        right.set_ylim(0, 102)
        for axis in (left, right):
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.set_xlabel("principal direction")
            axis.grid(alpha=0.25)
        left.legend(frameon=False)
        figure.suptitle("spectrum of the position table")
        return write(figure, out, "spectrum")
