"""Numbers made of confidences and errors: calibration, ranking, detection, corruption error."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float
from sklearn.metrics import average_precision_score, roc_auc_score

ALEXNET_ERRORS: Mapping[str, float] = MappingProxyType(
    {
        "gaussian_noise": 0.886428,
        "shot_noise": 0.894468,
        "impulse_noise": 0.922640,
        "defocus_blur": 0.819880,
        "glass_blur": 0.826268,
        "motion_blur": 0.785948,
        "zoom_blur": 0.798360,
        "snow": 0.866816,
        "frost": 0.826572,
        "fog": 0.819324,
        "brightness": 0.564592,
        "contrast": 0.853204,
        "elastic_transform": 0.646056,
        "pixelate": 0.717840,
        "jpeg_compression": 0.606500,
    }
)
"""AlexNet's top-1 error on ImageNet-C, the mean over five severities of each corruption."""

CALIBRATION_BIN = 100
"""Images in a bin of the calibration error, as in ImageNet-A's own evaluation."""


def mean_corruption_error(errors: Mapping[str, Sequence[float]]) -> float:
    """mCE: each corruption's error over AlexNet's, averaged over the fifteen corruptions.

    Args:
        errors: top-1 error, between 0 and 1, at each severity of each corruption.
    """
    missing = [name for name in ALEXNET_ERRORS if name not in errors]
    if missing:
        raise ValueError(f"mCE is over all fifteen corruptions; {', '.join(missing)} is missing")
    shares = [np.mean(errors[name]) / error for name, error in ALEXNET_ERRORS.items()]
    return float(np.mean(shares))


def response_rate_accuracy(
    confidence: Float[np.ndarray, " images"], correct: Bool[np.ndarray, " images"]
) -> float:
    """AURRA: accuracy among the k most confident answers, averaged over all k.

    Equally confident answers count as answered in random order.
    """
    order = np.argsort(-confidence, kind="stable")
    _, first, counts = np.unique(-confidence[order], return_index=True, return_counts=True)
    right = np.add.reduceat(correct[order].astype(float), first)
    expected = np.repeat(right / counts, counts)
    return float(np.mean(np.cumsum(expected) / np.arange(1, len(order) + 1)))


def calibration_error(
    confidence: Float[np.ndarray, " images"],
    correct: Bool[np.ndarray, " images"],
    bin_size: int = CALIBRATION_BIN,
) -> float:
    """RMS distance between confidence and accuracy, over bins of equally many images.

    The last bin takes what is left over. (The code published with ImageNet-A leaves the last bin,
    that of the most confident answers, out.)
    """
    order = np.argsort(confidence, kind="stable")
    bins = max(1, len(order) // bin_size)
    edges = [bin_size * number for number in range(bins)]
    sizes = np.diff([*edges, len(order)])
    gaps = (
        np.add.reduceat(confidence[order].astype(float), edges)
        - np.add.reduceat(correct[order].astype(float), edges)
    ) / sizes
    return float(np.sqrt(np.sum(sizes * gaps**2) / len(order)))


def average_precision(
    outlier_scores: Float[np.ndarray, " outliers"], inlier_scores: Float[np.ndarray, " inliers"]
) -> float:
    """AUPR with outliers as the positive class."""
    return float(average_precision_score(*_labelled(outlier_scores, inlier_scores)))


def area_under_roc(
    outlier_scores: Float[np.ndarray, " outliers"], inlier_scores: Float[np.ndarray, " inliers"]
) -> float:
    """AUROC: the chance that an outlier scores higher than an inlier; equal scores count half."""
    return float(roc_auc_score(*_labelled(outlier_scores, inlier_scores)))


def false_alarm_rate(
    outlier_scores: Float[np.ndarray, " outliers"],
    inlier_scores: Float[np.ndarray, " inliers"],
    recall: float = 0.95,
) -> float:
    """FPR95: the share of inliers taken for outliers by the first threshold that finds 95 % of
    the outliers."""
    threshold = np.sort(outlier_scores)[::-1][int(np.ceil(recall * len(outlier_scores))) - 1]
    return float(np.mean(inlier_scores >= threshold))


def _labelled(outlier_scores: np.ndarray, inlier_scores: np.ndarray) -> tuple[np.ndarray, ...]:
    """1 for outliers and 0 for inliers; and the scores."""
    labels = np.repeat((1, 0), (len(outlier_scores), len(inlier_scores)))
    return labels, np.concatenate((outlier_scores, inlier_scores))
