"""Records: every measured number, as one JSON object per line."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
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
        decisive = {n: v for n, v in _finite(self.conditions).items() if n not in ENVIRONMENT}
        return json.dumps([self.kind, decisive], sort_keys=True)

    def to_json(self) -> str:
        """One line of JSON; NaN and infinities, which JSON lacks, become null."""
        body = {"conditions": _finite(self.conditions), "values": _finite(self.values)}
        return json.dumps({"kind": self.kind, **body}, allow_nan=False)


def read_lines(path: Path) -> Iterator[tuple[int, str, Record | None]]:
    """The lines of a file that are not blank: number from 1, text, and record, None if broken."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if text := line.strip():
                yield number, text, _parse(text)


def read_records(path: Path) -> list[Record]:
    """The records of a file, or of a folder's `records.jsonl`; none where there is no file."""
    file = path / RECORDS if path.is_dir() else path
    if not file.is_file():
        return []
    return [record for _, _, record in read_lines(file) if record is not None]


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Adds records to a JSON-lines file, making its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(record.to_json() + "\n" for record in records)


def _parse(text: str) -> Record | None:
    try:
        body = json.loads(text)
        record = Record(body["kind"], body["conditions"], body["values"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_whole = isinstance(record.kind, str) and _is_flat(record.conditions)
    return record if is_whole and _is_flat(record.values) else None


def _is_flat(values: object) -> bool:
    return isinstance(values, dict) and all(isinstance(v, Scalar) for v in values.values())


def _finite(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
