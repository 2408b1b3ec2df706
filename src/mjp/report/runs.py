"""`Run`: what a command left in a folder, read back record by record, whole or half-written."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mjp.core.records import Record

RECORDS = "records.jsonl"
LEFT_ASIDE = ("audit image", "train step")
"""Kinds of which a run may hold millions, and of which no page shows a single one."""
DRAWN = 16
"""Pictures of an audit that a page shows at most."""
DECIDE = (
    *(
        "model",
        "than",
        "value",
        "data",
        "inliers",
        "ratio",
        "draws",
        "jigsaw",
        "among",
        "precision",
    ),
    *("corruption", "image", "attack", "defence", "update", "epoch", "note"),
)
"""Conditions that tell one measurement from another; of two that agree, the later one counts."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A record and where it stands.

    Args:
        record: as it is shown; its model may have another label than in the file.
        file: as a person would name it.
        line: of that file, from 1.
        text: the line itself.
    """

    record: Record
    file: str
    line: int
    text: str


@dataclass(frozen=True, eq=False)
class Run:
    """A folder with records.

    Args:
        name: what to call it among others.
        problems: what is missing or broken, in sentences.
        replaced: how many records count no more, because a later one tells the same.
        images: what an audit found of its first pictures, which may be drawn.
    """

    name: str
    folder: Path
    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()
    replaced: int = 0
    images: tuple[Record, ...] = ()

    def of(self, *kinds: str) -> list[Record]:
        """The records of these kinds."""
        return [one.record for one in self.entries if one.record.kind in kinds]

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(one.record.kind for one in self.entries))


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs in these folders and below them, each once; one that cannot be read says so."""
    found: dict[Path, Run] = {}
    for path in paths:
        path = path.expanduser()
        files = [path] if path.is_file() else sorted(_record_files(path))
        for file in files:
            found.setdefault(file.resolve(), read_run(file, _name(file, path)))
        if not files:
            reason = "holds no records" if path.is_dir() else "does not exist"
            problem = f"{path} {reason}: nothing was measured there, or it is another folder."
            found[path.resolve()] = Run(path.name or str(path), path, (), (problem,))
    return _told_apart(list(found.values()))


def _record_files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob(RECORDS):
        if not any(part.startswith(".") for part in file.relative_to(folder).parts):
            yield file


def _name(file: Path, given: Path) -> str:
    """The folder, from the one that was given on."""
    if given.is_file():
        return file.resolve().parent.name
    inside = file.parent.relative_to(given)
    return (Path(given.resolve().name) / inside).as_posix()


def read_run(file: Path, name: str) -> Run:
    """The run that a file of records tells of."""
    folder = file.parent
    entries: list[Entry] = []
    broken: list[int] = []
    images: dict[tuple[object, ...], Record] = {}
    problems: list[str] = []
    shown = f"{name}/{file.name}"
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                record = record_of(line)
                if record is None:
                    broken += [number] if line.strip() else []
                elif record.kind not in LEFT_ASIDE:
                    entries.append(Entry(record, shown, number, line.strip()))
                elif record.kind == "audit image":
                    place = record.conditions.get("number")
                    if isinstance(place, int) and place < DRAWN:
                        images[_key(record)] = record
    except OSError as error:
        problems.append(f"{shown} cannot be read: {error.strerror}.")
    if broken:
        few = ", ".join(map(str, broken[:5])) + (", …" if len(broken) > 5 else "")
        noun = "line is" if len(broken) == 1 else "lines are"
        problems.append(f"{shown}: {len(broken)} {noun} no record, perhaps cut off: {few}.")
    kept = _latest(entries)
    run = Run(name, folder, tuple(kept), (), len(entries) - len(kept), tuple(images.values()))
    return replace(run, problems=(*problems, *_unfinished(run)))


def record_of(line: str) -> Record | None:
    """The record that a line holds; None where it holds none."""
    try:
        body = json.loads(line)
        kind, conditions, values = body["kind"], body["conditions"], body["values"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    fit = isinstance(kind, str) and all(_is_flat(one) for one in (conditions, values))
    return Record(kind, conditions, values) if fit else None


def _is_flat(values: object) -> bool:
    return isinstance(values, dict) and all(
        one is None or isinstance(one, str | int | float | bool) for one in values.values()
    )


def _latest(entries: list[Entry]) -> list[Entry]:
    """Of entries that tell the same, the last, at its place."""
    last = {_key(entry.record): place for place, entry in enumerate(entries)}
    return [entry for place, entry in enumerate(entries) if last[_key(entry.record)] == place]


def _key(record: Record) -> tuple[object, ...]:
    return (record.kind, *(record.conditions.get(name) for name in DECIDE))


def _unfinished(run: Run) -> Iterator[str]:
    """What shows that a command did not come to its end."""
    if not run.entries and not run.problems:
        hint = ""
        if any((run.folder / "ledger").glob("*.jsonl")):
            hint = ": an audit that was interrupted; go on with the same command and --resume"
        yield f"{run.name} holds no result yet{hint or '; its command was interrupted, or runs'}."
    for start in run.of("train start")[-1:]:
        if not run.of("train end"):
            done = len(run.of("train epoch"))
            epochs = start.conditions.get("run.epochs")
            yield (
                f"{run.name}: training is not finished, {done} of {epochs} epochs are written "
                f"down; go on with mjp train --resume --out {run.folder}."
            )


def _told_apart(runs: list[Run]) -> list[Run]:
    """The runs with labels that mean one model each, among measurements of one kind on one set."""
    weights: dict[tuple[str, str, str], set[str]] = {}
    for run in runs:
        for one in run.entries:
            if "weights" in one.record.conditions:
                found = weights.setdefault(_same(one.record), set())
                found.add(str(one.record.conditions["weights"]))
    twice = {key for key, found in weights.items() if len(found) > 1}
    return [_relabelled(run, twice) for run in runs] if twice else runs


def _same(record: Record) -> tuple[str, str, str]:
    """What kind of measurement, on which data, of a model that is called what."""
    kind = record.kind.split()[0]
    return kind, str(record.conditions.get("data")), str(record.conditions.get("model"))


def _relabelled(run: Run, twice: set[tuple[str, str, str]]) -> Run:
    def renamed(record: Record) -> Record:
        kind, data, _ = _same(record)
        told = dict(record.conditions)
        for name in ("model", "than"):
            if name in told and (kind, data, str(told[name])) in twice:
                told[name] = f"{told[name]} ({run.name})"
        return Record(record.kind, told, record.values)

    entries = tuple(replace(one, record=renamed(one.record)) for one in run.entries)
    return replace(run, entries=entries, images=tuple(map(renamed, run.images)))
