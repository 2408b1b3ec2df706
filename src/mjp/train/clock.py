"""`Clock`: how long training took, without the time that validation and writing took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

LIVE_SECONDS = 0.5
"""How often the live line is renewed; each time, the host waits for the device."""

RATE_SECONDS = 10.0
"""Over how long a time the rate is taken that the live line shows."""


class Clock:
    """Times of a run. Times of steps leave out what is done inside `paused`."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, step: int) -> None:
        """The run, or what is left of it, begins at this step."""
        now = time.monotonic()
        self._begin = self._checkpoint = self._live = now
        self._away = 0.0
        self._epoch = (now, step)
        self._marks = [(now, step)]

    def _working(self) -> float:
        return time.monotonic() - self._away

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

    def rate(self, step: int) -> float:
        """Steps a second of late."""
        now = self._working()
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_SECONDS:
            del self._marks[0]
        before, earlier = self._marks[0]
        return (step - earlier) / max(now - before, 1e-9)

    def end_epoch(self, step: int) -> tuple[float, float]:
        """Seconds of the epoch that ends with this step, and its steps a second."""
        now = self._working()
        before, earlier = self._epoch
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
