"""What of a study is finished: told from the folders of its runs alone, so that they may move."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from mjp.commands.study_file import BESIDE, LOG, TRAINING
from mjp.commands.study_plan import Part, Task
from mjp.report.runs import RECORDS, read_run
from mjp.train import runs

STAMP = "done.json"
"""In the folder of a finished evaluation: what decided its outcome."""
FINAL = "final"


def training_folder(out: Path, task: Task) -> Path:
    """Where a run is trained."""
    return out / task.name / TRAINING


def part_folder(out: Path, task: Task, part: Part) -> Path:
    """Where an evaluation of a run is written."""
    return out / task.name / part.name


def is_trained(out: Path, task: Task) -> bool:
    """Whether training came to its end, and its model is there."""
    if task.recipe is None:
        return True
    folder = training_folder(out, task)
    if not (folder / RECORDS).is_file() or not (folder / FINAL / "config.json").is_file():
        return False
    return bool(read_run(folder / RECORDS, task.name).of("train end"))


def is_evaluated(out: Path, task: Task, part: Part) -> bool:
    """Whether the evaluation was made, with the same settings."""
    try:
        body = json.loads((part_folder(out, task, part) / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and body.get("key") == part.key


def stamp(out: Path, task: Task, part: Part) -> None:
    """Notes that an evaluation is finished; the last that is written into its folder."""
    file = part_folder(out, task, part) / STAMP
    partial = file.with_suffix(".part")
    partial.write_text(json.dumps({"key": part.key}), encoding="utf-8")
    partial.replace(file)


def note_beside(out: Path, task: Task, parallel: int) -> None:
    """Notes how many runs share the machine, this one counted."""
    (out / task.name).mkdir(parents=True, exist_ok=True)
    together = 1 if task.entry.alone else parallel
    (out / task.name / BESIDE).write_text(json.dumps({"parallel": together}), encoding="utf-8")


def read_beside(out: Path, task: Task) -> int | None:
    """How many runs shared the machine; None where nobody noted it."""
    try:
        found = json.loads((out / task.name / BESIDE).read_text(encoding="utf-8"))["parallel"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def missing(out: Path, task: Task) -> Iterator[str]:
    """What is still to be done, by name."""
    if not is_trained(out, task):
        yield TRAINING
    for part in task.parts:
        if not is_evaluated(out, task, part):
            yield part.name


def check_same(out: Path, task: Task) -> None:
    """Raises where the folder holds a run of the same name with another recipe."""
    folder = training_folder(out, task)
    if task.recipe is not None and (folder / runs.RECIPE).exists():
        runs.check_same(folder, task.recipe)


def clear(out: Path, task: Task) -> None:
    """Removes what a run left, and nothing else."""
    folder = out / task.name
    runs.clear(training_folder(out, task))
    for part in task.parts:
        shutil.rmtree(part_folder(out, task, part), ignore_errors=True)
    for name in (LOG, BESIDE):
        (folder / name).unlink(missing_ok=True)
