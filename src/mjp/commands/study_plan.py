"""`Study`: the runs that a TOML file lists, each with all that decides it. Imports no torch."""

import difflib
import fnmatch
import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mjp.commands.audit_options import AuditOptions
from mjp.commands.options import (
    EvalAccuracyOptions,
    EvalCorruptionsOptions,
    ProbePositionsOptions,
)
from mjp.commands.study_file import RunEntry, StudyFile, check_name
from mjp.core.configuration import from_mapping, read_toml, suggestion, to_toml
from mjp.core.errors import ConfigError
from mjp.train.recipe import Recipe, read_recipe, recipe_from, with_variant

STUDIES = Path(__file__).parents[1] / "studies"
"""Where the studies of the package lie."""

Verb = Literal["accuracy", "corruptions", "positions", "audit"]
OPTIONS: Mapping[str, type[Any]] = {
    "accuracy": EvalAccuracyOptions,
    "corruptions": EvalCorruptionsOptions,
    "positions": ProbePositionsOptions,
    "audit": AuditOptions,
}
"""What each evaluation can be told: the options of its verb."""
_GIVEN = ("model", "out", "json", "resume", "device", "keep")
"""Options that the study itself sets."""


@dataclass(frozen=True)
class Part:
    """An evaluation of a run.

    Args:
        verb: what is done.
        settings: options as the file gives them, {root} still in them.
        root: what stands for {root} here.
    """

    name: str
    verb: Verb
    settings: Mapping[str, Any]
    root: str | None

    @property
    def key(self) -> str:
        """What decides the outcome, wherever the data lies."""
        return json.dumps([self.verb, self.settings], sort_keys=True, default=str)

    def options(self, **given: Any) -> Any:
        """The verb's options; an error that names the evaluation where they are wrong."""
        told = _rooted(dict(self.settings), self.root, f"evaluation {self.name}")
        where = f"evaluation {self.name}"
        return replace(from_mapping(OPTIONS[self.verb], told | _NEEDED, where=where), **given)


_NEEDED = {"model": ["to be given"]}
"""What every verb must be told; the study puts the run's own model in its place."""


@dataclass(frozen=True, eq=False)
class Task:
    """A run with its seed: what a worker carries out.

    Args:
        recipe: None for a model that is not trained here.
        model: of a run that is not trained.
    """

    entry: RunEntry
    seed: int
    recipe: Recipe | None
    model: str | None
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """What its folder is called."""
        return f"{self.entry.name}-{self.seed}"


@dataclass(frozen=True)
class Study:
    """All runs of a study."""

    name: str
    title: str
    tasks: tuple[Task, ...]

    def chosen(self, only: tuple[str, ...], without: tuple[str, ...]) -> "Study":
        """The runs that match one of the patterns, without some of their evaluations."""
        names = [task.name for task in self.tasks]
        for pattern in only:
            if not fnmatch.filter(names, pattern):
                raise ConfigError(f"no run is called {pattern!r}{suggestion(pattern, names)}")
        known = sorted({part.name for task in self.tasks for part in task.parts})
        for name in without:
            if name not in known:
                raise ConfigError(f"no evaluation is called {name!r}{suggestion(name, known)}")
        # In the order of the patterns, so that what matters most can be asked for first.
        picked = dict.fromkeys(
            task
            for pattern in only or ("*",)
            for task in self.tasks
            if fnmatch.fnmatchcase(task.name, pattern)
        )
        kept = (
            replace(task, parts=tuple(part for part in task.parts if part.name not in without))
            for task in picked
        )
        return replace(self, tasks=tuple(kept))


def study_names() -> list[str]:
    """The studies of the package."""
    return sorted(path.stem for path in STUDIES.glob("*.toml"))


def read_study(name: str, root: str | None) -> Study:
    """A study by the name of one of the package's, or the path of a TOML file."""
    names = study_names()
    if name not in names and not name.endswith(".toml"):
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(names)}"
        raise ConfigError(f"there is no study {name!r}; {hint} (or the path of a .toml file)")
    path = STUDIES / f"{name}.toml" if name in names else Path(name)
    where = f"study {name}" if name in names else str(path)
    values = read_toml(path)
    runs = values.pop("runs", [])
    if not isinstance(runs, list) or not all(isinstance(one, dict) for one in runs):
        raise ConfigError(f"{where}: runs must be a list of tables: [[runs]]")
    file: StudyFile = from_mapping(StudyFile, values, where=where)
    entries = tuple(
        from_mapping(RunEntry, one, where=f"{where}: run {place}")
        for place, one in enumerate(runs, 1)
    )
    return _resolved(replace(file, runs=entries), root, where)


def _resolved(file: StudyFile, root: str | None, where: str) -> Study:
    check_name(file.name)
    if not file.runs:
        raise ConfigError(f"{where} lists no runs; add [[runs]]")
    names = [entry.name for entry in file.runs]
    for entry in file.runs:
        if names.count(entry.name) > 1:
            raise ConfigError(f"{where}: two runs are called {entry.name}")
        for other in (*filter(None, [entry.baseline]), *entry.compared):
            if other == entry.name:
                raise ConfigError(f"{where}: {entry.name} cannot be compared with itself")
            if other not in names:
                hint = suggestion(other, names)
                raise ConfigError(f"{where}: {entry.name}: no run {other!r}{hint}")
    tasks = tuple(task for entry in file.runs for task in _tasks(file, entry, root, where))
    return Study(file.name, file.title or file.name, tasks)


def _tasks(file: StudyFile, entry: RunEntry, root: str | None, where: str) -> Iterator[Task]:
    where = f"{where}: run {entry.name}"
    for seed in entry.seeds:
        recipe, model = None, None
        if entry.model is not None:
            model = _rooted(entry.model, root, where)
        else:
            recipe = _recipe(file, entry, root, seed, where)
        parts = tuple(_part(file, name, recipe, root, where) for name in entry.evaluations)
        yield Task(entry, seed, recipe, model, parts)


def _recipe(file: StudyFile, entry: RunEntry, root: str | None, seed: int, where: str) -> Recipe:
    """The recipe of a run: what is set for all, then its variant, then what is set for it."""
    name = entry.recipe or file.recipe
    if name is None:
        raise ConfigError(f"{where}: there is no recipe; name one, for the run or for all")
    with _naming(where):
        recipe = read_recipe(name)
    recipe = _changed(recipe, file.set, root, where)
    if entry.variant is not None:
        recipe = with_variant(recipe, entry.variant)
    return _changed(_changed(recipe, entry.set, root, where), {"run": {"seed": seed}}, root, where)


def _changed(recipe: Recipe, changes: Mapping[str, Any], root: str | None, where: str) -> Recipe:
    values = tomllib.loads(to_toml(recipe))
    return recipe_from(_merged(values, _rooted(changes, root, where)), where)


def _part(file: StudyFile, name: str, recipe: Recipe | None, root: str | None, where: str) -> Part:
    if name not in file.evaluations:
        raise ConfigError(f"{where}: no evaluation {name!r}{suggestion(name, [*file.evaluations])}")
    settings = file.evaluations[name]
    run, where = where, f"{where}: evaluation {name}"
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where} must be a table, such as [evaluations.{name}]")
    settings = dict(settings)
    verb = settings.pop("verb", None)
    if verb not in OPTIONS:
        raise ConfigError(f"{where}: verb must be one of {', '.join(OPTIONS)}, got {verb!r}")
    for given in _GIVEN:
        if given in settings:
            raise ConfigError(f"{where}: {given} is set by the study itself")
    if recipe is None and "{ratio}" in json.dumps(settings, default=str):
        raise ConfigError(f"{where}: a model that is not trained here has no {{ratio}}")
    if recipe is not None:
        settings = _replaced(settings, "{ratio}", f"{recipe.mjp.ratio:g}")
    part = Part(name, verb, settings, root)
    with _naming(run):
        part.options()  # Says what is wrong before anything is begun.
    return part


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Puts the place in the study before what is wrong there."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the changes, section by section."""
    merged = dict(values)
    for name, change in changes.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(change, Mapping)
        merged[name] = _merged(before, change) if both else change  # type: ignore[arg-type]
    return merged


def _rooted(value: Any, root: str | None, where: str) -> Any:
    """The value with the folder of the data in place of {root}."""
    if root is None:
        if "{root}" in json.dumps(value, default=str):  # TOML has dates, JSON has none.
            raise ConfigError(f"{where} needs the folder of the data; give it with --root FOLDER")
        return value
    return _replaced(value, "{root}", root)


def _replaced(value: Any, before: str, after: str) -> Any:
    if isinstance(value, str):
        return value.replace(before, after)
    if isinstance(value, Mapping):
        return {name: _replaced(one, before, after) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(one, before, after) for one in value]
    return value
