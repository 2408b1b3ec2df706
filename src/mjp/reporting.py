"""`mjp report`: one page from any folders that other verbs wrote."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from mjp.core.errors import ConfigError, MjpError
from mjp.core.verbs import Verb


@dataclass(frozen=True)
class ReportOptions:
    """Write one self-contained HTML page on any runs: training, evaluation, probes, audits."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN …]")]
    """Folders that other verbs wrote; those inside them count too."""
    out: Path = Path("report.html")
    """The page."""
    title: str = ""
    """Its heading, if not the names of the runs."""


def run(options: ReportOptions) -> None:
    """Writes the page and names it; says what is missing or broken, as the page does."""
    from mjp.catalog import sections
    from mjp.report.page import write_report

    if not options.runs:
        raise ConfigError("name at least one run, such as runs/digits")
    if not any(path.expanduser().exists() for path in options.runs):
        first = str(options.runs[0])
        raise ConfigError(f"there is no folder {first!r}; name one that another verb wrote")
    out = options.out.expanduser()
    if out.exists() and not out.is_file():
        kind = "a folder" if out.is_dir() else "no ordinary file"
        raise ConfigError(f"{out} is {kind}; name a file for the page, such as report.html")
    command = shlex.join(["mjp", *sys.argv[1:]])
    report = write_report(options.runs, out, sections(), command=command, title=options.title)
    for problem in report.problems:
        print(f"mjp: {problem}", file=sys.stderr)
    print(f"report: {report.path}")
    if not report.records:
        raise MjpError("there is not one record in it, so the page is empty")


VERBS = (Verb("report", ReportOptions, run),)
