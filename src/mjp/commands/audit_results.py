"""What an audit prints and draws."""

import sys
from pathlib import Path

from mjp.commands.audit_options import AuditOptions
from mjp.core.display import results
from mjp.core.records import RECORDS, Record
from mjp.privacy import tables
from mjp.privacy.pictures import draw_grids
from mjp.report.page import write_report
from mjp.report.table import to_terminal


def present(
    records: list[Record], options: AuditOptions, command: str, notes: tuple[str, ...]
) -> None:
    """Tables, or records for `--json`; figures; the report."""
    console = results()
    if options.json:
        for record in records:
            print(record.to_json(), flush=True)
    else:
        for table in (tables.ATTACKED, tables.PAPERS, tables.COST):
            for filled in table.fill_all(records):
                console.print(to_terminal(filled))
        for line, _ in tables.STRONGEST.glances(records):
            console.print(line, markup=False, highlight=False)
    for note in notes:
        print(f"note: {note}", file=sys.stderr if options.json else sys.stdout)
    figures = [path for draw in tables.FIGURES.values() for path in draw(records, options.out)]
    figures += draw_grids(records, options.out, options.show)
    page = write_page(options.out, command)
    if not options.json:
        for path in figures:
            print(f"figure: {path}")
        print(f"records: {options.out / RECORDS}")
        print(f"report: {page}")


def write_page(out: Path, command: str) -> Path:
    """Writes `report.html` on the audit of a folder."""
    return write_report(
        [out / RECORDS],
        out / "report.html",
        tables.SECTIONS,
        command=command,
        kind="Privacy audit",
        title="How much of a picture does a shared gradient give away?",
        lead="In federated training a device keeps its pictures and sends gradients. This page "
        "shows what attackers made of such gradients.",
    ).path
