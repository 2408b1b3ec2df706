"""The command line in processes of their own, forked from one that has imported everything.

A fresh interpreter takes seconds to import torch and timm; a fork has them. It is a process like
any other: it can be killed, has signals of its own and writes to a terminal of its own.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from mjp.cli import main

_IMPORTED = [
    *("mjp.cli", "mjp.train.loop", "mjp.tasks.classify.task", "mjp.privacy.command"),
    *("pytest", "sklearn.datasets"),
    *("torch.distributed.launcher.api", "torch.utils.tensorboard"),
]


@cache
def forking() -> multiprocessing.context.ForkServerContext:
    """The context of `multiprocessing` whose processes have all of that imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


class Fork:
    """`mjp` with these arguments, started; has what tests use of `subprocess.Popen`.

    Args:
        team: as many processes, by the launcher that is inside torchrun; 0 for none.
        terminal: where it writes to; otherwise to files that `communicate` reads.
        new_group: whether it leads a process group of its own.
        first: called in the process before all else.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        team: int = 0,
        terminal: str | None = None,
        new_group: bool = False,
        first: Callable[[], None] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        written = [Path(self._folder.name, name) for name in ("out", "err")]
        self._streams = written if terminal is None else [Path(terminal)] * 2
        self._process = forking().Process(
            target=_run,
            args=([str(one) for one in arguments], self._streams, team, new_group, first),
        )
        self._process.start()
        self.pid = self._process.pid
        atexit.register(self.kill)  # Of a test that failed; multiprocessing would wait for it.

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self) -> int | None:
        self._process.join()
        return self.returncode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("mjp", timeout)
        out, err = (path.read_text() for path in self._streams)
        return out, err


def _run(
    arguments: list[str],
    streams: list[Path],
    team: int,
    new_group: bool,
    first: Callable[[], None] | None,
) -> None:
    for number, path in enumerate(streams, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY)
        os.dup2(opened, number)
        os.close(opened)
    if new_group:
        os.setsid()
    # A study holds Ctrl-C while it starts processes, and perhaps the server that this one is of.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    multiprocessing.set_start_method("fork", force=True)  # What a person's process has.
    if first is not None:
        first()
    if not team:
        main(arguments)
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=team,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, _member)(arguments)


def _member(arguments: list[str]) -> None:
    try:
        main(arguments)
    except SystemExit as stop:
        if stop.code:  # The launcher takes a member that returns for one that is done.
            raise
