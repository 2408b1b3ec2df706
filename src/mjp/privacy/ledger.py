"""`Ledger`: what an audit has found so far, in files, so that it can be gone on with."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from mjp.core.records import Record, Scalar, append_records

KIND = "audit image"
_NOT_OF_THE_OUTCOME = ("model", "processes", "hardware", "mjp", "torch", "python", "images_asked")
"""Conditions that change nothing but rounding, or only what the model is called."""


class Ledger:
    """The outcomes of single pictures, by what decides them.

    Every process writes a file of its own and reads those of all.

    Args:
        folder: of the audit.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder / "ledger"
        self._file = self._folder / f"{rank}.jsonl"

    def clear(self) -> None:
        """Forgets what earlier runs found."""
        for file in self._folder.glob("*.jsonl"):
            file.unlink()

    def add(self, records: list[Record]) -> None:
        """Writes outcomes down."""
        self._end_line()
        append_records(self._file, records)

    def found(self) -> dict[str, Record]:
        """All outcomes, by their keys; a line that was cut off is left out."""
        records = {}
        for file in sorted(self._folder.glob("*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                try:
                    body = json.loads(line)
                    record = Record(body["kind"], body["conditions"], body["values"])
                except (ValueError, KeyError, TypeError):
                    continue
                records[key_of(record.conditions)] = record
        return records

    def _end_line(self) -> None:
        """Keeps what is added apart from a line that was cut off."""
        if not self._file.is_file() or not (size := self._file.stat().st_size):
            return
        with self._file.open("rb+") as file:
            file.seek(size - 1)
            if file.read() != b"\n":
                file.write(b"\n")


def key_of(conditions: Mapping[str, Scalar]) -> str:
    """What decides an outcome, as a text."""
    told = {name: value for name, value in conditions.items() if name not in _NOT_OF_THE_OUTCOME}
    return json.dumps(told, sort_keys=True)


def file_name(*parts: object) -> str:
    """A name for a file, of letters, digits, dots and dashes only."""
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", str(part)).strip("_.") or "_" for part in parts)
