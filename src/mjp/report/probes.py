"""Figures of what is inside models: position tables, one panel per model, and attention."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mjp.report.style import RAMP, bare, look, shortened, styled, write

HEAT = "inferno"

Look = tuple[np.ndarray, np.ndarray]
"""A picture as a model saw it, (height, width, 3) in [0, 1]; and its maps, (heads, rows, cols)."""


def draw_projections(points: Mapping[str, np.ndarray], method: str, out: Path) -> list[Path]:
    """Every position as a point, joined to its neighbours; coloured by row, and by column.

    Args:
        points: (rows, cols, 2 or 3) for each model.
    """
    dimensions = next(iter(points.values())).shape[2]
    one_grid = len({places.shape for places in points.values()}) == 1
    kind = {"projection": "3d"} if dimensions == 3 else {}
    solid = {"depthshade": False} if dimensions == 3 else {"zorder": 3}
    with styled() as subplots:
        figure, axes = subplots(
            2, len(points), figsize=(1.6 + 4.3 * len(points), 8.2), subplot_kw=kind
        )
        for (line, col), axis in np.ndenumerate(axes):
            label, places = list(points.items())[col]
            last = max(1, places.shape[line] - 1)
            for mesh in (*places, *places.transpose(1, 0, 2)):
                axis.plot(*mesh.T, color="0.65", linewidth=0.7)
            shade = np.indices(places.shape[:2])[line].ravel()
            dots = axis.scatter(
                *places.reshape(-1, dimensions).T,
                # One scale for grids of all sizes.
                c=shade if one_grid else shade / last,
                cmap=RAMP,
                s=26,
                vmin=0,
                vmax=last if one_grid else 1,
                **solid,
            )
            axis.set(**{f"{name}ticks": [] for name in "xyz"[:dimensions]})
            if line == 0:
                axis.set_title(shortened(label))
            if col == len(points) - 1:
                name = ("row", "column")[line]
                scale = name if one_grid else f"{name}, from first (0) to last (1)"
                figure.colorbar(dots, ax=list(axes[line]), label=scale, aspect=30, shrink=0.85)
        figure.suptitle(f"position embeddings, {method.upper()} in {dimensions}-D")
        return write(figure, out, f"{method}-{dimensions}d")


def draw_similarity(maps: Mapping[str, np.ndarray], out: Path) -> list[Path]:
    """For each position, a small map of its cosine similarity with all others.

    Args:
        maps: (rows, cols, rows, cols) for each model.
    """
    with styled() as subplots:
        figure, axes = subplots(1, len(maps), figsize=(1.3 + 6.2 * len(maps), 6.6))
        for axis, (label, cosine) in zip(axes[0], maps.items(), strict=True):
            rows, cols = cosine.shape[:2]
            framed = np.pad(cosine, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
            tiled = framed.transpose(0, 2, 1, 3).reshape(rows * (rows + 1), cols * (cols + 1))
            picture = axis.imshow(tiled[:-1, :-1], cmap=RAMP, vmin=-1, vmax=1)
            axis.set_xticks([(cols + 1) * c + (cols - 1) / 2 for c in range(cols)], range(cols))
            axis.set_yticks([(rows + 1) * r + (rows - 1) / 2 for r in range(rows)], range(rows))
            axis.tick_params(length=0, labelsize=9)
            axis.spines[:].set_visible(False)
            axis.set(xlabel="column of the position", ylabel="row of the position")
            axis.set_title(shortened(label, 40))
        figure.colorbar(picture, ax=list(axes[0]), label="cosine similarity", aspect=40)
        figure.suptitle("each position against all others")
        return write(figure, out, "similarity")


def draw_spectrum(shares: Mapping[str, np.ndarray], out: Path) -> list[Path]:
    """Variance along each principal direction, and how much the first ones hold together."""
    with styled() as subplots:
        figure, ((left, right),) = subplots(1, 2, figsize=(11, 4.6))
        for place, (label, share) in enumerate(shares.items()):
            style = {"label": label, "markevery": max(1, len(share) // 12), **look(place)}
            direction = np.arange(1, len(share) + 1)
            left.plot(direction, np.where(share > 1e-12, 100 * share, np.nan), **style)
            right.plot(direction, 100 * np.cumsum(share), **style)
        left.set(yscale="log", ylabel="share of the variance, %")
        left.yaxis.set_major_formatter("{x:g}")
        right.set(ylim=(0, 102), ylabel="share of the first directions together, %")
        for axis in (left, right):
            axis.set(xscale="log", xlabel="principal direction")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.grid()
        left.legend()
        figure.suptitle("spectrum of the position table")
        return write(figure, out, "spectrum")


def draw_overview(looks: Mapping[str, Mapping[str, Look]], out: Path) -> list[Path]:
    """A row for each image: the image, and each model's mean over its heads.

    Args:
        looks: by model and image.
    """
    rows = {}
    for name, (picture, _) in next(iter(looks.values())).items():
        seen = [(shown[name][0], shown[name][1].mean(axis=0)) for shown in looks.values()]
        rows[name] = [(picture, None), *seen]
    title = "last self-attention, mean over heads;\neach map up to its own largest weight"
    return _draw_maps(rows, ["image", *looks], title, out, "attention")


def draw_heads(name: str, looks: Mapping[str, Look], out: Path) -> list[Path]:
    """For one image, a row for each model: the image, the mean, and every head."""
    rows = {
        label: [(picture, None), *((picture, each) for each in (heads.mean(axis=0), *heads))]
        for label, (picture, heads) in looks.items()
    }
    numbers = range(1, max(map(len, rows.values())) - 1)
    title = f"last self-attention, {shortened(name, 60)}; each map up to its own largest weight"
    heads = ["image", "mean", *(f"head {number}" for number in numbers)]
    return _draw_maps(rows, heads, title, out, f"attention-{name}")


def _draw_maps(
    rows: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray | None]]],
    headings: Sequence[str],
    title: str,
    out: Path,
    name: str,
) -> list[Path]:
    """Rows of pictures, in grey under a map; each map is scaled to its own largest weight."""
    with styled() as subplots:
        size = (2.7 * len(headings), 0.5 + 2.8 * len(rows))
        figure, axes = subplots(len(rows), len(headings), figsize=size)
        for line, (label, cells) in zip(axes, rows.items(), strict=True):
            line[0].set_ylabel(shortened(label, 24))
            for axis in line[len(cells) :]:
                axis.set_axis_off()
            for axis, (picture, weights) in zip(line, cells, strict=False):
                height, width = picture.shape[:2]
                bare(axis)
                if weights is None:
                    axis.imshow(picture)
                    continue
                axis.imshow(picture @ (0.299, 0.587, 0.114), cmap="gray", vmin=0, vmax=1)
                axis.imshow(
                    weights,
                    cmap=HEAT,
                    alpha=0.62,
                    vmin=0,
                    vmax=max(float(weights.max()), 1e-12),
                    extent=(-0.5, width - 0.5, height - 0.5, -0.5),
                    interpolation="bilinear",
                )
        for axis, heading in zip(axes[0], headings, strict=True):
            axis.set_title(shortened(heading, 24))
        figure.suptitle(title)
        return write(figure, out, name, dpi=100)
