"""Means over images, with Student's 95 % intervals."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval; a single value has none, and its ends are NaN."""

    mean: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(factor * self.mean, factor * self.low, factor * self.high)

    def percent(self) -> "Estimate":
        """The estimate of a share of 1 in percent, its interval within 0 and 100."""
        low, high = max(100 * self.low, 0.0), min(100 * self.high, 100.0)
        return Estimate(100 * self.mean, low, high)

    def values(self, name: str) -> dict[str, float]:
        """The estimate as three values of a record."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


def estimates(values: Float[np.ndarray, "images columns"]) -> list[Estimate]:
    """The mean of each column, with its interval.

    A row is one image: several draws for it are averaged before, and columns may be differences of
    two models on the same image. A percentile bootstrap of four values covers 81 %; Student's
    interval covers 95 % of normal ones at any number.
    """
    count = len(values)
    means = values.mean(axis=0)
    half = np.full_like(means, math.nan)
    if count > 1:
        quantile = stats.t.ppf((1 + LEVEL) / 2, count - 1)
        half = quantile * values.std(axis=0, ddof=1) / math.sqrt(count)
    return [
        Estimate(float(mean), float(mean - width), float(mean + width))
        for mean, width in zip(means, half, strict=True)
    ]
