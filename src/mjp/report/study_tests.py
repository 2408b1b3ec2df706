"""What seeds and images say together: means, spreads, and intervals of differences."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CONFIDENCE = 0.95
DIGITS = 9
"""What is worked out of records is told no finer."""
Over = Literal["seeds", "images", "images apart", "other seeds", "nothing"]
"""What an interval is over: seeds; images, paired, of one seed; images, not paired, of one seed.
There is none between runs of different seeds where no run tells what a seed changes, since images
do not tell; nor where a number has none of its own."""


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
        count: seeds of the run, or of both where they are paired; or images.
        against: seeds of the other run.
        pooled: how many runs of several seeds tell of the noise; 0 where these two alone do.
        freedom: degrees of freedom of the noise between seeds.
        tested: seeds whose images have an interval of their own.
        agreeing: how many of these leave 0 out, on the side of the difference.
    """

    difference: float
    low: float | None
    high: float | None
    over: Over
    count: int
    against: int | None = None
    pooled: int = 0
    freedom: int = 0
    tested: int = 0
    agreeing: int = 0

    def __post_init__(self) -> None:
        # Last digits hang on the CPU; half of a printed digit must not turn with them.
        for name in ("difference", "low", "high"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, round(value, DIGITS))

    @property
    def clear(self) -> bool:
        """Whether 0 is outside."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def basis(self) -> str:
        """What the interval is over, in words."""
        if self.over == "seeds":
            told = self._seeds()
            if self.low is None:
                told += ", without any noise, so without an interval"
            if self.tested:
                told += f"; clear over images in {self.agreeing} of {self.tested}"
            return told
        images = f"{self.count:,} images" if self.count else "images"
        return {
            "images": f"{images}, paired, of one seed",
            "images apart": f"{images}, not paired, of one seed",
            "other seeds": "different seeds, no interval",
            "nothing": "one seed, no interval",
        }[self.over]

    @property
    def noise(self) -> str:
        """Whose noise between seeds the interval is made of, where it is of more than two runs."""
        return f"noise of {self.pooled} runs, {self.freedom} degrees of freedom"

    def _seeds(self) -> str:
        if self.against is None:
            return f"{self.count} seeds, paired"
        each = f"{self.count} seed{'s' if self.count > 1 else ''}"
        each += " each" if self.count == self.against else f" against {self.against}"
        return f"{each}, {self.noise}"


def together(found: Sequence[Comparison]) -> str:
    """What the intervals of several comparisons are over, in words."""
    noises = {one.noise for one in found if one.pooled}
    if len(noises) != 1 or not all(one.pooled for one in found):
        return " or ".join(dict.fromkeys(one.basis for one in found))
    counts = [seeds for one in found for seeds in (one.count, one.against or one.count)]
    few, many = min(counts), max(counts)
    seeds = f"{few} to {many} seeds" if few != many else f"{few} seed{'s' if few > 1 else ''}"
    return f"{seeds} each, {noises.pop()}"


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


def apart(ours: Estimate, theirs: Estimate, count: int) -> Comparison:
    """The difference of two estimates as if they were independent (Zou and Donner, 2008).

    Of the same images they are not: then the interval is wider than it needs to be, not narrower.
    """
    difference = ours.value - theirs.value
    below = math.hypot(ours.value - ours.low, theirs.high - theirs.value)
    above = math.hypot(ours.high - ours.value, theirs.value - theirs.low)
    return Comparison(difference, difference - below, difference + above, "images apart", count)
