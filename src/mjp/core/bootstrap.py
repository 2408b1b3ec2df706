"""Bootstrap intervals of means over images."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

RESAMPLES = 2000
LEVEL = 0.95
CHUNK = 10_000_000
"""Counts that are held at a time."""


@dataclass(frozen=True)
class Estimate:
    """A mean over images and the interval that 95 % of resampled means fall into."""

    mean: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(factor * self.mean, factor * self.low, factor * self.high)

    def values(self, name: str) -> dict[str, float]:
        """The estimate as three values of a record."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


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
