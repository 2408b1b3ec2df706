"""The options of `mjp study`. Nothing here imports torch, so that `mjp --help` answers at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

DEFAULT_STUDY = "digits"


@dataclass(frozen=True)
class StudyOptions:
    """Carry out a list of training runs with their evaluations; end in one table and one page.

    What is finished is skipped: the same command goes on where it was stopped, on this machine or
    on another that the folder was copied to.
    """

    name: Annotated[Positional[str], arg(metavar="STUDY")] = DEFAULT_STUDY
    """digits (minutes on a CPU), paper (hours on a GPU), or the path of a TOML file."""
    root: str | None = None
    """Folder of the data: what stands for {root} in the file."""
    out: Path | None = None
    """Folder for the runs, records.jsonl and report.html; by default runs/study- and the name."""
    only: tuple[str, ...] = ()
    """Some of the runs, by name and seed, in this order: A-0, 'gamma-*', '*-1'."""
    known: tuple[Path, ...] = ()
    """records.jsonl of the same study from elsewhere: its runs count as done and are told of beside
    those made here, though their folders are not here."""
    without: tuple[str, ...] = ()
    """Evaluations to leave for another time, by name."""
    parallel: int | None = None
    """Runs at a time, each in a process of its own: by default 3 on a GPU; on a CPU one for each
    core, up to 4."""
    device: str | None = None
    """A torch device; the GPU if there is one."""
    list: bool = False
    """Only say which runs and evaluations are done and which are not."""
    fresh: bool = False
    """Remove what an earlier study left of the runs chosen, and start them over."""
