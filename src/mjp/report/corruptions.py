"""Errors under corruption as a picture: a map of corruption and severity for each model."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mjp.core.records import Record
from mjp.data.corruptions import SEVERITIES
from mjp.report.style import RAMP, shortened, styled, write


def draw_corruptions(records: Iterable[Record], out: Path) -> list[Path]:
    """Top-1 error at each severity of each corruption, written into its cell."""
    found: dict[str, dict[str, Record]] = {}
    for record in records:
        if record.kind == "eval corruption":
            label = str(record.conditions["model"])
            found.setdefault(label, {})[str(record.conditions["corruption"])] = record
    if not found:
        return []
    names = list(dict.fromkeys(name for errors in found.values() for name in errors))
    with styled() as subplots:
        figure, axes = subplots(
            1,
            len(found),
            figsize=(2.6 + 3.5 * len(found), 1.6 + 0.36 * len(names)),
            squeeze=False,
            sharey=True,
        )
        for axis, (label, errors) in zip(axes[0], found.items(), strict=True):
            cells = np.array(
                [[float(str(errors[n].values[f"error_{s}"])) for s in SEVERITIES] for n in names]
            )
            picture = axis.imshow(cells, cmap=RAMP, vmin=0, vmax=100, aspect="auto")
            for row, col in np.ndindex(cells.shape):
                color = "black" if cells[row, col] > 55 else "white"
                text = f"{cells[row, col]:.0f}"
                axis.text(col, row, text, ha="center", va="center", color=color, fontsize=10)
            axis.set_title(shortened(label))
            axis.set_xticks(range(len(SEVERITIES)), SEVERITIES)
            axis.set_xlabel("severity")
            axis.tick_params(length=0)
        axes[0, 0].set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        figure.colorbar(picture, ax=list(axes[0]), label="top-1 error, %", aspect=40)
        return write(figure, out, "corruptions")
