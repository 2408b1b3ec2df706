"""`mjp report`: one page from any runs."""

import shlex
import sys

from mjp.commands.options import ReportOptions
from mjp.core.errors import ConfigError
from mjp.report.whole import write_report


def run(options: ReportOptions) -> None:
    """Writes the page and names it."""
    if not options.runs:
        raise ConfigError("name at least one run, such as runs/digits")
    missing = [path for path in options.runs if not path.expanduser().exists()]
    if len(missing) == len(options.runs):
        raise ConfigError(f"there is no {missing[0]}; name a folder that another verb wrote")
    if options.out.is_dir():
        raise ConfigError(
            f"{options.out} is a folder; name a file, such as {options.out}/report.html"
        )
    command = shlex.join(["mjp", *sys.argv[1:]])
    page = write_report(options.runs, options.out, command=command, title=options.title)
    for path in missing:
        print(f"mjp: {path} does not exist; the page says so", file=sys.stderr)
    print(f"report: {page}")
