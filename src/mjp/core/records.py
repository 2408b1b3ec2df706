"""Records: every measured number, as one JSON object per line."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

Scalar = str | int | float | bool | None

RECORDS = "records.jsonl"
"""The file of a folder's records."""

ENVIRONMENT = frozenset({"processes", "hardware", "mjp", "torch", "python"})
"""Conditions that say where a number was measured, not what was measured."""


@dataclass(frozen=True)
class Record:
    """One measurement: what was measured, under which conditions, and what came out."""

    kind: str
    conditions: Mapping[str, Scalar]
    values: Mapping[str, Scalar]

    def key(self) -> str:
        """The measurement's identity: its kind and all conditions but those of the environment."""
        decisive = {
            name: _finite(value)
            for name, value in self.conditions.items()
            if name not in ENVIRONMENT
        }
        return json.dumps([self.kind, decisive], sort_keys=True)

    def to_json(self) -> str:
        """One line of JSON; NaN and infinities, which JSON lacks, become null."""
        body = {
            "kind": self.kind,
            "conditions": {name: _finite(value) for name, value in self.conditions.items()},
            "values": {name: _finite(value) for name, value in self.values.items()},
        }
        return json.dumps(body, allow_nan=False)


@dataclass(frozen=True)
class Line:
    """A line of a file of records; its record is None where it holds none.

    Args:
        number: from 1.
    """

    number: int
    text: str
    record: Record | None


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file of records that are not blank, broken ones included."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if text := line.strip():
                yield Line(number, text, _parse(text))


def read_records(path: Path) -> list[Record]:
    """The records of a file, or of a folder's `records.jsonl`; none where there is no file."""
    file = path / RECORDS if path.is_dir() else path
    if not file.is_file():
        return []
    return [line.record for line in read_lines(file) if line.record is not None]


def append_records(path: Path, records: list[Record]) -> None:
    """Adds records to a JSON-lines file, making its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(record.to_json() + "\n" for record in records)


def count_lines(path: Path) -> int:
    """How many lines a file has; none where there is no file."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _parse(text: str) -> Record | None:
    try:
        body = json.loads(text)
        kind, conditions, values = body["kind"], body["conditions"], body["values"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_whole = isinstance(kind, str) and all(map(_is_flat, (conditions, values)))
    return Record(kind, conditions, values) if is_whole else None


def _is_flat(values: object) -> bool:
    return isinstance(values, dict) and all(
        value is None or isinstance(value, str | int | float | bool) for value in values.values()
    )


def _finite(value: Scalar) -> Scalar:
    return None if isinstance(value, float) and not math.isfinite(value) else value
