"""Bootstrap intervals of means over images."""

import numpy as np
from jaxtyping import Float

from mjp.core.statistics import LEVEL
from mjp.core.statistics import Estimate as Estimate

RESAMPLES = 2000
CHUNK = 10_000_000
"""Counts that are held at a time."""


def estimates(
    values: Float[np.ndarray, "images columns"], seed: int, resamples: int = RESAMPLES
) -> list[Estimate]:
    """The mean of each column, with its interval.

    Images are drawn with replacement, whole rows at a time: so several draws for one image count as
    one observation, and columns may be differences of two models on the same image.
    """
    images, columns = values.shape
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, columns))
    chunk = max(1, min(resamples, CHUNK // max(1, images)))
    for start in range(0, resamples, chunk):
        stop = min(resamples, start + chunk)
        counts = np.stack(
            [
                np.bincount(rng.integers(images, size=images), minlength=images)
                for _ in range(stop - start)
            ]
        )
        means[start:stop] = counts.astype(np.float64) @ values / images
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return [
        Estimate(float(mean), float(min(lowest, mean)), float(max(highest, mean)))
        for mean, lowest, highest in zip(values.mean(axis=0), low, high, strict=True)
    ]
