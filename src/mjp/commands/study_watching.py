"""What a person sees of a study: a bar for each run under way, a row for each that ended."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from mjp.commands.study_plan import Task
from mjp.commands.study_pool import News, Watcher
from mjp.report.reading import clock

PLAIN_SECONDS = 15.0
"""How often a line is printed where there is no terminal."""


class StudyWatcher:
    """Rows go to stdout, bars to stderr.

    Args:
        bars: None where there is no terminal.
        total: runs to be done.
        told: what to say of a finished run.
    """

    def __init__(self, bars: Progress | None, total: int, told: Callable[[Task], str]) -> None:
        self._bars = bars
        self._told = told
        self._total = total
        self._ended = 0
        self._started: dict[str, float] = {}
        self._printed: dict[str, float] = {}
        self._rows: dict[str, TaskID] = {}
        self._all = None
        if bars is not None:
            self._all = bars.add_task("the study", total=total, far=f"0/{total}", what="")

    def begun(self, task: Task) -> None:
        """Shows a bar, or says so."""
        self._started[task.name] = self._printed[task.name] = time.monotonic()
        if self._bars is None:
            print(f"mjp: {task.name} begins", file=sys.stderr, flush=True)
        else:
            self._rows[task.name] = self._bars.add_task(
                task.name, total=None, far="", what="starting"
            )

    def going(self, task: Task, news: News) -> None:
        """Renews the bar; prints a line now and then where there is none."""
        if self._bars is not None:
            far = f"{100 * news.share:.0f} %"
            row = self._rows[task.name]
            self._bars.update(row, completed=news.share, total=1.0, far=far, what=news.text)
        elif time.monotonic() - self._printed[task.name] >= PLAIN_SECONDS:
            self._printed[task.name] = time.monotonic()
            print(f"mjp: {task.name}: {news.text}", file=sys.stderr, flush=True)

    def ended(self, task: Task, news: News) -> None:
        """Prints a row; a run that was stopped is not counted."""
        self._ended += news.kind != "stopped"
        seconds = time.monotonic() - self._started[task.name]
        text = f"failed: {news.text}" if news.kind == "failed" else news.text
        text = self._told(task) if news.kind == "done" else text
        row = f"[{self._ended}/{self._total}] {task.name:<24} {clock(seconds):>8}  {text}"
        if self._bars is not None:
            self._bars.remove_task(self._rows.pop(task.name))
            if self._all is not None:
                far = f"{self._ended}/{self._total}"
                self._bars.update(self._all, completed=self._ended, far=far)
            if sys.stdout.isatty():
                self._bars.console.print(row, markup=False, highlight=False)
                return
        print(row, flush=True)


@contextmanager
def watching(total: int, told: Callable[[Task], str]) -> Iterator[Watcher]:
    """A watcher at the terminal, or one that prints lines where there is none."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield StudyWatcher(None, total, told)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[far]}", markup=False, justify="right"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bars:
        yield StudyWatcher(bars, total, told)
