"""`write_report`: one page from any folders of records, whatever they hold and what is broken."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mjp.core.errors import MjpError
from mjp.core.records import Record
from mjp.report.folders import FOLDER, Folder, find_folders
from mjp.report.render import PagePart, Renderer
from mjp.report.table import Column, FilledTable, Row, Section, Table, split

BROKEN = (KeyError, ValueError, TypeError, AttributeError, IndexError, OSError, MjpError)
"""What records that are not as they should be lead to."""
MOST_LINES = 12
"""Lines of a table that the start of the page shows at most."""
GLANCE = "glance"
"""The id of the part that says first what was measured."""


@dataclass(frozen=True)
class Report:
    """A page that was written.

    Args:
        records: that it is made of.
        problems: that it tells of, in sentences.
        lines: that it begins with.
    """

    path: Path
    records: int
    problems: tuple[str, ...]
    lines: tuple[str, ...]


def write_report(
    paths: Sequence[Path],
    out: Path,
    sections: Sequence[Section],
    *,
    command: str,
    title: str = "",
    lead: str = "",
    kind: str = "Report",
) -> Report:
    """Writes the page on all folders of records among these and below them.

    Args:
        out: the page.
        sections: of all plug-ins, in the order of the page.
        command: the command line that makes it.
        title: of the page; by default it names the folders.
        lead: a text below the title; by default it counts the records.
        kind: what sort of page it is, in two words.
    """
    folders = find_folders(paths, sections)
    records = [record for folder in folders for record in folder.records]
    renderer = Renderer(folders)
    problems = [problem for folder in folders for problem in folder.problems]
    parts: list[PagePart] = []
    for section in sections:
        try:
            parts += _parts(section, records, renderer)
        except BROKEN as error:
            reason = f"{type(error).__name__}: {error}"
            problems.append(
                f"The part “{section.title}” cannot be shown; its records are off ({reason})."
            )
    known = {kind for section in sections for kind in section.kinds}
    others = [record for record in records if record.kind not in known]
    try:
        lines = glance(records, sections)
    except BROKEN as error:
        lines = []
        problems.append(f"There is no glance; its records are off ({error}).")
    first = PagePart(
        GLANCE, "At a glance", renderer.fill("glance.html", lines=lines, problems=problems)
    )
    above = [part for part in parts if not part.chapter]
    below = [part for part in parts if part.chapter]
    last = [
        PagePart("runs", "What this page is made of", renderer.table(_contents(folders)), "More")
    ]
    if table := OTHERS.fill(others):
        last.append(PagePart("other", "Other records", renderer.table(table), "More"))
    names = ", ".join(dict.fromkeys(Path(path).resolve().name for path in paths))
    noun = "folder" if len(folders) == 1 else "folders"
    page = renderer.page(
        [*above, first, *below, *last],
        {
            "kind": kind,
            "heading": title or f"mjp: {names}",
            "lead": lead or f"{len(records)} records of {len(folders)} {noun}.",
            "title": title or f"mjp: {names}",
            "command": command,
        },
    )
    texts = tuple(text for text, _ in lines)
    return Report(_write_whole(out, page), len(records), tuple(problems), texts)


def glance(
    records: Sequence[Record], sections: Sequence[Section]
) -> list[tuple[str, tuple[Record, ...]]]:
    """The lines that the tables have for the start of a page, and the records they rest on."""
    return [
        line
        for section in sections
        for table in section.tables
        for line in table.glances([r for r in records if r.kind in section.kinds])[:MOST_LINES]
    ]


def _parts(section: Section, records: Sequence[Record], renderer: Renderer) -> list[PagePart]:
    """The section, or one for each value of what it is made for; none without its records."""
    own = [record for record in records if record.kind in section.kinds]
    if not own:
        return []
    if not section.per:
        parts = [renderer.section(section, own)]
    else:
        parts = [
            renderer.section(section, some, place)
            for place, some in enumerate(split(own, section.per), 1)
        ]
    return [part for part in parts if part.body]


OTHERS = Table(
    "",
    "As they were written down",
    (
        Column("Kind", lambda record: record.kind, numeric=False),
        Column("Folder", FOLDER, numeric=False),
        Column(
            "Values",
            lambda record: ", ".join(f"{name} {value}" for name, value in record.values.items()),
            numeric=False,
            look="wide",
        ),
    ),
    join=lambda records: [(record, (record,)) for record in records],
)
"""Records of kinds that have no section: shown as they are, never dropped."""


def _contents(folders: Sequence[Folder]) -> FilledTable:
    """What each folder holds."""
    rows = []
    for folder in folders:
        kinds = {record.kind.partition(" ")[0] for record in folder.records}
        replaced = f"; {folder.replaced} replaced by later ones" if folder.replaced else ""
        problems = str(len(folder.problems) or "none")
        held = f"{len(folder.entries)}{replaced}"
        rows.append(Row((folder.name, ", ".join(sorted(kinds)) or "nothing", held, problems)))
    heads = ("Folder", "Holds", "Records", "Problems")
    columns = tuple(Column(head, "", numeric=False) for head in heads)
    return FilledTable("The folders", columns, tuple(rows))


def _write_whole(path: Path, text: str) -> Path:
    """Writes a page, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise MjpError(f"the page cannot be written to {path}: {error.strerror}") from error
    return path
