"""`mjp report`: one page from any runs."""

import shlex
import sys

from mjp.commands.options import ReportOptions
from mjp.core.errors import ConfigError, MjpError
from mjp.report.whole import write_report


def run(options: ReportOptions) -> None:
    """Writes the page and names it; says what is missing or broken, as the page does."""
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
    report = write_report(options.runs, out, command=command, title=options.title)
    for problem in report.problems:
        print(f"mjp: {problem}", file=sys.stderr)
    print(f"report: {report.path}")
    if not report.records:
        raise MjpError("there is not one record in it, so the page is empty")
