"""What the runs of a study measured, as one list of small records that no folder is named in."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load_file

from mjp.commands.eval_corruptions import CLEAN
from mjp.commands.study_facts import recipe_facts
from mjp.commands.study_known import Known
from mjp.commands.study_plan import Part, Study, Task
from mjp.commands.study_state import (
    is_evaluated,
    is_trained,
    part_folder,
    read_beside,
    training_folder,
)
from mjp.commands.study_work import SCORES
from mjp.core.bootstrap import Estimate, estimates
from mjp.core.records import Record, Scalar
from mjp.core.seeds import seed_for
from mjp.evaluate.jigsaw import JigsawSettings, Scores, difference
from mjp.report.runs import RECORDS, Run, read_run

CURVES = "convergence"
"""The table whose runs are told of epoch by epoch."""
BESIDE = (0.27, 0.5)
"""Ratios at which a run is compared with others than its baseline."""
KINDS = {
    "eval accuracy": ("study accuracy", ("data", "among", "precision", "image_size")),
    "eval jigsaw": ("study jigsaw", ("data", "jigsaw", "precision", "ratio", "draws")),
    "eval corruption": ("study corruption", ("data", "corruption", "precision")),
    "eval corruption summary": ("study corruption summary", ("data", "precision")),
    "probe positions": ("study positions", ("rows", "cols", "dim")),
    "audit": ("study leak", ("data", "attack", "defence", "image_size", "gradients")),
}
"""Which records of evaluations are taken over, as what, and with which of their conditions."""
_VERSIONS = ("mjp", "torch", "python")


def collect(study: Study, out: Path, known: Known, *, compared: bool = True) -> list[Record]:
    """The records of all that is finished.

    Args:
        known: runs that were made elsewhere.
        compared: whether runs are also compared image by image, which takes seconds; what was
            known before is told in any case.
    """
    records: list[Record] = []
    for task in study.tasks:
        if known.holds(task, out):
            records += known.of(task, _called(task))
        elif is_trained(out, task):
            records += _trained(study, task, out)
            for part in task.parts:
                if is_evaluated(out, task, part):
                    records += _evaluated(study, task, part, out)
    return [*records, *_differences(study, out, known, compared=compared)]


def _facts(study: Study, task: Task) -> dict[str, Scalar]:
    return {"study": study.name, "run": task.entry.name, "seed": task.seed}


def _called(task: Task) -> dict[str, Scalar]:
    """What the study says of a run that decides nothing in it."""
    entry = task.entry
    return {
        "label": entry.label or entry.name,
        "tables": " ".join(entry.tables),
        "baseline": entry.baseline,
        "variant": entry.variant,
    }


def _trained(study: Study, task: Task, out: Path) -> Iterator[Record]:
    facts = {**_facts(study, task), **_called(task), "alone": task.entry.alone}
    facts["parallel"] = read_beside(out, task)
    if task.recipe is None:
        assert task.model is not None
        model = Path(task.model.partition("@")[2] or task.model).name
        yield Record("study run", {**facts, "init": model, "epochs": 0}, {})
        return
    run = read_run(training_folder(out, task) / RECORDS, task.name)
    start = run.of("train start")[-1]
    facts |= recipe_facts(start.conditions)
    facts |= {name: start.conditions.get(name) for name in _VERSIONS}
    for name in ("train_images", "val_images"):
        facts[name] = start.values[name]
    facts["hardware"] = start.values["device"]
    times = _times(run)
    warmup = int(str(facts["warmup_epochs"]))
    steady = [seconds for epoch, seconds in times.items() if epoch > max(1, warmup)]
    rates = [
        float(str(one.values["images_per_second"]))
        for one in run.of("train timing")
        if int(str(one.conditions.get("epoch", 0))) > max(1, warmup)
    ]
    end = run.of("train end")[-1].values
    values: dict[str, Scalar] = {
        "top1": end["last_top1"],
        "best_top1": end["best_top1"],
        "best_epoch": end["best_epoch"],
        "parameters": start.values["parameters"],
        "seconds": sum(times.values()),
        "epoch_seconds": statistics.median(steady) if steady else None,
        "images_per_second": statistics.median(rates) if rates else None,
    }
    yield Record("study run", facts, values)
    if CURVES in task.entry.tables:
        yield from _epochs(study, task, run, times)


def _times(run: Run) -> dict[int, float]:
    """Seconds of each epoch, validation left out."""
    return {
        int(str(one.conditions["epoch"])): float(str(one.values["seconds"]))
        for one in run.of("train timing")
        if "epoch" in one.conditions
    }


def _epochs(study: Study, task: Task, run: Run, times: dict[int, float]) -> Iterator[Record]:
    for one in run.of("train epoch"):
        if one.values.get("val_top1") is None:
            continue
        epoch = int(str(one.conditions["epoch"]))
        seconds = sum(time for before, time in times.items() if before <= epoch)
        yield Record(
            "study epoch",
            {**_facts(study, task), "epoch": epoch},
            {
                "top1": one.values["val_top1"],
                "loss": _rounded(one.values["loss"], 4),
                "seconds": _rounded(seconds, 2),
            },
        )


def _evaluated(study: Study, task: Task, part: Part, out: Path) -> Iterator[Record]:
    run = read_run(part_folder(out, task, part) / RECORDS, part.name)
    for one in run.of(*KINDS):
        kind, names = KINDS[one.kind]
        facts: dict[str, Scalar] = {**_facts(study, task), "evaluation": part.name}
        for name in names:
            value = one.conditions.get(name)
            facts[name] = Path(str(value)).name if name == "data" else value
        facts["images"] = one.values.get("images")
        values = {
            name: _rounded(value, 4)
            for name, value in one.values.items()
            if value is not None and name not in ("images", "reason", "verdict")
        }
        yield Record(kind, facts, values)


def _rounded(value: Scalar, digits: int) -> Scalar:
    return round(value, digits) if isinstance(value, float) else value


def _differences(study: Study, out: Path, known: Known, *, compared: bool) -> Iterator[Record]:
    """What a run has more or less than others with the same seed, paired over images."""
    by_name = {(task.entry.name, task.seed): task for task in study.tasks}
    for task in study.tasks:
        for than in dict.fromkeys(filter(None, (task.entry.baseline, *task.entry.compared))):
            other = by_name.get((than, task.seed))
            if other is None:
                continue
            held = [known.holds(one, out) for one in (task, other)]
            if all(held):
                yield from known.differences(task, other)
            for part in task.parts if compared and not any(held) else ():
                if all(_has(out, one, part) for one in (task, other)):
                    yield from _compared(study, task, other, part, out)


def _has(out: Path, task: Task, part: Part) -> bool:
    """Whether a run was evaluated so, with the same settings."""
    own = next((one for one in task.parts if one.name == part.name), None)
    same = own is not None and own.key == part.key
    return same and is_trained(out, task) and is_evaluated(out, task, part)


def _compared(study: Study, task: Task, other: Task, part: Part, out: Path) -> Iterator[Record]:
    folders = [part_folder(out, one, part) for one in (other, task)]
    found: dict[tuple[str, float | None], Estimate] = {}
    images = 0
    if part.verb == "accuracy":
        scores = [read_scores(folder / SCORES) for folder in folders]
        if scores[0] is not None and scores[1] is not None:
            options = part.options()
            settings = JigsawSettings(options.ratios, options.draws, options.seed)
            found = difference(scores[0], scores[1], settings)
            images = len(scores[0].top1)
    elif part.verb == "corruptions":
        errors = [read_errors(folder) for folder in folders]
        if errors[0] is not None and errors[1] is not None and len(errors[0]) == len(errors[1]):
            both = 100 * (errors[1] - errors[0])[:, None]
            found = {("mean_error", None): estimates(both, seed_for(0, "bootstrap"))[0]}
            images = len(both)
    facts = {**_facts(study, task), "evaluation": part.name, "than": other.entry.name}
    first = other.entry.name == task.entry.baseline
    for (name, ratio), estimate in found.items():
        if first or ratio in (None, *BESIDE):
            told = {**facts, "value": name, "ratio": ratio, "images": images}
            values = {key: round(value, 4) for key, value in estimate.values("difference").items()}
            yield Record("study difference", told, values)


def read_errors(folder: Path) -> Float[np.ndarray, " images"] | None:
    """The mean error of each image over all corruptions and severities; None if there is none."""
    columns = []
    for path in sorted((folder / "corruptions").glob("*.safetensors")):
        if not path.name.startswith(f"{CLEAN}-"):
            try:
                columns += [one.astype(np.float64) for one in load_file(path).values()]
            except (OSError, SafetensorError):
                return None
    if not columns or len({len(one) for one in columns}) > 1:
        return None
    return np.stack(columns, axis=1).mean(axis=1)


def read_scores(path: Path) -> Scores | None:
    """What came out for every image; None where it was not kept or cannot be read."""
    try:
        found = {name: array.astype(np.float64) for name, array in load_file(path).items()}
        return Scores(**{**found, "counted": found["counted"] > 0})
    except (OSError, SafetensorError, TypeError, KeyError):
        return None
