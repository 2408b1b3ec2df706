"""`Folder`: what a command left, read back record by record, whole or half-written."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
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
    entries: list[Entry]
    problems: list[str]
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
    for path in map(Path.expanduser, paths):
        inside = (file.relative_to(path) for file in sorted(path.rglob(RECORDS)))
        files = [path / file for file in inside if not any(p.startswith(".") for p in file.parts)]
        if path.is_file():
            folders[path.resolve()] = _read(path, path.resolve().parent.name, sections)
        elif not files:
            reason = "holds no records" if path.is_dir() else "does not exist"
            problem = f"{path} {reason}: nothing was measured there, or it is another folder."
            folders[path.resolve()] = Folder(path.name or str(path), path, [], [problem])
        for file in files:
            if file.resolve() not in folders:
                name = Path(path.resolve().name) / file.parent.relative_to(path)
                folders[file.resolve()] = _read(file, name.as_posix(), sections)
    _label_models_apart(folders.values())
    return list(folders.values())


def _read(file: Path, name: str, sections: Sequence[Section]) -> Folder:
    """The folder that a file of records tells of; of records of one key the last counts."""
    shown = f"{name}/{file.name}"
    latest: dict[str, Entry] = {}
    broken: list[str] = []
    problems: list[str] = []
    count = 0
    try:
        for number, text, record in read_lines(file):
            if record is None:
                broken.append(str(number))
            elif record.kind not in LEFT_ASIDE:
                count += 1
                labelled = replace(record, conditions={**record.conditions, FOLDER: name})
                latest[record.key()] = Entry(labelled, shown, number, text)
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
    folder = Folder(name, file.parent, list(latest.values()), problems, count - len(latest))
    for section in sections:
        if section.check and (problem := section.check(folder.records)):
            problems.append(f"{name}: {problem}".replace("{path}", str(file.parent)))
    return folder


def _label_models_apart(folders: Iterable[Folder]) -> None:
    """Adds the folder to a label that means several models, in measurements of a kind on a set."""
    homes: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    for folder in folders:
        for record in folder.records:
            if weights := record.conditions.get("weights"):
                homes[_label(record, "model")].append((str(weights), folder.name))
    twice = {
        label
        for label, pairs in homes.items()
        if all(len(set(side)) > 1 for side in zip(*pairs, strict=True))
    }
    for folder in folders:
        for place, entry in enumerate(folder.entries):
            record = entry.record
            labels = {
                of: f"{record.conditions[of]} ({folder.name})"
                for of in ("model", "than")
                if of in record.conditions and _label(record, of) in twice
            }
            if labels:
                renamed = replace(record, conditions={**record.conditions, **labels})
                folder.entries[place] = replace(entry, record=renamed)


def _label(record: Record, of: str) -> tuple[str, ...]:
    """What kind of measurement, on which data, of a model that is called what."""
    told = record.conditions
    return record.kind.split(" ")[0], str(told.get("data")), str(told.get(of))
