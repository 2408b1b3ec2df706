"""`Seeds`: what the seeds of a study say of the difference between two of its runs."""

import math
from collections.abc import Iterable
from dataclasses import replace

from mjp.report.study import LARGEST, SECONDS, Quantity, Study, StudyRun
from mjp.report.study_fit import Fit, fit
from mjp.report.study_tests import Comparison


class Seeds:
    """What seeds say of the differences in a study: of a recipe's runs together."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._fits: dict[tuple[Quantity, str, tuple[str, ...]], Fit | None] = {}

    def difference(
        self, quantity: Quantity, evaluation: str, run: StudyRun, than: StudyRun
    ) -> Comparison | None:
        """In percent where it is of times; None where seeds do not tell."""
        names = (run.name, than.name)
        if run.recipe == than.recipe:
            key = (quantity, evaluation, run.recipe)
            if key not in self._fits:
                others = self.study.runs.values()
                together = [one for one in others if one.recipe == run.recipe]
                self._fits[key] = fit(_values(quantity, evaluation, together))
            found = self._fits[key]
        else:
            found = fit(_values(quantity, evaluation, (run, than)))
        if found is None or not all(name in found.values for name in names):
            return None
        own = found.difference(*names)
        return _in_percent(own) if own is not None and quantity == SECONDS else own


def _values(
    quantity: Quantity, evaluation: str, runs: Iterable[StudyRun]
) -> dict[str, dict[str, float]]:
    """By run and seed; logarithms of times, and those alone that nothing ran beside."""
    found = {}
    for run in runs:
        own = {seed: one.value for seed, one in run.of(quantity).get(evaluation, {}).items()}
        if quantity == SECONDS:
            own = {seed: math.log(one) for seed, one in own.items() if one > 0 and run.alone}
        if own:
            found[run.name] = own
    return found


def _in_percent(found: Comparison) -> Comparison:
    """A difference of logarithms as a share."""
    ends = [None if one is None else _percent(one) for one in (found.low, found.high)]
    return replace(found, difference=_percent(found.difference), low=ends[0], high=ends[1])


def _percent(logarithm: float) -> float:
    return 100 * math.expm1(min(logarithm, math.log(LARGEST)))
