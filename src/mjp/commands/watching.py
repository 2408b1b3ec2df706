"""What a person sees of a run: a live line and a row for each epoch; plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mjp.train.journal import EpochReport, StepReport, Watcher

PLAIN_SECONDS = 15.0
"""How often a line is printed where there is no terminal."""

COLUMNS = (
    ("epoch", 6),
    ("loss", 9),
    ("class.", 9),
    ("local.", 9),
    ("top-1", 8),
    ("top-5", 8),
    ("avg top-1", 10),
    ("images/s", 10),
    ("time", 9),
)


class Silent:
    """Watches nothing: for all processes but the first."""

    def prepare(self, what: str, done: int, total: int) -> None:
        """Nothing."""

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def epoch(self, report: EpochReport) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


class TerminalWatcher:
    """Rows go to stdout, the live line to stderr."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._printed = time.monotonic()
        self._headed = False

    def prepare(self, what: str, done: int, total: int) -> None:
        """Shows how far it is."""
        self._line(f"{what}: {done} of {total}", last=done == total)

    def step(self, report: StepReport) -> None:
        """Shows the moment."""
        self._line(line_of(report))

    def epoch(self, report: EpochReport) -> None:
        """Prints a row."""
        if not self._headed:
            self._row("".join(name.rjust(width) for name, width in COLUMNS))
            self._headed = True
        self._row(row_of(report))

    def say(self, text: str) -> None:
        """Prints a line to stderr."""
        if self._live is None:
            print(f"mjp: {text}", file=sys.stderr, flush=True)
        else:
            self._live.console.print(f"mjp: {text}", markup=False, highlight=False)

    def _line(self, text: str, *, last: bool = False) -> None:
        if self._live is not None:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"))
        elif last or time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def _row(self, text: str) -> None:
        if self._live is not None and sys.stdout.isatty():
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)


@contextmanager
def watching() -> Iterator[Watcher]:
    """A watcher at the terminal, or one that prints lines where there is none."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield TerminalWatcher(None)
        return
    with Live(console=console, refresh_per_second=4, transient=True, redirect_stdout=False) as live:
        yield TerminalWatcher(live)


def line_of(report: StepReport) -> str:
    """One line on how a run stands."""
    losses = report.losses
    memory = "" if report.memory is None else f" | {report.memory / 2**30:.1f} GiB"
    return (
        f"epoch {report.epoch}/{report.epochs} | step {report.step}/{report.steps} | "
        f"loss {losses.total:.4f} = {losses.classification:.4f} + λ·{losses.localization:.3f} | "
        f"{report.images_per_second:,.0f} images/s | {clock(report.seconds_left)} left{memory}"
    )


def row_of(report: EpochReport) -> str:
    """A row of the table of epochs."""
    values = (
        str(report.epoch),
        f"{report.losses.total:.4f}",
        f"{report.losses.classification:.4f}",
        f"{report.losses.localization:.3f}",
        _percent(report.top1),
        _percent(report.top5),
        _percent(report.average_top1),
        f"{report.images_per_second:,.0f}",
        clock(report.seconds),
    )
    return "".join(value.rjust(width) for value, (_, width) in zip(values, COLUMNS, strict=True))


def clock(seconds: float) -> str:
    """A time as a person says it."""
    if seconds == float("inf"):
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
