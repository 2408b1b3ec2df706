"""Figures of trainings and evaluations: curves with intervals, maps of corruptions, confidence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mjp.core.records import Record
from mjp.report.style import RAMP, legend_below, look, shortened, styled, write
from mjp.report.table import differences, number, split, text_of

JIGSAW_PANELS = (
    ("accuracy", "top-1 accuracy of the jigsaw, %"),
    ("consistency", "consistency: same class as\nwithout the jigsaw, %"),
    ("diff_norm", "Diff. Norm.: distance between\nfeatures"),
)
TRAINING_PANELS = (
    ("classification", "classification loss on training images"),
    ("val_top1", "top-1 accuracy on validation images, %"),
    ("localization", "localization loss (DAL):\nerror in cells of the grid"),
)
SEVERITIES = (1, 2, 3, 4, 5)


def draw_curves(records: Sequence[Record], out: Path) -> list[Path]:
    """One line for each model, with its 95 % interval, over the share of patches moved."""
    lines = _evaluations([record for record in records if record.kind == "eval jigsaw"])
    clean = _evaluations([record for record in records if record.kind == "eval accuracy"])
    if not lines:
        return []
    with styled() as subplots:
        height = 4.6 + 0.24 * ((len(lines) + 1) // 2)
        figure, axes = subplots(1, 3, figsize=(13.5, height))
        for axis, (value, title) in zip(axes, JIGSAW_PANELS, strict=True):
            for place, (label, line) in enumerate(lines.items()):
                start = _start(value, clean.get(label, []))
                _draw_line(axis, value, label, [*start, *_points(value, line)], place)
            axis.set_title(title)
            axis.set_xlabel("share of patches moved")
            axis.set_xlim(-0.02, 1)
            axis.grid(alpha=0.25)
        axes[1].set_ylim(top=101)
        axes[2].set_ylim(bottom=0)
        legend_below(figure, axes[:1])
        return write(figure, out, "jigsaw")


Point = tuple[float, float, float, float]


def _evaluations(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records by model, and by what else was not the same of two evaluations of one model."""
    groups: dict[str, list[Record]] = {}
    for some in split(records, "model"):
        for record, text in zip(some, differences(some, besides=("ratio", "draws")), strict=True):
            told = record.conditions
            label = f"{told.get('model')} ({told.get('jigsaw')})"
            groups.setdefault(f"{label}, {text}" if text else label, []).append(record)
    return groups


def _three(record: Record, value: str) -> tuple[float, float, float] | None:
    middle, low, high = (number(record.values, f"{value}{end}") for end in ("", "_low", "_high"))
    if middle is None:
        return None
    return middle, middle if low is None else low, middle if high is None else high


def _start(value: str, clean: Sequence[Record]) -> list[Point]:
    """Where no patch is moved."""
    if value != "accuracy":
        same = {"consistency": 100.0, "diff_norm": 0.0}[value]
        return [(0.0, same, same, same)]
    three = _three(clean[-1], "top1") if clean else None
    return [] if three is None else [(0.0, *three)]


def _points(value: str, records: Sequence[Record]) -> list[Point]:
    points = []
    for record in records:
        moved, patches = (number(record.values, name) for name in ("patches_moved", "patches"))
        three = _three(record, value)
        if moved is not None and patches and three is not None:
            points.append((moved / patches, *three))
    return sorted(points)


def _draw_line(axis: Any, value: str, label: str, points: list[Point], place: int) -> None:
    if points:
        ratio, middle, low, high = zip(*points, strict=True)
        style = look(place)
        axis.plot(ratio, middle, label=label, markersize=6, linewidth=1.8, **style)
        axis.fill_between(ratio, low, high, color=style["color"], alpha=0.18, linewidth=0)


def draw_corruptions(records: Sequence[Record], out: Path) -> list[Path]:
    """Top-1 error at each severity of each corruption, in its cell; a map for each model."""
    maps = split([record for record in records if record.kind == "eval corruption"], "model")
    names = list(dict.fromkeys(text_of(r.conditions, "corruption") for some in maps for r in some))
    if not maps:
        return []
    with styled() as subplots:
        size = (2.6 + 3.5 * len(maps), 1.6 + 0.36 * len(names))
        figure, axes = subplots(1, len(maps), figsize=size, squeeze=False, sharey=True)
        for axis, some in zip(axes[0], maps, strict=True):
            by_name = {text_of(record.conditions, "corruption"): record for record in some}
            cells = np.full((len(names), len(SEVERITIES)), np.nan)
            for row, name in enumerate(names):
                for col, severity in enumerate(SEVERITIES):
                    found = name in by_name
                    error = number(by_name[name].values, f"error_{severity}") if found else None
                    cells[row, col] = np.nan if error is None else error
            picture = axis.imshow(cells, cmap=RAMP, vmin=0, vmax=100, aspect="auto")
            for (row, col), error in np.ndenumerate(cells):
                if not np.isnan(error):
                    color = "black" if error > 55 else "white"
                    middle = {"ha": "center", "va": "center", "fontsize": 10}
                    axis.text(col, row, f"{error:.0f}", color=color, **middle)
            axis.set_title(shortened(text_of(some[0].conditions, "model")))
            axis.set_xticks(range(len(SEVERITIES)), SEVERITIES)
            axis.set_xlabel("severity")
            axis.tick_params(length=0)
        axes[0, 0].set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        figure.colorbar(picture, ax=list(axes[0]), label="top-1 error, %", aspect=40)
        return write(figure, out, "corruptions")


def draw_training(records: Sequence[Record], out: Path) -> list[Path]:
    """Losses and accuracy over the epochs, a line for each folder; nothing without an epoch."""
    epochs = split([record for record in records if record.kind == "train epoch"], "folder")
    panels = [
        (name, title)
        for name, title in TRAINING_PANELS
        if any(number(record.values, name) for some in epochs for record in some)
    ]
    if not panels:
        return []
    with styled() as subplots:
        height = 4.2 + 0.24 * ((len(epochs) + 1) // 2)
        figure, axes = subplots(1, len(panels), figsize=(4.5 * len(panels), height), squeeze=False)
        for axis, (name, title) in zip(axes[0], panels, strict=True):
            for place, some in enumerate(epochs):
                both = [(number(r.conditions, "epoch"), number(r.values, name)) for r in some]
                points = [(e, v) for e, v in both if e is not None and v is not None]
                if name == "localization" and not any(value for _, value in points):
                    points = []  # A run without the loss records zeros.
                label = text_of(some[0].conditions, "folder")
                every = max(1, len(points) // 10)
                lines = zip(*points, strict=True) if points else ([], [])
                axis.plot(*lines, label=label, markevery=every, markersize=5, **look(place))
            axis.set_title(title)
            axis.set_xlabel("epoch")
            axis.grid(alpha=0.25)
        legend_below(figure, axes[0])
        return write(figure, out, "training")


def draw_response_rates(
    found: Mapping[str, tuple[np.ndarray, np.ndarray]], out: Path
) -> list[Path]:
    """Accuracy among the most confident answers, over the share that is answered.

    Args:
        found: confidence and correctness of each image, by model.
    """
    with styled() as subplots:
        figure, (left, right) = subplots(1, 2, figsize=(11, 4.8))
        for number, (label, (confidence, correct)) in enumerate(found.items()):
            order = np.argsort(-confidence, kind="stable")
            answered = np.arange(1, len(order) + 1)
            accuracy = 100 * np.cumsum(correct[order]) / answered
            style = look(number)
            start = min(len(order) - 1, 10)  # The first few answers are noise.
            rate = 100 * answered / len(order)
            color, line = style["color"], style["linestyle"]
            left.plot(rate[start:], accuracy[start:], label=label, color=color, linestyle=line)
            parts = np.array_split(order[::-1], max(1, min(15, len(order) // 20)))
            sure = [100 * confidence[part].mean() for part in parts]
            true = [100 * correct[part].mean() for part in parts]
            right.plot(sure, true, label=label, markersize=6, **style)
        right.plot([0, 100], [0, 100], color="0.5", linewidth=1, label="perfectly calibrated")
        left.set_xlabel("share of images answered, most confident first, %")
        left.set_ylabel("accuracy among those, %")
        left.set_title("response rate and accuracy")
        right.set_xlabel("confidence, %")
        right.set_ylabel("accuracy, %")
        right.set_title("calibration, bins of equally many images")
        left.legend(frameon=False)
        right.legend(frameon=False)
        for axis in (left, right):
            axis.grid(alpha=0.25)
            axis.set_ylim(0, 101)
        return write(figure, out, "imagenet-a")


def draw_outliers(found: Mapping[str, tuple[np.ndarray, np.ndarray]], out: Path) -> list[Path]:
    """How confident each model is on outliers and on inliers, and what can be told from it.

    Args:
        found: confidence on outliers and on inliers, by model.
    """
    with styled() as subplots:
        figure, axes = subplots(
            1,
            len(found) + 1,
            figsize=(4.4 * (len(found) + 1), 4.6),
            squeeze=False,
        )
        bins = np.linspace(0, 1, 26)
        for axis, (label, (outliers, inliers)) in zip(axes[0, :-1], found.items(), strict=True):
            for values, name, number in ((inliers, "inliers", 0), (outliers, "outliers", 1)):
                color = look(number)["color"]
                weights = np.full(len(values), 100 / len(values))
                hatch = "//" if number else None
                axis.hist(
                    values, bins, weights=weights, color=color, alpha=0.55, label=name, hatch=hatch
                )
            axis.set_title(label)
            axis.set_xlabel("largest softmax")
            axis.set_ylabel("share of images, %")
            axis.legend(frameon=False)
        for number, (label, (outliers, inliers)) in enumerate(found.items()):
            thresholds = np.unique(np.concatenate((outliers, inliers)))
            caught = np.searchsorted(np.sort(outliers), thresholds, side="right") / len(outliers)
            alarms = np.searchsorted(np.sort(inliers), thresholds, side="right") / len(inliers)
            style = look(number)
            axes[0, -1].plot(
                100 * np.append(0, alarms),
                100 * np.append(0, caught),
                label=label,
                color=style["color"],
                linestyle=style["linestyle"],
            )
        axes[0, -1].plot([0, 100], [0, 100], color="0.5", linewidth=1, label="chance")
        axes[0, -1].set_title("detection")
        axes[0, -1].set_xlabel("inliers wrongly flagged, %")
        axes[0, -1].set_ylabel("outliers found, %")
        axes[0, -1].legend(frameon=False, loc="lower right")
        axes[0, -1].grid(alpha=0.25)
        return write(figure, out, "imagenet-o")
