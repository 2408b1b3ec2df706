"""Means over seeds and differences between runs, as records that tables are made of."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from mjp.core.records import Record, Scalar
from mjp.report.leaks import words
from mjp.report.study import (
    COMPARISON,
    IN_PERCENT,
    SECONDS,
    SUMMARY,
    Quantity,
    Reading,
    Study,
    StudyRun,
    sane,
)
from mjp.report.study_seeds import Seeds
from mjp.report.study_tests import Comparison, Estimate, Over, Spread, apart, spread

MORE_PAIRS = (("G", "E"), ("J", "G"), ("C", "B"), ("C", "E"), ("J", "A"), ("I", "A"), ("D", "A"))
"""Runs and others than their baselines that claims of the paper compare them with."""
NOT_COMPARED = ("error ", "images_per_second", "undefended", "psnr of a guess")
"""How the names of quantities begin of which we tell means alone."""


@dataclass(frozen=True, eq=False)
class Summed:
    """A run's mean of something over its seeds.

    Args:
        records: that the numbers stand in: the one of the mean, or else those of the seeds.
    """

    spread: Spread
    records: tuple[Record, ...]


@dataclass(frozen=True, eq=False)
class Compared:
    """A run against another, and the records that the numbers stand in."""

    comparison: Comparison
    records: tuple[Record, ...]


@dataclass(frozen=True, eq=False)
class Derived:
    """All that is worked out of a study's records.

    Args:
        records: to be written down beside them.
    """

    study: Study
    sums: Mapping[tuple[str, Quantity], Summed]
    pairs: Mapping[tuple[str, str, Quantity], Compared]
    records: tuple[Record, ...]

    def sum(self, run: StudyRun | None, quantity: Quantity) -> Summed | None:
        return None if run is None else self.sums.get((run.name, quantity))

    def pair(
        self, run: StudyRun | None, than: StudyRun | None, quantity: Quantity
    ) -> Compared | None:
        if run is None or than is None:
            return None
        return self.pairs.get((run.name, than.name, quantity))


def derived_records(study: Study) -> list[Record]:
    """`study summary` and `study comparison` records, to be written after a study's own."""
    return list(derive(study).records)


def derive(study: Study) -> Derived:
    """Works out means and differences; those that were written down stay the records they are."""
    written = {record.to_json(): record for record in study.written}
    sums: dict[tuple[str, Quantity], Summed] = {}
    pairs: dict[tuple[str, str, Quantity], Compared] = {}
    records = []
    for run, quantity, summary, origins in _summaries(study):
        record = _summary_record(study, run, quantity, summary, origins)
        kept = written.get(record.to_json())
        sums[run.name, quantity] = Summed(summary, (kept,) if kept else tuple(origins))
        records.append(record)
    seeds = Seeds(study)
    for run, than in _pairs(study):
        for quantity, evaluation, comparison, origins in _comparisons(study, seeds, run, than):
            record = _comparison_record(study, run, than, quantity, evaluation, comparison)
            kept = written.get(record.to_json())
            own = Compared(comparison, (kept,) if kept else tuple(origins))
            pairs[run.name, than.name, quantity] = own
            records.append(record)
    return Derived(study, sums, pairs, tuple(records))


def _summaries(
    study: Study,
) -> Iterator[tuple[StudyRun, Quantity, Spread, list[Record]]]:
    """The mean of everything that a run's first evaluation of it measured."""
    for run in study.runs.values():
        for quantity, evaluations in run.readings.items():
            found = next(iter(evaluations.values()))
            origins = [one.record for one in found.values()]
            yield run, quantity, spread([one.value for one in found.values()]), origins


def _pairs(study: Study) -> list[tuple[StudyRun, StudyRun]]:
    """Runs, and those they are compared with: baselines, and what claims ask for."""
    names: dict[tuple[str, str], None] = {}
    for run in study.runs.values():
        others = [study.runs.get(run.baseline)]
        others += [study.baseline(table, run) for table in run.tables]
        names |= {(run.name, other.name): None for other in others if other is not None}
    names |= {pair: None for pair in MORE_PAIRS if study.runs.keys() >= set(pair)}
    if ends := study.ends():
        names[ends[0].name, ends[1].name] = None
    return [(study.runs[one], study.runs[other]) for one, other in names if one != other]


def _comparisons(
    study: Study, seeds: Seeds, run: StudyRun, than: StudyRun
) -> Iterator[tuple[Quantity, str, Comparison, list[Record]]]:
    """All that both were measured in, by the same evaluation."""
    for quantity, evaluations in run.readings.items():
        evaluation = next((one for one in evaluations if one in than.of(quantity)), None)
        skipped = quantity.value.startswith(NOT_COMPARED)
        beside = quantity == SECONDS and not (run.alone and than.alone)
        if evaluation is None or skipped or beside:
            continue
        ours, theirs = evaluations[evaluation], than.of(quantity)[evaluation]
        images = {
            seed: found
            for seed in ours
            if (found := study.differences.get((run.name, than.name, seed, quantity, evaluation)))
        }
        over_seeds = seeds.difference(quantity, evaluation, run, than)
        if over_seeds is not None:
            comparison: Comparison | None = _with_images(over_seeds, images.values())
        else:
            comparison = _without_seeds(quantity, ours, theirs, images)
        if comparison is not None:
            used = [*ours.values(), *theirs.values()]
            yield (
                quantity,
                evaluation,
                comparison,
                [*images.values(), *(one.record for one in used)],
            )


def _without_seeds(
    quantity: Quantity,
    ours: Mapping[str, Reading],
    theirs: Mapping[str, Reading],
    images: Mapping[str, Record],
) -> Comparison | None:
    """Over images of a seed that both have."""
    common = next((seed for seed in ours if seed in theirs), None)
    if common is None:
        mine, other = (fmean(one.value for one in each.values()) for each in (ours, theirs))
        return _bare(quantity, mine, other, "other seeds")
    if common in images and (found := _of_images(images[common], ours[common])):
        return found
    return _apart(quantity, ours[common], theirs[common])


def _with_images(comparison: Comparison, records: Iterable[Record]) -> Comparison:
    """The comparison, and what the images of each seed say of it."""
    found = [one for record in records if (one := _of_images(record, None))]
    agreeing = [one for one in found if one.clear and one.difference * comparison.difference > 0]
    return replace(comparison, tested=len(found), agreeing=len(agreeing))


def _of_images(record: Record, reading: Reading | None) -> Comparison | None:
    names = ("difference", "difference_low", "difference_high")
    value, low, high = (sane(record.values, name) for name in names)
    if value is None or low is None or high is None:
        return None
    images = sane(record.conditions, "images")
    if images is None and reading is not None:
        images = reading.images
    return Comparison(value, low, high, "images", int(images or 0))


def _bare(quantity: Quantity, mine: float, other: float, over: Over) -> Comparison | None:
    """A difference without an interval."""
    if quantity not in IN_PERCENT:
        return Comparison(mine - other, None, None, over, 0)
    return Comparison(100 * (mine / other - 1), None, None, over, 0) if other else None


def _apart(quantity: Quantity, mine: Reading, other: Reading) -> Comparison | None:
    ends = (mine.low, mine.high, other.low, other.high)
    if None in ends or quantity in IN_PERCENT:
        return _bare(quantity, mine.value, other.value, "nothing")
    low, high, their_low, their_high = (float(str(one)) for one in ends)
    images = int(min(mine.images or 0, other.images or 0))
    estimates = Estimate(mine.value, low, high), Estimate(other.value, their_low, their_high)
    return apart(*estimates, images)


def _summary_record(
    study: Study, run: StudyRun, quantity: Quantity, found: Spread, origins: list[Record]
) -> Record:
    conditions: dict[str, Scalar] = {
        "study": study.name,
        "run": run.name,
        "label": run.label,
        "gamma": run.gamma,
        "value": quantity.value,
        "ratio": quantity.ratio,
        "evaluation": words(origins[0].conditions, "evaluation"),
    }
    return Record(SUMMARY, conditions, {"mean": found.mean, "sd": found.sd, "seeds": found.count})


def _comparison_record(
    study: Study,
    run: StudyRun,
    than: StudyRun,
    quantity: Quantity,
    evaluation: str,
    found: Comparison,
) -> Record:
    conditions: dict[str, Scalar] = {
        "study": study.name,
        "run": run.name,
        "label": run.label,
        "gamma": run.gamma,
        "than": than.name,
        "than_label": than.label,
        "value": quantity.value,
        "ratio": quantity.ratio,
        "evaluation": evaluation,
        "over": found.over,
        "unit": unit(quantity),
    }
    values: dict[str, Scalar] = {
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "seeds" if found.over == "seeds" else "images": found.count,
        "seeds_against": found.against,
        "runs_pooled": found.pooled,
        "freedom": found.freedom,
        "seeds_tested": found.tested,
        "seeds_agreeing": found.agreeing,
    }
    return Record(COMPARISON, conditions, values)


def unit(quantity: Quantity) -> str:
    """What a difference of this is in, as one writes it after a number."""
    if quantity in IN_PERCENT:
        return "%"
    for start, told in (
        ("psnr", "dB"),
        ("epochs to", "epochs"),
        ("seconds to", "s"),
        ("diff_norm", ""),
    ):
        if quantity.value.startswith(start):
            return told
    return "points"
