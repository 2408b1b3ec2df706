"""What a page says of the demonstration: the four panels, the method, and what it cannot show."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mjp.core.records import Record
from mjp.report.page import Renderer, Section, embedded
from mjp.report.runs import Run
from mjp.report.style import styled, write

CHAPTER = "The demonstration"
PANELS, METHOD = "demo panels", "demo"
PANELS_FILE, METHOD_FILE = "panels.png", "method.png"


def demo_sections(runs: Sequence[Run], renderer: Renderer) -> list[Section]:
    """Sections on the demonstration, where the runs are of one."""
    sections = []
    for run in runs:
        panels, method = run.of(PANELS), run.of(METHOD)
        if panels and (run.folder / PANELS_FILE).is_file():
            figure = embedded(
                run.folder / PANELS_FILE,
                "Four pictures: a photograph, and what three attackers rebuilt of it",
                "From left to right: a photograph, and what an attacking server rebuilds of it "
                "from one gradient: of a plain ViT, of one with MJP, and of one with MJP by an "
                "attacker who knows MJP.",
            )
            body = renderer.fill("demo_panels.html", figure=figure, record=panels[-1])
            sections.append(Section("panels", "What a gradient gives away", body))
            scale = renderer.fill("demo_scale.html")
            sections.append(Section("scale", "What this small scale shows", scale, CHAPTER))
        if method and (run.folder / METHOD_FILE).is_file():
            figure = embedded(
                run.folder / METHOD_FILE,
                "Six panels: photograph, masked blocks, jigsaw, its inverse, identity, gradient",
                "The method on a photograph, with random weights. The last panel is a warning: "
                "masked positions get a gradient of exactly zero, so the mask itself is seen.",
            )
            body = renderer.fill("demo_method.html", figure=figure, record=method[-1])
            sections.append(Section("demo-method", "The method on a photograph", body, CHAPTER))
    return sections


def draw_panels(panels: Sequence[tuple[str, str, np.ndarray]], out: Path) -> Path:
    """Pictures side by side, each with a heading and words below it.

    Args:
        panels: heading, words, and (height, width, 3) in [0, 1] of each.
    """
    with styled() as subplots:
        figure, axes = subplots(1, len(panels), figsize=(3.1 * len(panels), 4.0), squeeze=False)
        for axis, (heading, below, picture) in zip(axes[0], panels, strict=True):
            _show(axis, heading, below, picture)
        return write(figure, out, Path(PANELS_FILE).stem, dpi=110)[0]


def _show(axis: Any, heading: str, below: str, picture: np.ndarray) -> None:
    axis.imshow(np.clip(picture, 0, 1), interpolation="nearest")
    axis.set_title(heading, fontsize=12, fontweight="bold")
    axis.set_xlabel(below, fontsize=11)
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(False)


def panel_record(conditions: dict[str, Any], values: dict[str, Any]) -> Record:
    """What the four panels show, as a record."""
    return Record(PANELS, conditions, values)
