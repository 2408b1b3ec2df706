"""Grids of pictures: a row for each picture in all its versions, every pixel kept."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mjp.report.style import bare, shortened, styled, write

PAGE_WIDTH = 1100
"""Pixels that a page gives to a grid of pictures: letters grow with what is wider."""
GAP = 12
"""Pixels between two pictures."""


@dataclass(frozen=True, eq=False)
class Panel:
    """A picture of a grid.

    Args:
        heading: of its column.
        image: (height, width, 3) in [0, 1]; None where there is none.
        text: stands in its place then.
    """

    heading: str
    image: np.ndarray | None
    caption: str = ""
    text: str = ""


def draw_grid(
    rows: Sequence[Sequence[Panel]], labels: Sequence[str], title: str, out: Path, name: str
) -> list[Path]:
    """A row for each picture, with a label at its side; nothing without one.

    Every pixel of a picture becomes a square of whole pixels, so nothing is blurred.
    """
    panels = [panel for row in rows for panel in row]
    if not panels:
        return []
    sizes = [panel.image.shape[:2] for panel in panels if panel.image is not None]
    height, width = np.max(sizes, axis=0).tolist() if sizes else (224, 224)
    times = max(1, round(224 / max(height, width)))
    height, width = height * times, width * times
    cols = max(map(len, rows))
    letter = min(max(13.0, 12.0 * cols * (width + GAP) / PAGE_WIDTH), width / 7.5)
    line = max(8, int(width / (0.58 * letter)))  # Letters that fit over a panel.
    head, foot = (
        int(letter * (0.8 + 1.3 * max(_wrapped(text, line).count("\n") + 1 for text in texts)))
        for texts in ([panel.heading for panel in panels], [panel.caption for panel in panels])
    )
    side, top = int(2 * letter), int(2 * letter)
    whole = (side + cols * (width + GAP), top + head + len(rows) * (height + foot))
    font = 0.72 * letter  # In points, of which 72 are an inch of 100 pixels.
    with styled() as subplots:
        size = (whole[0] / 100, whole[1] / 100)
        figure, axes = subplots(len(rows), cols, figsize=size)
        figure.set_layout_engine("none")
        for (row, col), axis in np.ndenumerate(axes):
            left = side + col * (width + GAP)
            bottom = whole[1] - top - head - row * (height + foot) - height
            axis.set_position(
                (left / whole[0], bottom / whole[1], width / whole[0], height / whole[1])
            )
            bare(axis)
            if col < len(rows[row]):
                _show(axis, rows[row][col], font, line)
            if row == 0 and col < len(rows[0]):
                heading = _wrapped(rows[0][col].heading, line)
                axis.set_title(heading, fontsize=font, fontweight="bold", pad=5)
        for axis, label in zip(axes[:, 0], labels, strict=True):
            fitting = shortened(label, max(6, int(height / (0.58 * letter))))
            axis.set_ylabel(fitting, fontsize=font)
        place = {"x": side / whole[0], "y": 1 - 0.4 * letter / whole[1], "ha": "left", "va": "top"}
        figure.suptitle(shortened(title, int(whole[0] / (0.62 * letter))), fontsize=font, **place)
        return write(figure, out, name, dpi=100, vectors=False)


def _wrapped(text: str, line: int) -> str:
    """The text in lines that are no longer than this, and the breaks that it has already."""
    return "\n".join(textwrap.fill(part, line) for part in text.splitlines())


def _show(axis: Any, panel: Panel, font: float, line: int) -> None:
    """A picture and its caption, or words in its place."""
    axis.set_xlabel(_wrapped(panel.caption, line), fontsize=font)
    if panel.image is not None:
        picture = np.clip(np.nan_to_num(np.asarray(panel.image, dtype=float)), 0, 1)
        axis.imshow(picture, interpolation="nearest")
    elif panel.text:
        axis.set_facecolor("#eeeeee")
        text = _wrapped(panel.text, max(6, line - 3))
        middle = {"ha": "center", "va": "center", "transform": axis.transAxes}
        axis.text(0.5, 0.5, text, color="0.35", fontsize=font, **middle)
