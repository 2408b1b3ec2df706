"""Checkpoints of a run: written whole or not at all, the last two kept, the newest whole one read.

A checkpoint is a folder: tensors in safetensors files, one from each process that holds a part of
them, written and read through torch.distributed.checkpoint, and `state.json`. It can be read by any
number of processes, whatever number wrote it.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from mjp.core.errors import CheckpointError
from mjp.core.team import Team

KEPT = 2
STATE_FILE = "state.json"


@dataclass(frozen=True)
class State:
    """How far a run has come, beside its tensors.

    Args:
        step: how many steps have been made.
        best: the highest score in validation so far; None before the first.
        best_epoch: the epoch, from 1, that it was measured after.
        last: the score of the last validation.
        records: bytes of records.jsonl that belong to those steps.
        recipe: the recipe, as TOML.
        sums: of each loss over the steps of the epoch so far, and of those since the last record.
    """

    step: int
    best: float | None
    best_epoch: int | None
    last: float | None
    records: int
    recipe: str
    sums: dict[str, dict[str, float]] = field(default_factory=dict)


def write(folder: Path, tensors: dict[str, Tensor], state: State, team: Team) -> Path:
    """Writes a checkpoint and removes all but the last two; every process of the team calls this.

    Until the last moment it bears a name that no reader looks at.
    """
    target = folder / f"step-{state.step:09d}"
    part = folder / f".{target.name}.part"
    try:
        if team.leads:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        team.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # That there is one process is known.
            writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
            save(tensors, storage_writer=writer, no_dist=team.size == 1)
        if team.leads:
            _write_synced(part / STATE_FILE, json.dumps(asdict(state), indent=1))
            _sync_folder(part)
            if target.exists():
                shutil.rmtree(target)
            part.rename(target)
            _sync_folder(folder)
            for old in checkpoints(folder)[:-KEPT]:
                shutil.rmtree(old)
        team.wait()
    except (OSError, SafetensorError, CheckpointException) as error:
        if team.leads:
            shutil.rmtree(part, ignore_errors=True)
        good = checkpoints(folder)
        kept = f"the last good one is {good[-1]}" if good else "there is none before it"
        raise CheckpointError(
            f"checkpoint {target} cannot be written: {_reason(error)}; {kept}. Make room, then go "
            "on with --resume"
        ) from error
    return target


def read(
    folder: Path, tensors: dict[str, Tensor], team: Team, say: Callable[[str], None]
) -> State | None:
    """Reads the newest checkpoint that is whole into the tensors; None where there is none.

    Args:
        say: told about each checkpoint that cannot be read.
    """
    candidates = checkpoints(folder)
    for path in reversed(candidates):
        try:
            state = read_state(path)
            _check_whole(path, tensors)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reader = HuggingFaceStorageReader(str(path))
                load(tensors, storage_reader=reader, no_dist=team.size == 1)
        except (CheckpointError, CheckpointException, SafetensorError, OSError) as error:
            say(f"checkpoint {path} cannot be read ({_reason(error)}); trying the one before")
        else:
            return state
    if candidates:
        raise CheckpointError(f"none of the checkpoints in {folder} can be read")
    return None


def read_state(path: Path) -> State:
    """What a checkpoint says of itself."""
    try:
        return State(**json.loads((path / STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path / STATE_FILE} is damaged: {error}") from error


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step-*"))


def _check_whole(path: Path, tensors: dict[str, Tensor]) -> None:
    """Raises unless the files are whole and hold every tensor in its shape, before any is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stored = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    for name, tensor in tensors.items():
        size = getattr(stored.get(name), "size", None)
        if size != tensor.shape:
            raise CheckpointError(f"{name} is {size} there and {tuple(tensor.shape)} here")


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Makes names in a folder last through a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: BaseException) -> str:
    """What went wrong, without the frames that torch puts around it."""
    failures: Any = getattr(error, "failures", None)
    if failures:
        first = next(iter(failures.values()))
        inner = first[0] if isinstance(first, tuple) else first
        return f"{inner}"
    return str(error)


def tensors_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of a model and of its AdamW, by name."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{key}"] = value
    return tensors
