"""`Jobs`: attacks that wait, run in threads, are cancelled, and whose results are kept a while."""

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from mjp.core.errors import MjpError
from mjp.web.limits import Limits, cores
from mjp.web.refusing import RefusedError
from mjp.web.store import Store, new_id
from mjp.web.trial import Attempt, Finding, Trial

State = Literal["waiting", "running", "done", "failed", "cancelled", "timed out"]
OPEN = ("waiting", "running")


class _Stop(Exception):  # noqa: N818  It is no error.
    """Leaves an attack whose result nobody wants any more."""


@dataclass(eq=False)
class Job:
    """A trial and how far it is. Changed under the lock of its `Jobs` only.

    Args:
        progress: share that is done, from 0 to 1.
        message: a sentence on how it ended, where that was not well.
    """

    id: str
    trial: Trial
    state: State = "waiting"
    progress: float = 0.0
    message: str = ""
    finding: Finding | None = None
    started: float | None = None
    ended: float | None = None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


@dataclass(frozen=True, eq=False)
class JobView:
    """A job as it was at one moment.

    Args:
        ahead: jobs that will start before it.
        seconds: that it has run.
    """

    id: str
    trial: Trial
    state: State
    progress: float
    message: str
    finding: Finding | None
    ahead: int
    seconds: float

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


@dataclass(eq=False)
class Jobs:
    """A bounded queue and the threads that work it off.

    Args:
        bench: makes, in each thread, what runs a trial there.
        clock: seconds; for tests.
    """

    limits: Limits
    bench: Callable[[], Attempt]
    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _queue: deque[Job] = field(default_factory=deque)
    _threads: list[threading.Thread] = field(default_factory=list)
    _closing: bool = False

    def __post_init__(self) -> None:
        most, idle = self.limits.kept, self.limits.idle_seconds
        self.store: Store[Job] = Store(most, idle, keep=lambda job: job.is_open, clock=self.clock)

    def start(self) -> None:
        """Starts the threads."""
        for number in range(self.limits.jobs):
            thread = threading.Thread(target=self._work, name=f"attack-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self, seconds: float) -> bool:
        """Cancels everything and waits for the threads; whether all have ended by then."""
        self.cancel_all()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def closing(self) -> bool:
        """Whether the server is about to stop."""
        return self._closing

    def stop_soon(self) -> None:
        """Has every attack give up when it next tells its progress; safe in a signal handler."""
        self._closing = True

    def cancel_all(self) -> None:
        """Cancels every job, and takes no more."""
        with self._changed:
            self._closing = True
            for job in list(self._queue):
                self._end(job, "cancelled", "The server was stopped.")
            self._changed.notify_all()

    def add(self, trial: Trial) -> JobView:
        """Puts a trial into the queue; a refusal where too many are waiting."""
        with self._changed:
            if self._closing:
                raise RefusedError(503, "The server is being stopped.")
            waiting = sum(job.state == "waiting" for job in self._queue)
            running = len(self._queue) - waiting
            if waiting >= self.limits.waiting + max(0, self.limits.jobs - running):
                raise RefusedError(
                    429,
                    f"{waiting} attacks are waiting already. Try again in a few seconds.",
                    retry_after=5,
                )
            job = Job(new_id(), trial)
            self._queue.append(job)
            self.store.add(job.id, job)
            self._changed.notify()
            return self._view(job)

    def look(self, name: str) -> JobView | None:
        """How a job is; None where there is none of this name."""
        job = self.store.get(name)
        if job is None:
            return None
        with self._changed:
            self._end_if_late(job)
            return self._view(job)

    def cancel(self, name: str) -> JobView | None:
        """Cancels an open job, which keeps its name; forgets one that has ended."""
        job = self.store.get(name)
        if job is None:
            return None
        with self._changed:
            if job.is_open:
                self._end(job, "cancelled", "The attack was cancelled.")
            else:
                self.store.remove(name)
            return self._view(job)

    def _view(self, job: Job) -> JobView:
        waiting = [one for one in self._queue if one.state == "waiting"]
        until = job.ended if job.ended is not None else self.clock()
        return JobView(
            id=job.id,
            trial=job.trial,
            state=job.state,
            progress=job.progress,
            message=job.message,
            finding=job.finding,
            ahead=waiting.index(job) if job in waiting else 0,
            seconds=0.0 if job.started is None else until - job.started,
        )

    def _end(self, job: Job, state: State, message: str = "") -> None:
        """The thread that runs it, if any, learns of it when it next tells its progress."""
        if not job.is_open:
            return
        job.state, job.message, job.ended = state, message, self.clock()
        if job in self._queue:
            self._queue.remove(job)

    def _end_if_late(self, job: Job) -> None:
        if job.state != "running" or job.started is None:
            return
        if self.clock() - job.started > self.limits.seconds:
            self._end(
                job,
                "timed out",
                f"The attack was stopped after {self.limits.seconds:g} seconds. Use fewer steps "
                "or a smaller model.",
            )

    def _work(self) -> None:
        """A thread: one job after the other, whatever comes of it."""
        # One core is left for answers. Threads that wait for a busy core spin, and take far longer.
        torch.set_num_threads(max(1, (cores() - 1) // self.limits.jobs))
        attempt = self.bench()
        while True:
            with self._changed:
                job = self._next()
                while job is None and not self._closing:
                    self._changed.wait()
                    job = self._next()
                if job is None:
                    return
                job.state, job.started = "running", self.clock()
            self._run(job, attempt)
            del job  # Idle threads hold nobody's picture.

    def _next(self) -> Job | None:
        return next((job for job in self._queue if job.state == "waiting"), None)

    def _run(self, job: Job, attempt: Attempt) -> None:
        def tell(share: float) -> None:
            with self._changed:
                self._end_if_late(job)
                if self._closing:
                    self._end(job, "cancelled", "The server was stopped.")
                if not job.is_open:
                    raise _Stop
                job.progress = min(0.99, job.progress + share)

        state: State = "failed"
        finding: Finding | None = None
        message = "Something went wrong in the server; this is not your fault."
        try:
            finding = attempt(job.trial, tell)
            state, message = "done", ""
        except _Stop:
            return
        except MjpError as error:
            message = f"{str(error)[:1].upper()}{str(error)[1:]}."
        except (MemoryError, torch.OutOfMemoryError):
            message = "There is not enough memory for this attack. Use a smaller model."
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            message = "The attack's equations could not be solved for this picture."
        except Exception as error:
            print(f"mjp: an attack failed: {type(error).__name__}: {error}", file=sys.stderr)
            traceback.print_exc()
        with self._changed:
            if job.is_open:
                job.finding = finding
                job.progress = 1.0 if state == "done" else job.progress
                self._end(job, state, message)
