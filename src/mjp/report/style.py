"""How figures look, and how they are written: PNG for reading, SVG for printing."""

from collections.abc import Iterator
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
    "axes.grid": False,
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
    return figure, figure.subplots(rows, cols, **more)


def look(number: int) -> dict[str, Any]:
    """Colour, marker and line of the number-th model of a plot."""
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number // len(COLORS) % len(LINES)],
    }


def bare(axis: Any) -> None:
    """Takes ticks and frame away, as of a picture."""
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(False)


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
        [handles[text] for text in order],
        order,
        loc="outside lower center",
        ncols=2,
        frameon=False,
        markerscale=1.2,
    )
