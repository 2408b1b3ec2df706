"""`fit`: what seeds say of differences between runs, with the noise of all runs of a recipe pooled.

Runs of one seed share their order of images, and may do well or badly together. So each number is
taken as run + seed + noise, fitted by least squares to all runs and seeds of a recipe (randomized
blocks). Of two runs alone this is the paired t-test. The noise is taken to be the same for all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from mjp.report.study_tests import CONFIDENCE, Comparison

LEAST_FREEDOM = 2
"""With one degree of freedom two seeds of one run that agree by chance would decide for all runs;
two runs with two seeds in common are compared all the same, by these."""
ROUNDING = 1e-9
"""Noise that is no larger, as a share of the numbers, is that of floating point."""
Values = Mapping[str, Mapping[str, float]]
"""By run, then by seed."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Runs of a recipe, each with its level, and how far seeds scatter about it.

    Args:
        values: that it was fitted to.
        levels: of the runs, in the order of the values, at the same seed.
        spread: covariance of the levels, as a multiple of the noise's variance.
        known: what of a combination of levels the values determine.
        noise: standard deviation about run + seed.
        freedom: degrees of freedom that the noise is told with.
    """

    values: Values
    levels: Float[np.ndarray, " runs"]
    spread: Float[np.ndarray, "runs runs"]
    known: Float[np.ndarray, "runs columns"]
    noise: float
    freedom: int

    def difference(self, run: str, than: str) -> Comparison | None:
        """How much more one run has; None where seeds do not tell."""
        ours, theirs = self.values[run], self.values[than]
        common = len(ours.keys() & theirs.keys())
        if self.freedom < (1 if common > 1 else LEAST_FREEDOM):
            return None
        places = list(self.values)
        one, other = places.index(run), places.index(than)
        if not self._determines(one, other):
            return None
        found = float(self.levels[one] - self.levels[other])
        largest = max(abs(value) for own in self.values.values() for value in own.values())
        half: float | None = None
        # Few images in, few values out: that seeds agree to the digit does not make it certain.
        if self.noise > ROUNDING * largest:
            spread = self.spread[one, one] + self.spread[other, other] - 2 * self.spread[one, other]
            quantile = float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2))
            half = quantile * self.noise * math.sqrt(max(0.0, float(spread)))
        alone = self.freedom == common - 1
        return Comparison(
            found,
            None if half is None else found - half,
            None if half is None else found + half,
            "seeds",
            common if alone else len(ours),
            against=None if alone else len(theirs),
            pooled=0 if alone else self._telling(),
            freedom=self.freedom,
        )

    def _telling(self) -> int:
        """How many runs tell of the noise: those with two seeds that another such run has too."""
        found = [set(own) for own in self.values.values()]
        while True:
            shared = [
                {seed for seed in own if sum(seed in other for other in found) > 1} for own in found
            ]
            left = [own for own in shared if len(own) > 1]
            if left == found:
                return len(found)
            found = left

    def _determines(self, one: int, other: int) -> bool:
        """Whether the values tell the two apart from what seeds do.

        They do not where no chain of common seeds leads from one to the other.
        """
        wanted = np.zeros(self.known.shape[1])
        wanted[one], wanted[other] = 1, -1
        return bool(np.allclose(self.known[one] - self.known[other], wanted, atol=1e-6))


def fit(values: Values) -> Fit | None:
    """Levels and noise by least squares; None where no number is there twice."""
    runs, seeds = list(values), sorted({seed for own in values.values() for seed in own})
    rows = [(run, seed) for run in runs for seed in values[run]]
    if len(rows) < 2:
        return None
    design = np.zeros((len(rows), len(runs) + len(seeds)))
    for row, (run, seed) in enumerate(rows):
        design[row, runs.index(run)] = design[row, len(runs) + seeds.index(seed)] = 1
    inverse = np.linalg.pinv(design)
    freedom = len(rows) - int(np.linalg.matrix_rank(design))
    if freedom < 1:
        return None
    observed = np.array([values[run][seed] for run, seed in rows])
    solution = inverse @ observed
    rest = observed - design @ solution
    count = len(runs)
    return Fit(
        values,
        solution[:count],
        (inverse @ inverse.T)[:count, :count],
        (inverse @ design)[:count],
        float(np.linalg.norm(rest)) / math.sqrt(freedom),
        freedom,
    )
