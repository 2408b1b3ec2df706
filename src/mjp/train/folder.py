"""The folder of a run: its recipe, whether it may be written to, its checkpoints, its report.

A checkpoint is a folder: tensors in safetensors files, one from each process that holds a part of
them, written and read through torch.distributed.checkpoint, and `state.json`. It can be read by any
number of processes, whatever number wrote it. It is written whole or not at all, the last two are
kept, and the newest that is whole is read.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from mjp.core.configuration import from_mapping, read_toml
from mjp.core.display import clock
from mjp.core.errors import CheckpointError, ConfigError
from mjp.core.run import Run
from mjp.core.team import Team
from mjp.core.verbs import DEFAULT_TASK, RECIPE
from mjp.data.feed import Feed
from mjp.train.config import TaskConfig, TrainOptions
from mjp.train.task import Task

KEPT = 2
STATE_FILE = "state.json"
BROKEN = (OSError, SafetensorError, CheckpointException)
CHECKPOINTS = "checkpoints"
OWN = (CHECKPOINTS, "best", "final", "tensorboard", "unreadable.txt", RECIPE)
"""What a run writes into its folder, beside records."""


def claim(run: Run, options: TrainOptions[Any]) -> None:
    """Makes sure that the folder is free, or holds the run to be resumed, and notes the recipe."""
    if options.resume and options.fresh:
        raise ConfigError("--resume and --fresh contradict each other")
    begun = (run.out / RECIPE).exists()
    if begun and options.resume:
        _check_same(run.out, options.recipe)
    elif (begun or (run.out / CHECKPOINTS).exists()) and not (options.fresh or options.resume):
        raise ConfigError(
            f"{run.out} holds a run already; go on with it with --resume, start over with --fresh, "
            "or choose another --out"
        )
    run.team.wait()
    if options.fresh:
        run.cut(0)
    if run.leads:
        for name in OWN if options.fresh else ():
            if (run.out / name).is_dir():
                shutil.rmtree(run.out / name)
            else:
                (run.out / name).unlink(missing_ok=True)
        if options.fresh or not begun:
            (run.out / RECIPE).write_text(options.recipe.to_toml(), encoding="utf-8")


def _check_same(out: Path, config: TaskConfig) -> None:
    """Raises where a run is to be resumed with values that would change what it comes to."""
    path = out / RECIPE
    values = read_toml(path)
    before = {"task": values.pop("task", DEFAULT_TASK)}
    if before["task"] == config.task:
        before |= from_mapping(type(config), values, where=str(path)).decisive()
    now = {"task": config.task, **config.decisive()}
    changed = [
        f"{name} was {before.get(name)!r} and is now {value!r}"
        for name, value in now.items()
        if before.get(name) != value
    ]
    if changed:
        raise ConfigError(
            f"the run in {out} was started with another recipe: {'; '.join(changed[:5])}. Resume "
            f"it with its own (mjp train --resume --out {out}), or choose another --out"
        )


def report(run: Run, task: Task[Any], end: Mapping[str, Any], data: Feed) -> None:
    """Says what came out, and where it lies."""
    first = task.metric_names[0]
    lines = [
        f"best {first:<7}{end[f'best_{first}']:.2f} after epoch {end['best_epoch']}",
        f"last {first:<7}{end[f'last_{first}']:.2f}",
        f"time        {clock(end['seconds'])}",
        f"best model  {run.out / 'best'}",
        f"last model  {run.out / 'final'}",
        f"curves      tensorboard --logdir {run.out / 'tensorboard'}",
    ]
    if data.problems:
        listed = run.out / "unreadable.txt"
        listed.write_text("\n".join(data.problems) + "\n", encoding="utf-8")
        lines.append(f"{len(data.problems)} images could not be read and were left out: {listed}")
    lines.append(f"records: {run.records_file}")
    print("\n".join(["", *lines]))


@dataclass(frozen=True)
class State:
    """How far a run has come, beside its tensors.

    Args:
        best: the highest score in validation so far, which was after `best_epoch`, from 1.
        records: bytes of records.jsonl that belong to those steps.
        recipe: as TOML.
        sums: of each loss over the steps of the epoch so far, and of those since the last record.
    """

    step: int
    best: float | None
    best_epoch: int | None
    last: float | None
    records: int
    recipe: str
    sums: dict[str, dict[str, float]] = field(default_factory=dict)


def write_checkpoint(out: Path, tensors: dict[str, Tensor], state: State, team: Team) -> Path:
    """Writes a checkpoint and removes all but the last two; every process of the team calls this.

    Until the last moment it bears a name that no reader looks at.
    """
    target = out / CHECKPOINTS / f"step-{state.step:09d}"
    part = target.with_name(f".{target.name}.part")
    try:
        if team.leads:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        team.wait()
        with warnings.catch_warnings(action="ignore"):  # That there is one process is known.
            writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
            save(tensors, storage_writer=writer, no_dist=team.size == 1)
        if team.leads:
            (part / STATE_FILE).write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
            _sync(part / STATE_FILE)
            _sync(part)
            if target.exists():
                shutil.rmtree(target)
            part.rename(target)
            _sync(target.parent)
            for old in checkpoints(out)[:-KEPT]:
                shutil.rmtree(old)
        team.wait()
    except BROKEN as error:
        if team.leads:
            shutil.rmtree(part, ignore_errors=True)
        good = checkpoints(out)
        kept = f"the last good one is {good[-1]}" if good else "there is none before it"
        raise CheckpointError(
            f"checkpoint {target} cannot be written: {_reason(error)}; {kept}. Make room, then go "
            "on with --resume"
        ) from error
    return target


def read_checkpoint(
    out: Path, tensors: dict[str, Tensor], team: Team, say: Callable[[str], None]
) -> State | None:
    """Reads the newest checkpoint that is whole into the tensors; None where there is none.

    Args:
        say: told about each checkpoint that cannot be read.
    """
    candidates = checkpoints(out)
    for path in reversed(candidates):
        try:
            state = State(**json.loads((path / STATE_FILE).read_text(encoding="utf-8")))
            with warnings.catch_warnings(action="ignore"):
                reader = HuggingFaceStorageReader(str(path))
                _check_whole(reader, tensors)
                load(tensors, storage_reader=reader, no_dist=team.size == 1)
            return state
        except (*BROKEN, ValueError, TypeError) as error:
            say(f"checkpoint {path} cannot be read ({_reason(error)}); trying the one before")
    if candidates:
        raise CheckpointError(f"none of the checkpoints in {out} can be read")
    return None


def checkpoints(out: Path) -> list[Path]:
    """The checkpoints of the run in a folder, oldest first."""
    return sorted((out / CHECKPOINTS).glob("step-*"))


def _check_whole(reader: HuggingFaceStorageReader, tensors: dict[str, Tensor]) -> None:
    """Raises unless the files are whole and hold every tensor in its shape, before any is read."""
    stored = reader.read_metadata().state_dict_metadata
    for name, tensor in tensors.items():
        size = getattr(stored.get(name), "size", None)
        if size != tensor.shape:
            raise CheckpointError(f"{name} is {size} there and {tuple(tensor.shape)} here")


def _sync(path: Path) -> None:
    """Makes a file, or the names in a folder, last through a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: BaseException) -> str:
    """What went wrong, without the frames that torch puts around it."""
    for first in getattr(error, "failures", {}).values():
        return str(first[0] if isinstance(first, tuple) else first)
    return str(error)
