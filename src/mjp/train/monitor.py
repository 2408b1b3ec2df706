"""What a person sees of a run while it goes on: a live line, a row for each epoch, TensorBoard."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mjp.core.display import Advance, clock
from mjp.core.records import Scalar
from mjp.core.run import Run
from mjp.core.team import Team

WIDTH = 8
"""Of a column of the table of epochs."""


class Means:
    """Means over steps of what each comes to, summed on the device without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._names: tuple[str, ...] = ()
        self._sums = torch.zeros(1, dtype=torch.float64, device=device)

    def clear(self) -> None:
        self.restore({"": 0.0})

    def add(self, names: tuple[str, ...], values: Tensor) -> None:
        """Adds what a step came to, in double precision."""
        entry = torch.cat((torch.ones_like(values[:1]), values))
        self._sums = self._sums + entry if self._names else entry
        self._names = names

    def sums(self, team: Team) -> dict[str, float]:
        """The sums, as means over the processes; under "" the number of steps."""
        sums = (team.total(self._sums) / team.size).tolist()
        return dict(zip(("", *self._names), sums, strict=True))

    def restore(self, sums: Mapping[str, float]) -> None:
        """Goes on from sums that were noted."""
        self._names = tuple(name for name in sums if name)
        self._sums = torch.tensor(
            list(sums.values()), dtype=torch.float64, device=self._sums.device
        )

    def means(self, team: Team) -> dict[str, float]:
        """The means by name, over all processes."""
        sums = self.sums(team)
        count = sums.pop("")
        return {name: total / count for name, total in sums.items() if count}


class Clock:
    """Times of a run, or of what is left of it from a step on."""

    def __init__(self, step: int = 0) -> None:
        self.begun = self.checkpointed = self._epoch = time.monotonic()
        self._step = step

    def epoch(self, step: int, *, ends: bool = False) -> tuple[float, float]:
        """Seconds of the epoch up to this step, and its steps a second."""
        seconds = max(time.monotonic() - self._epoch, 1e-9)
        rate = (step - self._step) / seconds
        if ends:
            self._epoch, self._step = time.monotonic(), step
        return seconds, rate

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For what is not training, and does not count in the time of the epoch."""
        before = time.monotonic()
        yield
        self._epoch += time.monotonic() - before


class Monitor:
    """Shows a run on the leading process: a live line on stderr, rows on stdout, TensorBoard.

    Args:
        step: the run, or what is left of it, begins there.
        advance: renews the live line.
    """

    def __init__(self, run: Run, step: int, advance: Advance) -> None:
        self.advance = advance
        self._board: Any = None
        self._headed = False
        if run.leads:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run.out / "tensorboard"), purge_step=step + 1)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    def plot(self, prefix: str, step: int, values: Mapping[str, Scalar]) -> None:
        """Adds values to the curves."""
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{prefix}/{name}", value, step)

    def row(self, epoch: int, values: Mapping[str, Scalar], times: Mapping[str, float]) -> None:
        """Prints a row of the table of epochs, below its head the first time."""
        if self._board is None:
            return
        cells = {name: "" if value is None else f"{value:.4g}" for name, value in values.items()}
        speed = f"{times['images_per_second']:,.0f}"
        cells = {"epoch": str(epoch), **cells, "images/s": speed, "time": clock(times["seconds"])}
        for texts in (cells.values(),) if self._headed else (cells, cells.values()):
            pairs = zip(cells, texts, strict=True)
            print(
                "".join(text.rjust(max(WIDTH, len(name) + 2)) for name, text in pairs), flush=True
            )
        self._headed = True
