"""How figures look, and how they are written: PNG for reading, SVG for printing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's colours, which people with any colour vision can tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
RAMP = "cividis"
"""A colour map that is the same to people with any colour vision."""

_RC = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.labelsize": 12,
    "legend.fontsize": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "text.parse_math": False,  # Labels are people's own: a dollar is a dollar.
    "svg.fonttype": "none",
    "svg.hashsalt": "mjp",
    "savefig.facecolor": "white",
}


@contextmanager
def styled() -> Iterator[Any]:
    """Our style inside; gives a function that makes a figure and its axes, as pyplot's does, but
    leaves pyplot, its backend and the reader's own figures alone."""
    with matplotlib.rc_context(_RC):
        yield _subplots


def _subplots(
    rows: int, cols: int, *, figsize: tuple[float, float], **more: Any
) -> tuple[Figure, Any]:
    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, cols, squeeze=False, **more)


def look(number: int) -> dict[str, Any]:
    """Colour, marker and line of the number-th model of a plot."""
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number // len(COLORS) % len(LINES)],
    }


def draw_line(
    axis: Any, points: Iterable[tuple[float, float, float, float]], label: str, **style: Any
) -> None:
    """A line through the middles of points (x, middle, low, high), and a band between the ends."""
    if points := sorted(points):
        x, middle, low, high = zip(*points, strict=True)
        axis.plot(x, middle, label=label, **style)
        axis.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)


def bare(axis: Any) -> None:
    """Takes ticks and frame away, as of a picture."""
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def write(figure: Any, out: Path, name: str, *, dpi: int = 130, vectors: bool = True) -> list[Path]:
    """Writes the figure as PNG and, if it is of lines, as SVG; the paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.png", *([out / f"{name}.svg"] if vectors else [])]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=dpi, metadata=metadata)
    return paths


def shortened(text: str, length: int = 28) -> str:
    """A label that fits over a panel."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def legend_below(figure: Any, axes: Any) -> None:
    """One legend for all panels, below them; guesses last."""
    pairs = [axis.get_legend_handles_labels() for axis in axes]
    handles = {text: handle for pair in pairs for handle, text in zip(*pair, strict=True)}
    order = sorted(handles, key=lambda text: text.startswith("trivial"))
    figure.legend(
        map(handles.get, order), order, loc="outside lower center", ncols=2, markerscale=1.2
    )
