"""Processes that carry out the runs of a study, several at a time, and what they tell."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

from mjp.commands.study_file import LOG
from mjp.commands.study_plan import Task
from mjp.commands.study_state import is_trained, note_beside
from mjp.core.errors import MjpError
from mjp.core.interruption import StoppedError, StopRequest

CONTEXT: Any = multiprocessing.get_context("spawn")
"""How processes start: anew, because neither CUDA nor threads survive a fork."""
TELL_SECONDS = 0.5
"""How often a process tells how far it is."""
LAST_SECONDS = 120.0
"""How long a process that was asked to stop has to write its checkpoint."""


@dataclass(frozen=True)
class News:
    """What a process tells: how far it is, or how its run ended, in words."""

    kind: Literal["going", "done", "failed", "stopped"]
    text: str = ""
    share: float = 0.0


class Watcher(Protocol):
    """Whoever looks at a study while it goes on."""

    def begun(self, task: Task) -> None:
        """A run was given to a process."""

    def going(self, task: Task, news: News) -> None:
        """How far it is."""

    def ended(self, task: Task, news: News) -> None:
        """It is done, failed, or stopped."""


@dataclass(eq=False)
class _Process:
    """A process, and what it is at."""

    process: Any
    connection: Connection
    task: Task | None = None


@dataclass(eq=False)
class Pool:
    """Carries out runs, each in one of several processes.

    Args:
        device: a torch device, or None for the best there is.
        parallel: how many processes.
        threads: of each, where they share a CPU; None for torch's own number.
    """

    out: Path
    device: str | None
    parallel: int
    threads: int | None
    failures: dict[str, str] = field(default_factory=dict)
    _processes: list[_Process] = field(default_factory=list)

    def run(self, tasks: Sequence[Task], watcher: Watcher, request: StopRequest) -> None:
        """Carries out all runs, in order; a run that must be alone waits until the others ended."""
        waiting = list(tasks)
        try:
            while (waiting or self._busy()) and not request.number:
                while waiting and self._may_begin(waiting[0]):
                    self._begin(waiting.pop(0), watcher)
                self._listen(watcher, TELL_SECONDS)
            if request.number:
                self._stop(watcher)
                raise StoppedError("stopped", request.number)
            self._dismiss()
        except BaseException:
            for one in self._processes:
                one.process.kill()
            raise

    def _busy(self) -> list[_Process]:
        return [one for one in self._processes if one.task is not None]

    def _may_begin(self, task: Task) -> bool:
        busy = self._busy()
        if task.entry.alone or any(one.task and one.task.entry.alone for one in busy):
            return not busy
        return len(busy) < self.parallel

    def _begin(self, task: Task, watcher: Watcher) -> None:
        one = next((one for one in self._processes if one.task is None), None) or self._hired()
        one.task = task
        if not is_trained(self.out, task):
            note_beside(self.out, task, self.parallel)
        one.connection.send(task)
        watcher.begun(task)

    def _hired(self) -> _Process:
        ours, theirs = CONTEXT.Pipe()
        # Processes that decode for it start as they do for `mjp train`, not as it does itself.
        method = multiprocessing.get_start_method()
        arguments = (theirs, self.out, self.device, self.threads, method)
        process = CONTEXT.Process(target=_work, args=arguments)
        with _interrupts_held():
            process.start()
        theirs.close()
        self._processes.append(_Process(process, ours))
        return self._processes[-1]

    def _listen(self, watcher: Watcher, seconds: float, *, stopping: bool = False) -> None:
        by_connection = {one.connection: one for one in self._busy()}
        for connection in wait(list(by_connection), timeout=seconds):
            one = by_connection[connection]  # type: ignore[index]
            try:
                news: News = one.connection.recv()
            except (EOFError, OSError):
                one.process.join()
                code = one.process.exitcode
                news = News("failed", f"its process ended with status {code}; see its {LOG}")
                if stopping and code in (0, -signal.SIGTERM):  # It had not begun.
                    news = News("stopped", "stopped before its first step")
                self._processes.remove(one)
            assert one.task is not None
            if news.kind == "going":
                watcher.going(one.task, news)
                continue
            if news.kind == "failed":
                self.failures[one.task.name] = news.text
            watcher.ended(one.task, news)
            one.task = None

    def _stop(self, watcher: Watcher) -> None:
        """Lets every process write a checkpoint of what it is at; kills those that take long."""
        for one in self._processes:
            if one.task is None:
                one.process.kill()
            else:
                one.process.terminate()
        end = time.monotonic() + LAST_SECONDS
        while self._busy() and time.monotonic() < end:
            self._listen(watcher, TELL_SECONDS, stopping=True)
        for one in self._processes:
            one.process.kill()

    def _dismiss(self) -> None:
        for one in self._processes:
            with contextlib.suppress(OSError):
                one.connection.send(None)
        for one in self._processes:
            one.process.join(10)
            one.process.kill()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keeps Ctrl-C from processes that are started inside, for good, and from this one until after.

    A process gets it from the terminal until it has left the terminal's group, which it can do only
    once it has started: for seconds it would die of it.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows.
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    ensure_running()  # It would lift the block when it starts, with the first process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    connection: Connection, out: Path, device: str | None, threads: int | None, method: str
) -> None:
    """What a process does: run after run, until there are no more."""
    multiprocessing.set_start_method(method, force=True)
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the study, which then asks its processes to stop.
    import torch

    from mjp.commands.study_work import Workshop

    if threads is not None:
        torch.set_num_threads(threads)
    workshop = Workshop(out, device)
    with contextlib.suppress(EOFError, KeyboardInterrupt, StoppedError):
        signal.signal(signal.SIGTERM, _leave)  # Until here there is nothing to leave in order.
        while (task := connection.recv()) is not None:
            _log_to(out / task.name / LOG)
            connection.send(_carried_out(workshop, task, connection))


def _leave(number: int, _: Any) -> NoReturn:
    raise StoppedError("stopped", number)


def _log_to(path: Path) -> None:
    """All that this process and its children print goes to a file from now on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file, stream.fileno())
    os.close(file)


def _carried_out(workshop: Any, task: Task, connection: Connection) -> News:
    last = 0.0

    def tell(what: str, done: float) -> None:
        nonlocal last
        if time.monotonic() - last >= TELL_SECONDS:
            last = time.monotonic()
            connection.send(News("going", what, done))

    try:
        workshop.carry_out(task, tell)
    except StoppedError as error:
        # Where it stood; how to go on is the study's to say.
        return News("stopped", str(error).partition(";")[0])
    except MjpError as error:
        print(f"mjp: {error}", flush=True)
        return News("failed", str(error))
    except ModuleNotFoundError as error:
        traceback.print_exc()
        return News("failed", f"this needs {error.name}, which is not installed")
    except Exception as error:
        # A mistake of ours or a full GPU: it must not take the other runs with it.
        traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        return News("failed", f"{type(error).__name__}: {first}; see its {LOG}")
    return News("done")
