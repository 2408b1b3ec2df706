"""`Folder`: what a command left, read back record by record, whole or half-written."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mjp.core.records import RECORDS, Record, read_lines
from mjp.report.table import Section

LEFT_ASIDE = ("audit image", "train step")
"""Kinds of which a folder may hold millions, and of which no page shows a single one."""
FOLDER = "folder"
"""The condition that records are given here: the name of the folder that they are from."""


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
class Folder:
    """A folder with records.

    Args:
        name: what to call it among others.
        problems: what is missing or broken, in sentences.
        replaced: how many records count no more, because a later one measured the same.
    """

    name: str
    path: Path
    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()
    replaced: int = 0

    @property
    def records(self) -> list[Record]:
        return [entry.record for entry in self.entries]


def find_folders(paths: Iterable[Path], sections: Sequence[Section] = ()) -> list[Folder]:
    """The folders of records among these and below them, each once.

    Args:
        sections: say what is unfinished.
    """
    folders: dict[Path, Folder] = {}
    for path in paths:
        path = path.expanduser()
        files = [path] if path.is_file() else sorted(_record_files(path))
        for file in files:
            if file.resolve() not in folders:
                folders[file.resolve()] = _read(file, _name(file, path), sections)
        if not files:
            reason = "holds no records" if path.is_dir() else "does not exist"
            problem = f"{path} {reason}: nothing was measured there, or it is another folder."
            folders[path.resolve()] = Folder(path.name or str(path), path, (), (problem,))
    return _with_labels_of_one_model(list(folders.values()))


def _record_files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob(RECORDS):
        if not any(part.startswith(".") for part in file.relative_to(folder).parts):
            yield file


def _name(file: Path, given: Path) -> str:
    """The folder, from the one that was given on."""
    if given.is_file():
        return file.resolve().parent.name
    return (Path(given.resolve().name) / file.parent.relative_to(given)).as_posix()


def _read(file: Path, name: str, sections: Sequence[Section]) -> Folder:
    """The folder that a file of records tells of; of records of one key the last counts."""
    shown = f"{name}/{file.name}"
    latest: dict[str, Entry] = {}
    broken: list[str] = []
    problems: list[str] = []
    count = 0
    try:
        for line in read_lines(file):
            if line.record is None:
                broken.append(str(line.number))
            elif line.record.kind not in LEFT_ASIDE:
                record, key = line.record, line.record.key()
                count += 1
                latest.pop(key, None)
                conditions = {**record.conditions, FOLDER: name}
                record = Record(record.kind, conditions, record.values)
                latest[key] = Entry(record, shown, line.number, line.text)
    except OSError as error:
        problems.append(f"{shown} cannot be read: {error.strerror}.")
    if broken:
        few = ", ".join(broken[:5]) + (", …" if len(broken) > 5 else "")
        noun = "line is" if len(broken) == 1 else "lines are"
        problems.append(f"{shown}: {len(broken)} {noun} no record, perhaps cut off: {few}.")
    if not latest and not problems:
        problems.append(
            f"{name} holds no result yet: its command runs, or was interrupted; then go on with "
            "the same command and --resume."
        )
    records = [entry.record for entry in latest.values()]
    for section in sections:
        problem = section.check(records) if section.check else ""
        if problem:
            problems.append(f"{name}: {problem}".replace("{path}", str(file.parent)))
    return Folder(name, file.parent, tuple(latest.values()), tuple(problems), count - len(latest))


def _with_labels_of_one_model(folders: list[Folder]) -> list[Folder]:
    """The folders with labels that mean one model each, among measurements of a kind on a set."""
    homes: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for folder in folders:
        for record in folder.records:
            if weights := record.conditions.get("weights"):
                homes.setdefault(_label(record), {}).setdefault(str(weights), set()).add(
                    folder.name
                )
    twice = {
        label
        for label, weights in homes.items()
        if len(weights) > 1 and len(set().union(*weights.values())) > 1
    }

    def renamed(entry: Entry, name: str) -> Entry:
        record = entry.record
        labels = {
            of: f"{record.conditions[of]} ({name})"
            for of in ("model", "than")
            if of in record.conditions and _label(record, of) in twice
        }
        record = Record(record.kind, {**record.conditions, **labels}, record.values)
        return replace(entry, record=record) if labels else entry

    return [
        replace(folder, entries=tuple(renamed(entry, folder.name) for entry in folder.entries))
        for folder in folders
    ]


def _label(record: Record, of: str = "model") -> tuple[str, ...]:
    """What kind of measurement, on which data, of a model that is called what."""
    told = record.conditions
    return record.kind.split(" ")[0], str(told.get("data")), str(told.get(of))
