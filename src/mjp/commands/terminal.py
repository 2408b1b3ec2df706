"""What the verbs print; being taken apart into `core`."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mjp.core.display import PIPE_WIDTH, PLAIN_SECONDS, meter, results
from mjp.core.run import hardware
from mjp.core.team import choose_device

__all__ = ["PIPE_WIDTH", "PLAIN_SECONDS", "choose_device", "hardware", "meter", "results"]


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
