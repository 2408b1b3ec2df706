"""Attention over images: an overview of all models, and every head of each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mjp.report.style import bare, shortened, styled, write

HEAT = "inferno"


def draw_overview(
    pictures: Mapping[str, Mapping[str, np.ndarray]],
    means: Mapping[str, Mapping[str, np.ndarray]],
    out: Path,
) -> list[Path]:
    """A row for each image: the image, and each model's mean over its heads.

    Args:
        pictures: (height, width, 3) in [0, 1] as each model saw it, by model and image.
        means: (rows, cols), by model and image.
    """
    labels, names = list(means), list(next(iter(means.values())))
    with styled() as subplots:
        figure, axes = subplots(
            len(names),
            1 + len(labels),
            figsize=(3.1 * (1 + len(labels)), 0.4 + 3.1 * len(names)),
            squeeze=False,
        )
        for line, name in zip(axes, names, strict=True):
            _show(line[0], pictures[labels[0]][name])
            line[0].set_ylabel(shortened(name, 24))
            for axis, label in zip(line[1:], labels, strict=True):
                _overlay(axis, pictures[label][name], means[label][name])
        axes[0, 0].set_title("image")
        for axis, label in zip(axes[0, 1:], labels, strict=True):
            axis.set_title(shortened(label, 24))
        figure.suptitle(
            "last self-attention, mean over heads;\neach map up to its own largest weight"
        )
        return write(figure, out, "attention", dpi=100)


def draw_heads(
    name: str,
    pictures: Mapping[str, np.ndarray],
    heads: Mapping[str, np.ndarray],
    out: Path,
    file: str,
) -> list[Path]:
    """For one image, a row for each model: the image, the mean, and every head.

    Args:
        heads: (heads, rows, cols) by model.
    """
    most = max(len(one) for one in heads.values())
    with styled() as subplots:
        figure, axes = subplots(
            len(heads),
            2 + most,
            figsize=(2.3 * (2 + most), 0.5 + 2.5 * len(heads)),
            squeeze=False,
        )
        for line, (label, maps) in zip(axes, heads.items(), strict=True):
            _show(line[0], pictures[label])
            line[0].set_ylabel(shortened(label, 22))
            _overlay(line[1], pictures[label], maps.mean(axis=0))
            line[1].set_title("mean")
            for number, axis in enumerate(line[2:]):
                if number < len(maps):
                    _overlay(axis, pictures[label], maps[number])
                    axis.set_title(f"head {number + 1}")
                else:
                    axis.set_axis_off()
        figure.suptitle(
            f"last self-attention, {shortened(name, 60)}; each map up to its own largest weight"
        )
        return write(figure, out, file, dpi=100)


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
