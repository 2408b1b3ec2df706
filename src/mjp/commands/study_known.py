"""Runs of which only the records are here: models are large, and records travel in a repository."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mjp.commands.study_facts import recipe_facts
from mjp.commands.study_plan import Study, Task
from mjp.core.errors import ConfigError
from mjp.core.records import Record, Scalar
from mjp.report.runs import RECORDS, read_run

RUN = "study run"
DIFFERENCE = "study difference"


@dataclass(frozen=True)
class Known:
    """What was measured elsewhere, by the names of runs with their seeds."""

    records: dict[str, tuple[Record, ...]] = field(default_factory=dict)

    def holds(self, task: Task, out: Path) -> bool:
        """Whether a run is told of; not where it has a folder here, which counts instead."""
        return task.name in self.records and not (out / task.name).exists()

    def lacks(self, task: Task) -> list[str]:
        """Evaluations of a run that nothing is told of, by name."""
        told = {one.conditions.get("evaluation") for one in self.records[task.name]}
        return [part.name for part in task.parts if part.name not in told]

    def of(self, task: Task, facts: dict[str, Scalar]) -> list[Record]:
        """What a run measured; facts are what the study calls it now."""
        return [
            Record(one.kind, {**one.conditions, **facts}, one.values) if one.kind == RUN else one
            for one in self.records[task.name]
            if one.kind != DIFFERENCE
        ]

    def differences(self, task: Task, than: Task) -> list[Record]:
        """What a run has more or less than another, both told of."""
        return [
            one
            for one in self.records[task.name]
            if one.kind == DIFFERENCE and one.conditions.get("than") == than.entry.name
        ]

    def without(self, tasks: Iterable[Task]) -> "Known":
        """All but these runs."""
        left = {task.name for task in tasks}
        return Known({name: told for name, told in self.records.items() if name not in left})


def read_known(paths: Sequence[Path], study: Study) -> Known:
    """The records of runs that the study lists; an error where they were made otherwise."""
    tasks = {task.name: task for task in study.tasks}
    found: dict[str, list[Record]] = {}
    for path in paths:
        for record in _read(path, study):
            name = f"{record.conditions.get('run')}-{record.conditions.get('seed')}"
            if name in tasks:
                found.setdefault(name, []).append(record)
    for name, records in found.items():
        starts = [one for one in records if one.kind == RUN]
        if len(starts) != 1:
            raise ConfigError(
                f"what --known names tells {len(starts)} times how {name} was made, not once"
            )
        _check_same(tasks[name], starts[0])
    return Known({name: tuple(records) for name, records in found.items()})


def _read(path: Path, study: Study) -> list[Record]:
    file = path / RECORDS if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"--known {path}: there is no such file; name a study's {RECORDS}")
    run = read_run(file, str(file.parent))
    if run.problems:
        raise ConfigError(f"--known {path} cannot be used: {run.problems[0]}")
    records = [one.record for one in run.entries if one.record.conditions.get("study") is not None]
    others = {one.conditions["study"] for one in records} - {study.name}
    if others:
        told = sorted(map(str, others))[0]
        raise ConfigError(f"--known {path} is of study {told}, not of {study.name}")
    if not any(one.kind == RUN for one in records):
        raise ConfigError(f"--known {path} tells of no run of a study; name a study's {RECORDS}")
    return records


def _check_same(task: Task, record: Record) -> None:
    """Raises where a run was trained otherwise than the study says now."""
    if task.recipe is None:
        return
    for name, value in recipe_facts(task.recipe.conditions()).items():
        if record.conditions.get(name) != value:
            raise ConfigError(
                f"{task.name} was made with {name} {record.conditions.get(name)}, and the study "
                f"says {value}; its records in --known are of another run"
            )
