"""Figures of what is inside models: position tables, one panel per model, and attention."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        size = (1.6 + 4.3 * len(points), 8.2)
        figure, axes = subplots(2, len(points), figsize=size, squeeze=False, subplot_kw=kind)
        for col, (label, places) in enumerate(points.items()):
            numbers = np.indices(places.shape[:2])
            for line, name in enumerate(("row", "column")):
                last = max(1, places.shape[line] - 1)
                # One scale for grids of all sizes.
                shade = numbers[line] if one_grid else numbers[line] / last
                axis = axes[line, col]
                for mesh in (*places, *places.transpose(1, 0, 2)):
                    axis.plot(*mesh.T, color="0.65", linewidth=0.7)
                dots = axis.scatter(
                    *places.reshape(-1, dimensions).T,
                    c=shade.ravel(),
                    cmap=RAMP,
                    s=26,
                    vmin=0,
                    vmax=last if one_grid else 1,
                    **solid,
                )
                for ticks in (axis.set_xticks, axis.set_yticks, getattr(axis, "set_zticks", list)):
                    ticks([])
                if line == 0:
                    axis.set_title(shortened(label))
                if col == len(points) - 1:
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


def draw_overview(looks: Mapping[str, Mapping[str, Look]], out: Path) -> list[Path]:
    """A row for each image: the image, and each model's mean over its heads.

    Args:
        looks: by model and image.
    """
    names = list(next(iter(looks.values())))
    with styled() as subplots:
        figure, axes = subplots(
            len(names),
            1 + len(looks),
            figsize=(3.1 * (1 + len(looks)), 0.4 + 3.1 * len(names)),
            squeeze=False,
        )
        for line, name in zip(axes, names, strict=True):
            line[0].set_ylabel(shortened(name, 24))
            for axis, shown in zip(line[1:], looks.values(), strict=True):
                picture, heads = shown[name]
                _overlay(axis, picture, heads.mean(axis=0))
            _show(line[0], next(iter(looks.values()))[name][0])
        axes[0, 0].set_title("image")
        for axis, label in zip(axes[0, 1:], looks, strict=True):
            axis.set_title(shortened(label, 24))
        figure.suptitle(
            "last self-attention, mean over heads;\neach map up to its own largest weight"
        )
        return write(figure, out, "attention", dpi=100)


def draw_heads(name: str, looks: Mapping[str, Look], out: Path) -> list[Path]:
    """For one image, a row for each model: the image, the mean, and every head."""
    most = max(len(heads) for _, heads in looks.values())
    with styled() as subplots:
        figure, axes = subplots(
            len(looks),
            2 + most,
            figsize=(2.3 * (2 + most), 0.5 + 2.5 * len(looks)),
            squeeze=False,
        )
        for line, (label, (picture, heads)) in zip(axes, looks.items(), strict=True):
            _show(line[0], picture)
            line[0].set_ylabel(shortened(label, 22))
            _overlay(line[1], picture, heads.mean(axis=0))
            line[1].set_title("mean")
            for number, axis in enumerate(line[2:]):
                if number < len(heads):
                    _overlay(axis, picture, heads[number])
                    axis.set_title(f"head {number + 1}")
                else:
                    axis.set_axis_off()
        figure.suptitle(
            f"last self-attention, {shortened(name, 60)}; each map up to its own largest weight"
        )
        return write(figure, out, f"attention-{name}", dpi=100)


def _show(axis: Any, picture: np.ndarray) -> None:
    axis.imshow(picture)
    bare(axis)


def _overlay(axis: Any, picture: np.ndarray, weights: np.ndarray) -> None:
    """The image in grey under its map; each map is scaled to its own largest weight."""
    grey = picture @ np.array([0.299, 0.587, 0.114])
    height, width = picture.shape[:2]
    _show(axis, np.repeat(grey[:, :, None], 3, axis=2))
    axis.imshow(
        weights,
        cmap=HEAT,
        alpha=0.62,
        vmin=0,
        vmax=max(float(weights.max()), 1e-12),
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        interpolation="bilinear",
    )
    axis.set_xlim(-0.5, width - 0.5)
    axis.set_ylim(height - 0.5, -0.5)
