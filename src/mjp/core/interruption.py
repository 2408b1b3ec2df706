"""Ctrl-C and SIGTERM: noted when they come, acted on between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mjp.core.errors import MjpError


class StoppedError(MjpError):
    """The run was asked to stop, has written a checkpoint, and can be resumed."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class StopRequest:
    """Whether the run was asked to stop, and by which signal."""

    number = 0

    def note(self, number: int, _: FrameType | None) -> None:
        """A second Ctrl-C does not wait for a checkpoint."""
        if self.number == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Notes signals while inside; in a thread, where none arrive, nothing is noted."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, request.note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
