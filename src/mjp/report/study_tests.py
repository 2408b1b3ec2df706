"""What seeds and images say together: means, spreads, and intervals of differences."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

CONFIDENCE = 0.95
Over = Literal["seeds", "images", "images apart", "other seeds", "nothing"]
"""What an interval is over: seeds, paired; images, paired, of one seed; images, not paired, of one
seed. There is none between runs of different seeds, since images do not tell what those change;
nor where a number has none of its own."""


@dataclass(frozen=True)
class Spread:
    """Numbers of several seeds: their mean, and their standard deviation where there are two."""

    mean: float
    sd: float | None
    count: int


@dataclass(frozen=True)
class Comparison:
    """How much more one run has than another, with its 95 % interval.

    Args:
        count: seeds or images that the interval is over.
        tested: seeds whose images have an interval of their own.
        agreeing: how many of these leave 0 out, on the side of the difference.
    """

    difference: float
    low: float | None
    high: float | None
    over: Over
    count: int
    tested: int = 0
    agreeing: int = 0

    @property
    def clear(self) -> bool:
        """Whether 0 is outside."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def basis(self) -> str:
        """What the interval is over, in words."""
        if self.over == "seeds":
            told = f"{self.count} seeds, paired"
            if self.low is None:
                told += ", all with this difference, so without an interval"
            if self.tested:
                told += f"; clear over images in {self.agreeing} of {self.tested}"
            return told
        images = f"{self.count:,} images" if self.count else "images"
        return {
            "images": f"{images}, paired, one seed",
            "images apart": f"{images}, not paired, one seed",
            "other seeds": "different seeds, no interval",
            "nothing": "one seed, no interval",
        }[self.over]


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its interval."""

    value: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation (of a sample) of at least one number."""
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), sd, len(values))


def paired(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Comparison | None:
    """Student's interval of the difference over the seeds that both have; None below two."""
    return _student([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


def paired_percent(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Comparison | None:
    """The same of how much larger ours is, in percent of theirs."""
    common = [seed for seed in ours if theirs.get(seed)]
    return _student([100 * (ours[seed] / theirs[seed] - 1) for seed in common])


def apart(ours: Estimate, theirs: Estimate, count: int) -> Comparison:
    """The difference of two estimates as if they were independent (Zou and Donner, 2008).

    Of the same images they are not: then the interval is wider than it needs to be, not narrower.
    """
    difference = ours.value - theirs.value
    below = math.hypot(ours.value - ours.low, theirs.high - theirs.value)
    above = math.hypot(ours.high - ours.value, theirs.value - theirs.low)
    return Comparison(difference, difference - below, difference + above, "images apart", count)


def _student(differences: Sequence[float]) -> Comparison | None:
    count = len(differences)
    if count < 2:
        return None
    mean = statistics.fmean(differences)
    deviation = statistics.stdev(differences)
    if not deviation:
        # Few images in, few values out: that seeds agree to the digit does not make it certain.
        return Comparison(mean, None, None, "seeds", count)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    half = quantile * deviation / math.sqrt(count)
    return Comparison(mean, mean - half, mean + half, "seeds", count)
