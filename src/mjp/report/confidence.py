"""Pictures of how sure models are: accuracy by response rate, detection of outliers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mjp.report.style import look, styled, write


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
