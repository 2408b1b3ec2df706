"""`studies_of`: studies read out of records, and how soon their runs reached accuracies."""

import math
import statistics
from collections.abc import Iterable, Iterator

from mjp.core.records import Record
from mjp.report.leaks import NONE, mjp_ratio, number, words
from mjp.report.study import (
    COMPARISON,
    MEASURED,
    STUDY_KINDS,
    SUMMARY,
    TRAINING,
    Quantity,
    Reading,
    Study,
    StudyRun,
    sane,
)

SHARES = (0.5, 0.75, 0.9, 0.95)
"""Of the lowest accuracy that all runs came to: when did each get there?"""


def studies_of(records: Iterable[Record]) -> list[Study]:
    """The studies that these records tell of, by name; of two that measure the same, the later."""
    sorted_in: dict[str, list[Record]] = {}
    for record in records:
        if record.kind in STUDY_KINDS:
            sorted_in.setdefault(words(record.conditions, "study"), []).append(record)
    return [_study(name, found) for name, found in sorted_in.items()]


def _study(name: str, records: list[Record]) -> Study:
    study = Study(name)
    kinds: dict[str, list[Record]] = {}
    for record in records:
        kinds.setdefault(record.kind, []).append(record)
        run = words(record.conditions, "run")
        if record.kind in MEASURED and run:
            study.runs.setdefault(run, StudyRun(run))
    for record in kinds.get("study run", ()):
        if own := study.runs.get(words(record.conditions, "run")):
            own.told[words(record.conditions, "seed")] = record
    for kind in MEASURED:
        for record in kinds.get(kind, ()):
            _measure(study, record)
    for record in kinds.get("study epoch", ()):
        _follow(study, record)
    _reach(study)
    for record in kinds.get("study difference", ()):
        told = record.conditions
        run, than, seed, value = (words(told, one) for one in ("run", "than", "seed", "value"))
        quantity = Quantity(value, None if value == "top1" else sane(told, "ratio"))
        study.differences[run, than, seed, quantity, words(told, "evaluation")] = record
    study.written.extend((*kinds.get(SUMMARY, ()), *kinds.get(COMPARISON, ())))
    return study


def _follow(study: Study, record: Record) -> None:
    """Takes in an epoch of a run."""
    run = study.runs.get(words(record.conditions, "run"))
    epoch, top1 = sane(record.conditions, "epoch"), sane(record.values, "top1")
    if run is not None and epoch is not None and top1 is not None:
        run.epochs.setdefault(words(record.conditions, "seed"), {})[int(epoch)] = top1


def _measure(study: Study, record: Record) -> None:
    """Takes in all numbers of a record that pages tell of."""
    run = study.runs.get(words(record.conditions, "run"))
    if run is None:
        return
    seed = words(record.conditions, "seed")
    for quantity, name, evaluation in _quantities(run, record):
        value, low, high = (sane(record.values, f"{name}{end}") for end in ("", "_low", "_high"))
        if value is not None:
            found = run.readings.setdefault(quantity, {}).setdefault(evaluation, {})
            found[seed] = Reading(value, low, high, record)


def _quantities(run: StudyRun, record: Record) -> Iterator[tuple[Quantity, str, str]]:
    """What a record measures, under which name, in which evaluation."""
    told = record.conditions
    evaluation = words(told, "evaluation")
    if record.kind == "study run":
        for name in ("top1", "epoch_seconds", "images_per_second"):
            yield Quantity(name), name, TRAINING
    elif record.kind == "study accuracy":
        yield Quantity("top1"), "top1", evaluation
    elif record.kind == "study jigsaw" and sane(told, "ratio") is not None:
        for name in ("accuracy", "consistency", "diff_norm"):
            yield Quantity(name, sane(told, "ratio")), name, evaluation
    elif record.kind == "study positions":
        for name in ("mae_1d", "mae_2d"):
            yield Quantity(name), name, ""
    elif record.kind == "study leak":
        yield from _leak(run, words(told, "defence"), words(told, "attack"))
    elif record.kind == "study corruption":
        yield Quantity(f"error {words(told, 'corruption')}"), "error", evaluation
    elif record.kind == "study corruption summary":
        for name in ("clean_error", "mean_error", "mce"):
            yield Quantity(name), name, evaluation


def _leak(run: StudyRun, defence: str, attack: str) -> Iterator[tuple[Quantity, str, str]]:
    """PSNR under the defence that the run was trained for, and under none.

    The evaluation is left out: each γ has its own, with its own defence.
    """
    ratio = mjp_ratio(defence)
    if ratio is not None and math.isclose(ratio, run.gamma):
        yield Quantity(f"psnr {attack}"), "psnr", ""
        yield Quantity("psnr of a guess"), "baseline_mean_psnr", ""
    elif defence == NONE:
        yield Quantity(f"undefended psnr {attack}"), "psnr", ""


def levels(study: Study) -> list[int]:
    """Whole percents of accuracy that every finished run of the convergence table came to."""
    finals = [curve[max(curve)] for run in study.rows("convergence") for _, curve in _finished(run)]
    lowest = min(finals, default=0.0)
    found = {math.floor(share * lowest) for share in SHARES}
    return sorted(one for one in found if one > 0)


def _finished(run: StudyRun) -> Iterator[tuple[str, dict[int, float]]]:
    """Seeds whose training came to its end, with their curves."""
    for seed, curve in run.epochs.items():
        if seed in run.told and number(run.told[seed].values, "top1") is not None:
            yield seed, curve


def _reach(study: Study) -> None:
    """Adds epochs, and seconds where an epoch's were measured, until an accuracy was reached."""
    for level in levels(study):
        for run in study.rows("convergence"):
            seconds = _epoch_seconds(study, run)
            for seed, curve in _finished(run):
                epochs = _epochs_to(level, curve)
                if epochs is None:
                    continue
                own = {f"epochs to {level} %": epochs}
                own |= {} if seconds is None else {f"seconds to {level} %": epochs * seconds}
                for name, value in own.items():
                    found = run.readings.setdefault(Quantity(name), {}).setdefault(TRAINING, {})
                    found[seed] = Reading(value, None, None, run.told[seed])


def _epochs_to(level: float, curve: dict[int, float]) -> float | None:
    """When accuracy first passed a level, on a straight line between two epochs."""
    before: int | None = None
    for epoch in sorted(curve):
        if curve[epoch] >= level:
            if before is None:
                return float(epoch)
            share = (level - curve[before]) / (curve[epoch] - curve[before])
            return before + share * (epoch - before)
        before = epoch
    return None


def _epoch_seconds(study: Study, run: StudyRun) -> float | None:
    """Mean seconds of an epoch, of the run of the cost table that trains the same variant."""
    for other in study.rows("cost"):
        if run.variant and other.variant == run.variant:
            found = other.of(Quantity("epoch_seconds")).get(TRAINING, {})
            return statistics.fmean(one.value for one in found.values()) if found else None
    return None
