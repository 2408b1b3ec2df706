"""`mjp study`: a list of trainings with their evaluations, each a process, several at a time."""

import fnmatch
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from mjp.catalog import read_recipe, recipe_from
from mjp.core.configuration import check_choice, check_count, from_mapping, read_toml, suggestion
from mjp.core.display import clock, results, say
from mjp.core.errors import ConfigError, MjpError, StoppedError
from mjp.core.verbs import RECIPE, Verb

STUDIES = Path(__file__).parent / "studies"
TRAINING = "train"
"""The folder of a run's training, beside those of its evaluations."""
DONE = "done.json"
"""In the folder of a finished job: what decided its outcome, and the seconds it took."""
TICK_SECONDS, LAST_SECONDS = 0.1, 120.0
"""How often processes are looked at, and how long one has to stop when it is asked to."""


@dataclass(frozen=True)
class StudyOptions:
    """Carry out a list of training runs with their evaluations, each in a process of its own.

    What is finished is skipped: the same command goes on where it was stopped, on this machine or
    on another that the folder was copied to.
    """

    name: Annotated[Positional[str], arg(metavar="STUDY")] = "digits"
    """digits (minutes on a CPU), or the path of a TOML file."""
    root: str | None = None
    """Folder of the data: what stands for {root} in the file."""
    out: Path | None = None
    """Folder for the runs; by default runs/study- and the name."""
    only: tuple[str, ...] = ()
    """Some of the runs, by name and seed, in this order: A-0, 'gamma-*', '*-1'."""
    parallel: int | None = None
    """Runs at a time: by default 3 on a GPU; on a CPU one for each core, up to 4."""
    device: str | None = None
    """A torch device; the GPU if there is one."""
    list: bool = False
    """Only say what is done and what is not."""
    fresh: bool = False
    """Remove what an earlier study left of the runs chosen, and start them over."""


@dataclass(frozen=True)
class RunEntry:
    """A run as a study file lists it.

    Args:
        model: one to evaluate that is not trained here, as `mjp eval --model` takes it.
        models: other runs, evaluated together: each is compared with the first image by image.
        alone: nothing else may run beside it, because its time is measured.
    """

    name: str
    label: str = ""
    recipe: str | None = None
    variant: str | None = None
    set: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    models: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    evaluations: tuple[str, ...] = ()
    alone: bool = False

    def __post_init__(self) -> None:
        for name in (self.name, *self.evaluations):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name == TRAINING:
                raise ConfigError(f"{name!r} is no name for a folder of a run or an evaluation")
        if (self.model or self.models) and (self.recipe or self.variant or self.set):
            raise ConfigError(f"{self.name} has a model, which is not trained: no recipe, no set")


@dataclass(frozen=True)
class StudyFile:
    """A study as its TOML file says it; recipe and set are of all runs, before their own."""

    name: str
    recipe: str | None = None
    set: dict[str, Any] = field(default_factory=dict)
    evaluations: dict[str, Any] = field(default_factory=dict)
    runs: tuple[RunEntry, ...] = ()

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.runs]
        if not names or len(set(names)) < len(names):
            raise ConfigError("[[runs]] must have different names, and be at least one")
        trained = {one.name: one.seeds for one in self.runs if not (one.model or one.models)}
        for entry in self.runs:
            for other in entry.models:
                if not set(entry.seeds) <= set(trained.get(other, ())):
                    hint = suggestion(other, list(trained))
                    raise ConfigError(f"{entry.name}: no run {other!r} with these seeds{hint}")


@dataclass(frozen=True)
class Step:
    """A process: the training of a run, or one of its evaluations.

    Args:
        command: what follows `mjp`, {out} and {root} still in it.
        key: what decides its outcome, wherever the data lies; of a training, its recipe as TOML.
        needs: jobs that must be done before.
    """

    run: str
    part: str
    command: tuple[str, ...]
    key: str
    needs: tuple[str, ...]
    alone: bool

    @property
    def name(self) -> str:
        """What its folder is called."""
        return f"{self.run}/{self.part}"


def read_study(name: str) -> StudyFile:
    """A study by the name of one of the package's, or the path of a TOML file."""
    known = {path.stem: path for path in sorted(STUDIES.glob("*.toml"))}
    if name not in known and not name.endswith(".toml"):
        hint = suggestion(name, list(known))
        raise ConfigError(f"there is no study {name!r}{hint} (or the path of a .toml file)")
    path = known.get(name, Path(name))
    return from_mapping(StudyFile, read_toml(path), where=str(path))


def jobs_of(file: StudyFile, device: str | None = None) -> list[Step]:
    """All jobs of a study, in order; raises where something in it cannot work."""
    jobs = []
    for entry, seed in ((one, seed) for one in file.runs for seed in one.seeds):
        run, ratio = f"{entry.name}-{seed}", None
        trained = () if entry.model else entry.models or (entry.name,)
        needs = tuple(f"{name}-{seed}/{TRAINING}" for name in trained)
        models = [f"{name}={{out}}/{name}-{seed}/{TRAINING}/final" for name in trained]
        models = models or [f"{entry.name}={entry.model}"]
        if not entry.model and not entry.models:
            recipe = _recipe(file, entry, seed)
            ratio = f"{recipe.mjp.ratio:g}"
            command = [TRAINING, f"{{out}}/{run}/recipe.toml", "--out", f"{{out}}/{needs[0]}"]
            command += ["--run.device", device] if device else []
            jobs.append(Step(run, TRAINING, tuple(command), recipe.to_toml(), (), entry.alone))
        for part in entry.evaluations:
            command, names = _evaluation(file, f"run {entry.name}: evaluation {part}", part, ratio)
            key = json.dumps(command)
            command += ["--model", *models, "--out", f"{{out}}/{run}/{part}"]
            command += ["--device", device] if device and "device" in names else []
            jobs.append(Step(run, part, tuple(command), key, needs, entry.alone))
    return jobs


def _recipe(file: StudyFile, entry: RunEntry, seed: int) -> Any:
    """The recipe of a run: what is set for all, then its variant, then what is set for it."""
    name, where = entry.recipe or file.recipe, f"run {entry.name}"
    if name is None:
        raise ConfigError(f"{where}: there is no recipe; name one, for the run or for all")
    recipe = recipe_from(_merged(tomllib.loads(read_recipe(name).to_toml()), file.set), where)
    recipe = recipe if entry.variant is None else recipe.with_variant(entry.variant)
    changes = _merged(entry.set, {"run": {"seed": seed}})
    return recipe_from(_merged(tomllib.loads(recipe.to_toml()), changes), where)


def _merged(values: Any, changes: Any) -> Any:
    """The values with the changes, section by section."""
    if not (isinstance(values, Mapping) and isinstance(changes, Mapping)):
        return changes
    return {**values, **{name: _merged(values.get(name), new) for name, new in changes.items()}}


def _evaluation(
    file: StudyFile, where: str, part: str, ratio: str | None
) -> tuple[list[str], set[str]]:
    """The verb and the flags of an evaluation, its models and its folder left out; and the names
    of all options of the verb."""
    from mjp.catalog import verbs  # It lists this module too.

    settings = file.evaluations.get(part)
    if not isinstance(settings, Mapping):
        hint = suggestion(part, list(file.evaluations))
        raise ConfigError(f"{where}: there is no [evaluations.{part}]{hint}")
    known = {verb.name: verb.options for verb in verbs() if not verb.takes_recipe}
    names = {name: {field.name for field in fields(kind)} for name, kind in known.items()}
    flags = dict(settings)
    verb = flags.pop("verb", "")
    check_choice(f"{where}: verb", verb, (name for name in known if "model" in names[name]))
    if given := {"model", "out", "device"} & flags.keys():
        raise ConfigError(f"{where}: {given.pop()} is set by the study itself")
    if ratio is None and "{ratio}" in str(flags):
        raise ConfigError(f"{where}: a model that is not trained here has no {{ratio}}")
    from_mapping(known[verb], {"model": ["to be given"], **flags}, where=where)
    words = verb.split()
    for name, value in flags.items():
        if isinstance(value, bool):
            name, value = name if value else f"no_{name}", []
        words += [f"--{name.replace('_', '-')}"]
        words += map(str, value if isinstance(value, list) else [value])
    return [word.replace("{ratio}", ratio or "") for word in words], names[verb]


def run(options: StudyOptions) -> None:
    """Does what is not done yet, then prints a table of the runs."""
    file = read_study(options.name)
    labels = {f"{one.name}-{seed}": one.label for one in file.runs for seed in one.seeds}
    for pattern in options.only:
        if not fnmatch.filter(labels, pattern):
            raise ConfigError(f"no run is called {pattern!r}{suggestion(pattern, list(labels))}")
    names = [name for one in options.only or ("*",) for name in fnmatch.filter(labels, one)]
    chosen = {name: labels[name] for name in names}
    every = jobs_of(file, options.device)
    jobs = [job for name in chosen for job in every if job.run == name]
    pool = Pool(options, (options.out or Path(f"runs/study-{file.name}")).expanduser().resolve())
    if options.list:
        pool.show(jobs, chosen)
        return
    if any("{root}" in f"{job.command} {job.key}" for job in jobs) and not (
        options.root and pool.root.is_dir()
    ):
        raise ConfigError(f"--root {options.root}: there is no such folder; name that of the data")
    for name in chosen if options.fresh else ():
        shutil.rmtree(pool.out / name, ignore_errors=True)
    for job in jobs:
        if job.part == TRAINING and pool.is_done(job.name) and pool.seconds(job) is None:
            raise ConfigError(
                f"{pool.out / job.name} was trained with another recipe: start it over with "
                "--fresh, or choose another --out"
            )
    try:
        pool.carry_out([job for job in jobs if pool.seconds(job) is None])
    finally:
        pool.show(jobs, chosen)
    if pool.failures:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in pool.failures.items())
        raise MjpError(f"{len(pool.failures)} of {len(jobs)} jobs failed. {reasons}")


class Pool:
    """Carries out jobs, several processes at a time."""

    def __init__(self, options: StudyOptions, out: Path) -> None:
        from mjp.core.team import choose_device
        from mjp.data.feed import available_cores

        self.out = out
        self.root = Path(options.root or "").expanduser().resolve()
        self.failures: dict[str, str] = {}
        cores, on_cpu = available_cores(), choose_device(options.device).type == "cpu"
        self.parallel = min(4, cores) if on_cpu else 3
        if options.parallel is not None:
            check_count("parallel", options.parallel)
            self.parallel = options.parallel
        self.environment = dict(os.environ)
        if on_cpu and self.parallel > 1:
            self.environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // self.parallel)))
        self._running: dict[Step, tuple[subprocess.Popen[bytes], float]] = {}

    def is_done(self, name: str) -> bool:
        """Whether a job came to its end, with whatever settings."""
        return (self.out / name / DONE).is_file()

    def seconds(self, job: Step) -> float | None:
        """The time that a job took; None where it is not done, or was with other settings."""
        try:
            content = json.loads((self.out / job.name / DONE).read_text(encoding="utf-8"))
            return float(content["seconds"]) if content["key"] == job.key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def carry_out(self, waiting: list[Step]) -> None:
        """Begins what may begin until nothing is left; Ctrl-C is passed on, and waited for."""
        from mjp.core.run import stop_requests

        end = math.inf
        say(f"{len(waiting)} jobs are to be done, {self.parallel} at a time, in {self.out}")
        try:
            with stop_requests() as request:
                while time.monotonic() < end:
                    if request.number and end == math.inf:
                        end = time.monotonic() + LAST_SECONDS
                        for process, _ in self._running.values():
                            process.send_signal(request.number)
                    for job in () if request.number else tuple(waiting):
                        if self._may_begin(job):
                            waiting.remove(job)
                            self._begin(job)
                    if not self._running:
                        break
                    time.sleep(TICK_SECONDS)
                    for job, (process, _) in list(self._running.items()):
                        if process.poll() is not None:
                            self._end(job, stopping=bool(request.number))
                if request.number:
                    raise StoppedError("stopped; go on with the same command", request.number)
        finally:
            for process, _ in self._running.values():
                process.kill()
        self.failures |= {job.name: f"needs {', '.join(job.needs)}" for job in waiting}

    def _may_begin(self, job: Step) -> bool:
        alone = job.alone or any(other.alone for other in self._running)
        free = len(self._running) < (1 if alone else self.parallel)
        return free and all(map(self.is_done, job.needs))

    def _begin(self, job: Step) -> None:
        folder, command = self.out / job.name, list(job.command)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if job.part == TRAINING:
            recipe = job.key.replace("{root}", str(self.root))
            (folder.parent / RECIPE).write_text(recipe, encoding="utf-8")
            command += ["--resume"] if (folder / RECIPE).is_file() else []
        else:
            shutil.rmtree(folder, ignore_errors=True)  # Of one that was stopped.
        for name, place in (("{out}", self.out), ("{root}", self.root)):
            command = [word.replace(name, str(place)) for word in command]
        say(f"{job.name} begins")
        with folder.with_name(f"{job.part}.log").open("ab") as log:
            # In a session of its own, so that Ctrl-C reaches it once: through the study.
            process = subprocess.Popen(
                [sys.executable, "-m", "mjp", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        self._running[job] = process, time.monotonic()

    def _end(self, job: Step, *, stopping: bool) -> None:
        """Notes how a process ended."""
        process, begun = self._running.pop(job)
        seconds, folder = time.monotonic() - begun, self.out / job.name
        if process.returncode == 0:
            beside = 1 if job.alone else self.parallel
            content = {"key": job.key, "seconds": seconds, "parallel": beside}
            part = folder / f"{DONE}.part"
            part.write_text(json.dumps(content), encoding="utf-8")
            part.replace(folder / DONE)
            if job.part == TRAINING:
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            say(f"{job.name} is done after {clock(seconds)}")
        elif not stopping:
            log = folder.with_name(f"{job.part}.log").read_text(errors="replace")
            last = log.strip().split("\n")[-1].strip()
            self.failures[job.name] = f"status {process.returncode}: {last}"
            say(f"{job.name} failed: {last}")

    def show(self, jobs: Sequence[Step], labels: Mapping[str, str]) -> None:
        """A row for each run: what of it is done, and the time that took."""
        table = Table("run", "label", "state", "time", title=str(self.out))
        for name, label in labels.items():
            times = {job: self.seconds(job) for job in jobs if job.run == name}
            failed = [job.part for job in times if job.name in self.failures]
            left = [job.part for job, seconds in times.items() if seconds is None]
            state = f"to do: {', '.join(left)}" if left else "done"
            state = f"failed: {', '.join(failed)}" if failed else state
            total = sum(filter(None, times.values()))
            table.add_row(name, escape(label), state, clock(total) if total else "")
        results().print(table)


VERBS = (Verb("study", StudyOptions, run),)
