"""What a person sees of a run while it goes on: a live line, a row for each epoch, TensorBoard."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from mjp.core.display import Advance, clock
from mjp.core.records import Scalar
from mjp.core.run import Run
from mjp.core.team import Team

LIVE_SECONDS = 0.5
"""How often the live line is renewed; each time, the host waits for the device."""

WIDTH = 8
"""Of a column of the table of epochs."""


class Means:
    """Means over steps of what each comes to, summed on the device without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.names: tuple[str, ...] = ()
        self._sums = torch.zeros(1, dtype=torch.float64, device=device)

    def add(self, names: tuple[str, ...], values: Tensor) -> None:
        """Adds what a step came to, in double precision."""
        entry = torch.cat((torch.ones_like(self._sums[:1]), values))
        self._sums = entry if not self.names else self._sums + entry
        self.names = names

    def clear(self) -> None:
        self._sums = torch.zeros_like(self._sums)

    def sums(self, team: Team) -> dict[str, float]:
        """The sums, as means over the processes; the number of steps under the empty name."""
        totals = (team.total(self._sums) / team.size).tolist()
        return dict(zip(("", *self.names), totals, strict=True))

    def restore(self, sums: Mapping[str, float]) -> None:
        """Goes on from sums that were noted."""
        self.names = tuple(name for name in sums if name)
        self._sums = torch.tensor(list(sums.values()), dtype=torch.float64, device=self._device)

    def means(self, team: Team | None = None) -> dict[str, float]:
        """The means by name, over all processes or of this one alone."""
        sums = self._sums if team is None else team.total(self._sums)
        count, *totals = sums.tolist()
        return {n: total / count for n, total in zip(self.names, totals, strict=True) if count}


class Clock:
    """Times of a run. Times of steps leave out what is done inside `paused`."""

    def __init__(self, step: int = 0) -> None:
        """The run, or what is left of it, begins at this step."""
        now = time.monotonic()
        self._begin = self._checkpoint = self._live = now
        self._away = 0.0
        self._epoch = (now, step)

    def live_is_due(self) -> bool:
        """Whether the live line is old."""
        if time.monotonic() - self._live < LIVE_SECONDS:
            return False
        self._live = time.monotonic()
        return True

    def checkpoint_is_due(self, minutes: float) -> bool:
        """Whether the last checkpoint is older than this."""
        return time.monotonic() - self._checkpoint >= 60 * minutes

    def checkpointed(self) -> None:
        """A checkpoint has just been written."""
        self._checkpoint = time.monotonic()

    def epoch(self, step: int, *, ends: bool = False) -> tuple[float, float]:
        """Seconds of the epoch up to this step, and its steps a second."""
        now = time.monotonic() - self._away
        before, earlier = self._epoch
        if ends:
            self._epoch = (now, step)
        seconds = max(now - before, 1e-9)
        return seconds, (step - earlier) / seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For what is not training."""
        before = time.monotonic()
        try:
            yield
        finally:
            self._away += time.monotonic() - before

    def total(self) -> float:
        """Seconds since the start, all included."""
        return time.monotonic() - self._begin


class Monitor:
    """Shows a run on the leading process: a live line on stderr, rows on stdout, TensorBoard."""

    def __init__(self, advance: Advance, board: Any) -> None:
        self.live = advance
        self._board = board
        self._headed = False

    @classmethod
    @contextmanager
    def open(cls, run: Run, step: int, steps: int) -> Iterator[Self]:
        """Shows a run from this step on; on all processes but the leading one, nothing."""
        with ExitStack() as stack:
            advance = stack.enter_context(run.progress("training", steps - step))
            board = None
            if run.leads:
                from torch.utils.tensorboard import SummaryWriter

                board = SummaryWriter(str(run.out / "tensorboard"), purge_step=step + 1)
                stack.callback(board.close)
            yield cls(advance, board)

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
        cells = {"epoch": str(epoch), **cells}
        cells["images/s"] = f"{times['images_per_second']:,.0f}"
        cells["time"] = clock(times["seconds"])
        widths = [max(WIDTH, len(name) + 2) for name in cells]
        for texts in (cells.values(),) if self._headed else (cells, cells.values()):
            line = "".join(text.rjust(width) for text, width in zip(texts, widths, strict=True))
            print(line, flush=True)
        self._headed = True
