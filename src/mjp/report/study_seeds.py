"""`Seeds`: what the seeds of a study say of the difference between two of its runs."""

import math
from collections.abc import Iterable
from dataclasses import replace

from mjp.report.study import IN_PERCENT, LARGEST, SECONDS, Quantity, Study, StudyRun
from mjp.report.study_fit import Fit, fit
from mjp.report.study_tests import Comparison

Pool = tuple[tuple[str, ...], bool]
"""The recipe of runs, and whether they are attacked under a jigsaw."""


class Seeds:
    """What seeds say of the differences in a study: of a recipe's runs together."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._fits: dict[tuple[Quantity, str, Pool], Fit | None] = {}

    def difference(
        self, quantity: Quantity, evaluation: str, run: StudyRun, than: StudyRun
    ) -> Comparison | None:
        """In percent where that is how the quantity is compared; None where seeds do not tell."""
        names = (run.name, than.name)
        pool = _pool(run, quantity)
        if run.recipe and pool == _pool(than, quantity):
            key = (quantity, evaluation, pool)
            if key not in self._fits:
                together = [one for one in self.study.runs.values() if _pool(one, quantity) == pool]
                self._fits[key] = fit(_values(quantity, evaluation, together))
            found = self._fits[key]
        else:
            found = fit(_values(quantity, evaluation, (run, than)))
        if found is None or not all(name in found.values for name in names):
            return None
        own = found.difference(*names)
        return _in_percent(own) if own is not None and quantity in IN_PERCENT else own


def _pool(run: StudyRun, quantity: Quantity) -> Pool:
    """Runs that agree in it are taken to scatter alike in this quantity.

    What an attack brings back without a jigsaw hangs on the last digits of numbers, and with one on
    the jigsaw.
    """
    return run.recipe, quantity.value.startswith("psnr") and run.gamma > 0


def _values(
    quantity: Quantity, evaluation: str, runs: Iterable[StudyRun]
) -> dict[str, dict[str, float]]:
    """By run and seed; logarithms of what is compared in percent, times of runs that were alone."""
    found = {}
    for run in runs:
        own = {seed: one.value for seed, one in run.of(quantity).get(evaluation, {}).items()}
        if quantity in IN_PERCENT:
            own = {seed: math.log(one) for seed, one in own.items() if one > 0}
        if own and (quantity != SECONDS or run.alone):
            found[run.name] = own
    return found


def _in_percent(found: Comparison) -> Comparison:
    """A difference of logarithms as a share."""
    ends = [None if one is None else _percent(one) for one in (found.low, found.high)]
    return replace(found, difference=_percent(found.difference), low=ends[0], high=ends[1])


def _percent(logarithm: float) -> float:
    return 100 * math.expm1(min(logarithm, math.log(LARGEST)))  # Of odd times it could be any.
