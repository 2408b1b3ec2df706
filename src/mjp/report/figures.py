"""Figures of trainings and evaluations: curves with intervals, maps of corruptions, confidence."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mjp.core.records import Record
from mjp.report.style import RAMP, draw_line, legend_below, look, shortened, styled, write
from mjp.report.table import differences, interval, number, split, text_of

JIGSAW_PANELS = {
    "accuracy": "top-1 accuracy of the jigsaw, %",
    "consistency": "consistency: same class as\nwithout the jigsaw, %",
    "diff_norm": "Diff. Norm.: distance between\nfeatures",
}
UNMOVED = {"consistency": (100.0, 100.0, 100.0), "diff_norm": (0.0, 0.0, 0.0)}
"""What a jigsaw that moves nothing gives."""
TRAINING_PANELS = {
    "classification": "classification loss on training images",
    "val_top1": "top-1 accuracy on validation images, %",
    "localization": "localization loss (DAL):\nerror in cells of the grid",
}
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
        for axis, (value, title) in zip(axes[0], JIGSAW_PANELS.items(), strict=True):
            for place, (label, line) in enumerate(lines.items()):
                points = _points(value, line, clean.get(label, []))
                draw_line(axis, points, label, **look(place))
            axis.set(title=title, xlabel="share of patches moved", xlim=(-0.02, 1))
            axis.grid()
        axes[0, 1].set_ylim(top=101)
        axes[0, 2].set_ylim(bottom=0)
        legend_below(figure, axes[0, :1])
        return write(figure, out, "jigsaw")


def _evaluations(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records by model, and by what else was not the same of two evaluations of one model."""
    groups: dict[str, list[Record]] = {}
    for some in split(records, "model"):
        for record, text in zip(some, differences(some, besides=("ratio", "draws")), strict=True):
            told = record.conditions
            label = f"{told.get('model')} ({told.get('jigsaw')})"
            groups.setdefault(f"{label}, {text}" if text else label, []).append(record)
    return groups


def _points(
    value: str, records: Sequence[Record], clean: Sequence[Record]
) -> list[tuple[float, float, float, float]]:
    """The share of patches moved and what came out, from where no patch is moved on."""
    start = interval(clean[-1].values, "top1") if clean else None
    start = UNMOVED.get(value, start)
    points = [] if start is None else [(0.0, *start)]
    for record in records:
        moved, patches = (number(record.values, name) for name in ("patches_moved", "patches"))
        three = interval(record.values, value)
        if moved is not None and patches and three is not None:
            points.append((moved / patches, *three))
    return points


def draw_corruptions(records: Sequence[Record], out: Path) -> list[Path]:
    """Top-1 error at each severity of each corruption, in its cell; a map for each model."""
    maps = split([record for record in records if record.kind == "eval corruption"], "model")
    names = list(dict.fromkeys(text_of(r.conditions, "corruption") for some in maps for r in some))
    if not maps:
        return []
    with styled() as subplots:
        size = (2.6 + 3.5 * len(maps), 1.6 + 0.36 * len(names))
        figure, axes = subplots(1, len(maps), figsize=size, sharey=True)
        for axis, some in zip(axes[0], maps, strict=True):
            values = {text_of(record.conditions, "corruption"): record.values for record in some}
            errors = np.array(
                [[number(values.get(n, {}), f"error_{s}") for s in SEVERITIES] for n in names],
                dtype=float,  # NaN where there is none.
            )
            picture = axis.imshow(errors, cmap=RAMP, vmin=0, vmax=100, aspect="auto")
            for (row, col), error in np.ndenumerate(errors):
                if not np.isnan(error):
                    color = "black" if error > 55 else "white"
                    middle = {"ha": "center", "va": "center", "fontsize": 10}
                    axis.text(col, row, f"{error:.0f}", color=color, **middle)
            axis.set(title=shortened(text_of(some[0].conditions, "model")), xlabel="severity")
            axis.set_xticks(range(len(SEVERITIES)), SEVERITIES)
            axis.tick_params(length=0)
        axes[0, 0].set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        figure.colorbar(picture, ax=list(axes[0]), label="top-1 error, %", aspect=40)
        return write(figure, out, "corruptions")


def draw_training(records: Sequence[Record], out: Path) -> list[Path]:
    """Losses and accuracy over the epochs, a line for each folder; nothing without an epoch."""
    epochs = split([record for record in records if record.kind == "train epoch"], "folder")
    panels = [
        name
        for name in TRAINING_PANELS
        if any(number(record.values, name) for some in epochs for record in some)
    ]
    if not panels:
        return []
    with styled() as subplots:
        height = 4.2 + 0.24 * ((len(epochs) + 1) // 2)
        figure, axes = subplots(1, len(panels), figsize=(4.5 * len(panels), height))
        for axis, name in zip(axes[0], panels, strict=True):
            for place, some in enumerate(epochs):
                both = [(number(r.conditions, "epoch"), number(r.values, name)) for r in some]
                points = [(e, v) for e, v in both if e is not None and v is not None]
                if name == "localization" and not any(value for _, value in points):
                    points = []  # A run without the loss records zeros.
                label = text_of(some[0].conditions, "folder")
                every = max(1, len(points) // 10)
                lines = np.array(points).reshape(-1, 2).T
                axis.plot(*lines, label=label, markevery=every, markersize=5, **look(place))
            axis.set(title=TRAINING_PANELS[name], xlabel="epoch")
            axis.grid()
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
        figure, ((left, right),) = subplots(1, 2, figsize=(11, 4.8))
        for place, (label, (confidence, correct)) in enumerate(found.items()):
            style = look(place)
            order = np.argsort(-confidence, kind="stable")
            answered = np.arange(1, len(order) + 1)
            rate, accuracy = 100 * answered / len(order), 100 * np.cumsum(correct[order]) / answered
            start = min(len(order) - 1, 10)  # The first few answers are noise.
            left.plot(rate[start:], accuracy[start:], label=label, **{**style, "marker": ""})
            parts = np.array_split(order[::-1], max(1, min(15, len(order) // 20)))
            sure, true = (
                [100 * values[part].mean() for part in parts] for values in (confidence, correct)
            )
            right.plot(sure, true, label=label, **style)
        right.plot([0, 100], [0, 100], color="0.5", linewidth=1, label="perfectly calibrated")
        left.set(
            title="response rate and accuracy",
            xlabel="share of images answered, most confident first, %",
            ylabel="accuracy among those, %",
        )
        right.set(
            title="calibration, bins of equally many images",
            xlabel="confidence, %",
            ylabel="accuracy, %",
        )
        for axis in (left, right):
            axis.legend()
            axis.grid()
            axis.set_ylim(0, 101)
        return write(figure, out, "imagenet-a")


def draw_outliers(found: Mapping[str, tuple[np.ndarray, np.ndarray]], out: Path) -> list[Path]:
    """How confident each model is on outliers and on inliers, and what can be told from it.

    Args:
        found: confidence on outliers and on inliers, by model.
    """
    from sklearn.metrics import roc_curve

    with styled() as subplots:
        figure, axes = subplots(1, len(found) + 1, figsize=(4.4 * (len(found) + 1), 4.6))
        *histograms, detection = axes[0]
        for place, (label, (outliers, inliers)) in enumerate(found.items()):
            axis = histograms[place]
            for which, values in enumerate((inliers, outliers)):
                axis.hist(
                    values,
                    np.linspace(0, 1, 26),
                    weights=np.full(len(values), 100 / len(values)),
                    color=look(which)["color"],
                    alpha=0.55,
                    label=("inliers", "outliers")[which],
                    hatch=(None, "//")[which],
                )
            axis.set(title=label, xlabel="largest softmax", ylabel="share of images, %")
            axis.legend()
            is_outlier = np.repeat((1, 0), (len(outliers), len(inliers)))
            alarms, caught, _ = roc_curve(is_outlier, -np.concatenate((outliers, inliers)))
            style = {**look(place), "marker": ""}
            detection.plot(100 * alarms, 100 * caught, label=label, **style)
        detection.plot([0, 100], [0, 100], color="0.5", linewidth=1, label="chance")
        detection.set(
            title="detection", xlabel="inliers wrongly flagged, %", ylabel="outliers found, %"
        )
        detection.legend(loc="lower right")
        detection.grid()
        return write(figure, out, "imagenet-o")
