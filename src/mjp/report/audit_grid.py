"""Grids of pictures: the original, what the model was fed, and what each attack made of it."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mjp.report.style import shortened, styled

PAGE_WIDTH = 1100
"""Pixels that a page gives to a grid of pictures: letters grow with what is wider."""


@dataclass(frozen=True, eq=False)
class Panel:
    """A picture of a grid.

    Args:
        image: (height, width, 3) in [0, 1]; None where there is none.
        text: stands in its place then.
        heading: of its column; the first row that has one gives it.
    """

    image: np.ndarray | None
    caption: str
    text: str = "does not apply"
    heading: str = ""


@dataclass(frozen=True, eq=False)
class GridRow:
    """One picture in all its versions."""

    label: str
    panels: list[Panel]


@dataclass(frozen=True)
class _Layout:
    """Sizes in pixels: of a panel, of letters, and of the room for headings and captions.

    Args:
        line: letters that fit over a panel.
    """

    rows: int
    cols: int
    width: int
    height: int
    letter: float
    line: int
    head: int
    foot: int
    gap: int = 12

    @classmethod
    def of(cls, rows: Sequence[GridRow]) -> "_Layout":
        panels = [panel for row in rows for panel in row.panels]
        cols = max(len(row.panels) for row in rows)
        sizes = [panel.image.shape[:2] for panel in panels if panel.image is not None]
        height, width = np.max(sizes, axis=0).tolist() if sizes else (224, 224)
        times = max(1, round(224 / max(height, width)))
        width, height = width * times, height * times
        letter = min(max(13.0, 12.0 * cols * (width + cls.gap) / PAGE_WIDTH), width / 7.5)
        line = max(8, int(width / (0.58 * letter)))
        tall = [
            max((_wrapped(text, line).count("\n") + 1 for text in texts), default=1)
            for texts in ([one.heading for one in panels], [one.caption for one in panels])
        ]
        head, foot = (int(letter * (0.8 + 1.3 * lines)) for lines in tall)
        return cls(len(rows), cols, width, height, letter, line, head, foot)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the whole."""
        side = int(2 * self.letter)
        return (
            side + self.cols * (self.width + self.gap),
            self.head + self.rows * (self.height + self.foot),
        )

    def box(self, row: int, col: int) -> tuple[float, float, float, float]:
        """Where a panel is: left, bottom, width, height, as shares of the whole."""
        width, height = self.size
        left = int(2 * self.letter) + col * (self.width + self.gap)
        bottom = height - self.head - row * (self.height + self.foot) - self.height
        return left / width, bottom / height, self.width / width, self.height / height

    @property
    def font(self) -> float:
        """Size of letters in points, of which 72 are an inch of 100 pixels."""
        return 0.72 * self.letter


def draw_grid(rows: Sequence[GridRow], out: Path, name: str) -> list[Path]:
    """A row for each picture: the original, what the model was fed, what each attack made of it.

    Every pixel of a picture becomes a square of whole pixels, so nothing is blurred.
    """
    if not any(row.panels for row in rows):
        return []
    layout = _Layout.of(rows)
    with styled() as subplots:
        size = (layout.size[0] / 100, layout.size[1] / 100)
        figure, axes = subplots(layout.rows, layout.cols, figsize=size, squeeze=False)
        figure.set_layout_engine("none")
        for (r, c), axis in np.ndenumerate(axes):
            axis.set_position(layout.box(r, c))
            panels = rows[r].panels
            _show(axis, panels[c] if c < len(panels) else Panel(None, "", ""), layout)
        for col, axis in enumerate(axes[0]):
            heading = _heading(rows, col, layout.line)
            axis.set_title(heading, fontsize=layout.font, fontweight="bold", pad=5)
        for axis, row in zip(axes[:, 0], rows, strict=True):
            label = shortened(row.label, max(6, int(layout.height / (0.58 * layout.letter))))
            axis.set_ylabel(label, fontsize=layout.font)
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{name}.png"
        figure.savefig(path, dpi=100)
        return [path]


def _heading(rows: Sequence[GridRow], col: int, line: int) -> str:
    found = [row.panels[col].heading for row in rows if col < len(row.panels)]
    return _wrapped(next((text for text in found if text), ""), line)


def _wrapped(text: str, line: int) -> str:
    """The text in lines that are no longer than this, and the breaks that it has already."""
    return "\n".join(textwrap.fill(part, line) for part in text.splitlines())


def _show(axis: Any, panel: Panel, layout: _Layout) -> None:
    """A picture and its caption, or words in its place."""
    axis.set_xticks([])
    axis.set_yticks([])
    for edge in axis.spines.values():
        edge.set_visible(False)
    axis.set_xlabel(_wrapped(panel.caption, layout.line), fontsize=layout.font)
    if panel.image is not None:
        picture = np.clip(np.nan_to_num(np.asarray(panel.image, dtype=float)), 0, 1)
        axis.imshow(picture, interpolation="nearest")
    elif panel.text:
        axis.set_facecolor("#eeeeee")
        text = _wrapped(panel.text, max(6, layout.line - 3))
        middle = {"ha": "center", "va": "center", "transform": axis.transAxes}
        axis.text(0.5, 0.5, text, color="0.35", fontsize=layout.font, **middle)
