"""The curves over the inference ratio: accuracy, consistency, Diff. Norm."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mjp.core.records import Record
from mjp.report.style import look, styled, write

PANELS = (
    ("accuracy", "top-1 accuracy of the jigsaw, %"),
    ("consistency", "consistency: same class as\nwithout the jigsaw, %"),
    ("diff_norm", "Diff. Norm.: distance between\nfeatures"),
)


def draw_curves(records: Iterable[Record], out: Path) -> list[Path]:
    """One line for each model, with its 95 % interval, over the share of patches moved."""
    points: dict[str, list[Record]] = {}
    clean: dict[str, Record] = {}
    for record in records:
        label = str(record.conditions["model"])
        if record.kind == "eval jigsaw":
            points.setdefault(label, []).append(record)
        elif record.kind == "eval accuracy":
            clean[label] = record
    if not points:
        return []
    with styled() as subplots:
        height = 4.6 + 0.24 * ((len(points) + 1) // 2)
        figure, axes = subplots(1, 3, figsize=(13.5, height))
        for axis, (value, title) in zip(axes, PANELS, strict=True):
            for number, (label, found) in enumerate(points.items()):
                _draw_line(axis, value, _label(label, found[0]), found, clean.get(label), number)
            axis.set_title(title)
            axis.set_xlabel("share of patches moved")
            axis.set_xlim(-0.02, 1)
            axis.grid(alpha=0.25)
        axes[1].set_ylim(top=101)
        axes[2].set_ylim(bottom=0)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=2, frameon=False, markerscale=1.2
        )
        return write(figure, out, "jigsaw")


def _label(label: str, record: Record) -> str:
    return f"{label} ({record.conditions['jigsaw']})"


def _draw_line(
    axis: Any, value: str, label: str, found: list[Record], clean: Record | None, number: int
) -> None:
    start = {"accuracy": None, "consistency": 100.0, "diff_norm": 0.0}[value]
    rows = [(0.0, start, start, start)] if start is not None else []
    if value == "accuracy" and clean is not None:
        top1 = clean.values
        rows = [(0.0, top1["top1"], top1["top1_low"], top1["top1_high"])]  # type: ignore[list-item]
    for record in sorted(found, key=lambda one: float(str(one.conditions["ratio"]))):
        share = float(str(record.values["patches_moved"])) / float(str(record.values["patches"]))
        three = (record.values[f"{value}{end}"] for end in ("", "_low", "_high"))
        rows.append((share, *three))  # type: ignore[arg-type]
    ratio, middle, low, high = zip(*rows, strict=True)
    style = look(number)
    axis.plot(ratio, middle, label=label, markersize=6, linewidth=1.8, **style)
    axis.fill_between(ratio, low, high, color=style["color"], alpha=0.18, linewidth=0)
