"""What a run writes down: records.jsonl and TensorBoard events, and what it tells a watcher."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from mjp import __version__
from mjp.core.errors import MjpError, TrainingError
from mjp.core.records import Record, Scalar, append_records
from mjp.train.recipe import Recipe

TIMED = "train timing"
"""The kind of records that hold times: all that differs between two equal runs."""


@dataclass(frozen=True)
class Losses:
    """Means over the images of some steps.

    Args:
        gradient: mean norm of the gradient before clipping; None where it is not clipped.
    """

    classification: float
    localization: float
    total: float
    gradient: float | None


@dataclass(frozen=True)
class StepReport:
    """A moment of a run, for the live line."""

    epoch: int
    epochs: int
    step: int
    steps: int
    losses: Losses
    learning_rate: float
    images_per_second: float
    seconds_left: float
    memory: int | None


@dataclass(frozen=True)
class EpochReport:
    """A finished epoch: training losses, and validation where there was one, in percent."""

    epoch: int
    losses: Losses
    learning_rate: float
    localization_weight: float
    top1: float | None
    top5: float | None
    val_loss: float | None
    average_top1: float | None
    images_per_second: float
    seconds: float

    @property
    def accuracy(self) -> float | None:
        """What the best epoch is chosen by: of the averaged weights where there are such."""
        return self.average_top1 if self.average_top1 is not None else self.top1


@runtime_checkable
class Watcher(Protocol):
    """Whoever looks at a run while it goes on."""

    def prepare(self, what: str, done: int, total: int) -> None:
        """Something is under way before the first step."""

    def step(self, report: StepReport) -> None:
        """A moment, some times a second."""

    def epoch(self, report: EpochReport) -> None:
        """The end of an epoch."""

    def say(self, text: str) -> None:
        """Something worth a line."""


class Journal:
    """Writes records and TensorBoard events; on all but the leading process it does nothing.

    Args:
        kept: bytes of records that the checkpoint knows of; what a killed run wrote after it is cut
            off, because it will be written again.
        step: the step that the run starts from.
    """

    def __init__(self, out: Path, *, kept: int, step: int, leads: bool) -> None:
        self.path = out / "records.jsonl"
        self._board: Any = None
        if not leads:
            return
        from torch.utils.tensorboard import SummaryWriter

        out.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        if self.path.stat().st_size < kept:
            raise MjpError(
                f"{self.path} is shorter than the checkpoint says; it was changed since. Put it "
                "back, or start anew with --fresh"
            )
        os.truncate(self.path, kept)
        self._board = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)

    @property
    def size(self) -> int:
        """Bytes written, all of them safe on the disk."""
        if self._board is None:
            return 0
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size

    def start(self, recipe: Recipe, facts: dict[str, Scalar]) -> None:
        """The first record: all that decides the outcome, and on what it ran."""
        versions: dict[str, Scalar] = {
            "mjp": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        self._append(Record("train start", recipe.conditions() | versions, facts))

    def step(self, step: int, epoch: int, values: dict[str, Scalar]) -> None:
        """The means of the steps since the last such record."""
        self._append(Record("train step", {"step": step, "epoch": epoch}, values))
        self._plot("step", step, values)

    def epoch(self, step: int, report: EpochReport) -> None:
        """An epoch's losses and validation; its times apart, in a record of their own."""
        losses = report.losses
        values: dict[str, Scalar] = {
            "loss": losses.total,
            "classification": losses.classification,
            "localization": losses.localization,
            "gradient_norm": losses.gradient,
            "learning_rate": report.learning_rate,
            "localization_weight": report.localization_weight,
            "val_top1": report.top1,
            "val_top5": report.top5,
            "val_loss": report.val_loss,
            "average_val_top1": report.average_top1,
        }
        conditions: dict[str, Scalar] = {"epoch": report.epoch, "step": step}
        times: dict[str, Scalar] = {
            "images_per_second": report.images_per_second,
            "seconds": report.seconds,
        }
        self._append(Record("train epoch", conditions, values), Record(TIMED, conditions, times))
        self._plot("epoch", step, values | times)

    def end(self, values: dict[str, Scalar], times: dict[str, Scalar]) -> None:
        """What came out."""
        self._append(Record("train end", {}, values), Record(TIMED, {}, times))

    def note(self, text: str) -> None:
        """Something that does not belong to the outcome, such as that the run was resumed."""
        self._append(Record(TIMED, {"note": text}, {}))

    def close(self) -> None:
        """Writes out what is still held."""
        if self._board is not None:
            self._board.close()

    def _append(self, *records: Record) -> None:
        if self._board is None:
            return
        try:
            append_records(self.path, list(records))
        except OSError as error:
            raise TrainingError(
                f"{self.path} cannot be written: {error.strerror}; the checkpoints that are there "
                "are whole. Make room, then go on with --resume"
            ) from error

    def _plot(self, prefix: str, step: int, values: dict[str, Scalar]) -> None:
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{prefix}/{name}", value, step)
