"""What commands print: results on stdout, progress and notes on stderr."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PIPE_WIDTH = 140
"""Columns of what is printed to a file or a pipe."""
PLAIN_SECONDS = 15.0
"""How often a line of progress is printed where there is no terminal."""


Advance = Callable[..., None]
"""Takes how much more was done, and what is being done now, where that has changed."""


def results() -> Console:
    """Where results go."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, soft_wrap=True, width=width)


def say(text: str) -> None:
    """Prints a note to stderr."""
    print(f"mjp: {text}", file=sys.stderr, flush=True)


@contextmanager
def meter(what: str, total: int, *, shown: bool = True) -> Iterator[Advance]:
    """Shows on stderr how far some work is: a bar, or a line now and then without a terminal."""
    console = Console(file=sys.stderr)
    if not shown or console.is_terminal:
        words = TextColumn("{task.description}", markup=False)
        columns = (words, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # What is printed meanwhile goes above the bar, but not out of a pipe onto the terminal.
        above = sys.stdout.isatty()
        with Progress(*columns, console=console, disable=not shown, redirect_stdout=above) as bar:
            task = bar.add_task(what, total=total)
            yield lambda more, now="": bar.update(task, advance=more, description=now or what)
        return
    started = printed = time.monotonic()
    done = 0

    def advance(more: int, now_doing: str = "") -> None:
        nonlocal done, printed, what
        done += more
        what = now_doing or what
        now = time.monotonic()
        if now - printed >= PLAIN_SECONDS and 0 < done < total:
            printed = now
            left = (now - started) / done * (total - done)
            say(f"{what}: {done} of {total}, {clock(left)} left")

    yield advance


def clock(seconds: float | None) -> str:
    """A time as a person says it."""
    if seconds is None:
        return "–"
    if not math.isfinite(seconds):
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
