"""Records: every measured number, as one JSON object per line."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Record:
    """One measurement: what was measured, under which conditions, and what came out."""

    kind: str
    conditions: Mapping[str, Scalar]
    values: Mapping[str, Scalar]

    def to_json(self) -> str:
        """One line of JSON; NaN and infinities, which JSON lacks, become null."""
        body = {
            "kind": self.kind,
            "conditions": {name: _finite(value) for name, value in self.conditions.items()},
            "values": {name: _finite(value) for name, value in self.values.items()},
        }
        return json.dumps(body, allow_nan=False)


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


def _finite(value: Scalar) -> Scalar:
    return None if isinstance(value, float) and not math.isfinite(value) else value
