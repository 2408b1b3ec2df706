"""What a model got wrong under a corruption, in a file, so that a run can be gone on with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mjp.core.records import Scalar

_NOT_OF_THE_OUTCOME = ("model", "processes", "hardware", "mjp", "torch", "python")
"""Conditions that change nothing but rounding, or only what the model is called."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one model got wrong.

    Args:
        wrong: at each severity, 1 for every image it got wrong and 0 for the others.
        unreadable: how many images could not be read.
    """

    wrong: list[np.ndarray]
    unreadable: int

    def with_more(self, other: "Outcome") -> "Outcome":
        """This, and further severities."""
        return Outcome(self.wrong + other.wrong, self.unreadable + other.unreadable)


def keep(folder: Path, name: str, facts: Mapping[str, Scalar], outcome: Outcome) -> None:
    """Writes an outcome, whole or not at all."""
    file = _file(folder, name, facts)
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {str(place): one.astype(np.uint8) for place, one in enumerate(outcome.wrong)}
    metadata = {"conditions": _key(facts), "unreadable": str(outcome.unreadable)}
    part = file.with_suffix(".part")
    save_file(tensors, part, metadata=metadata)
    part.replace(file)


def kept(folder: Path, name: str, facts: Mapping[str, Scalar]) -> Outcome | None:
    """What was found for the same weights under the same conditions; None if nothing was."""
    try:
        with safe_open(_file(folder, name, facts), framework="numpy") as content:
            metadata = content.metadata() or {}
            if metadata.get("conditions") != _key(facts):
                return None
            wrong = [content.get_tensor(str(n)).astype(float) for n in range(len(content.keys()))]
            return Outcome(wrong, int(metadata["unreadable"]))
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def _file(folder: Path, name: str, facts: Mapping[str, Scalar]) -> Path:
    return folder / f"{name}-{facts['weights']}.safetensors"


def _key(facts: Mapping[str, Scalar]) -> str:
    told = {name: value for name, value in facts.items() if name not in _NOT_OF_THE_OUTCOME}
    return json.dumps(told, sort_keys=True)
