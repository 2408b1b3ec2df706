"""What the verbs print: tables of results on stdout, progress and notes on stderr."""

import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mjp.core.errors import ConfigError

PIPE_WIDTH = 140
"""Columns of what is printed to a file or a pipe."""


def results() -> Console:
    """Where results go."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, soft_wrap=True, width=width)


def progress() -> Progress:
    """A progress bar on stderr; silent where stderr is no terminal."""
    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


PLAIN_SECONDS = 15.0
"""How often a line is printed where there is no terminal."""


@contextmanager
def meter(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Shows on stderr how far some work is: a bar, or a line now and then without a terminal.

    What is yielded is told how much more was done.
    """
    bar = progress()
    if not shown or not bar.disable:
        bar.disable = not shown
        with bar:
            task = bar.add_task(what, total=total)
            yield lambda more: bar.advance(task, more)
        return
    started = printed = time.monotonic()
    done = 0

    def tell(more: int) -> None:
        nonlocal done, printed
        done += more
        now = time.monotonic()
        if now - printed >= PLAIN_SECONDS and done < total:
            printed = now
            left = (now - started) / done * (total - done)
            print(f"mjp: {what}: {done} of {total}, {left:.0f} s left", file=sys.stderr, flush=True)

    yield tell


def choose_device(name: str | None) -> torch.device:
    """The device asked for, or the best there is."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is no device of torch; try cpu or cuda") from error
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"torch cannot use device {name} here ({error}); use cpu") from error
    return device


def hardware(device: torch.device) -> str:
    """The device in words, for records."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
