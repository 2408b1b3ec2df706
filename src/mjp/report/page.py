"""`write_report`: one page from any folders of records, whatever they hold and what is broken."""

import base64
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mjp.core.errors import MjpError
from mjp.core.records import Record
from mjp.report.folders import FOLDER, Entry, Folder, find_folders
from mjp.report.table import (
    Column,
    FilledTable,
    Row,
    Section,
    Table,
    filled_in,
    format_scalar,
    split,
)

BROKEN = (KeyError, ValueError, TypeError, AttributeError, IndexError, OSError, MjpError)
"""What records that are not as they should be lead to."""
MOST_LINES = 12
"""Lines of a table that the start of the page shows at most."""
TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
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


@dataclass(frozen=True)
class PagePart:
    """A part of a page.

    Args:
        id: of its place, for links.
        chapter: the heading that it stands under in the contents; empty for none.
    """

    id: str
    chapter: str
    title: str
    body: Markup


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
    problems = [problem for folder in folders for problem in folder.problems]
    renderer = Renderer(folders)
    parts: list[PagePart] = []
    lines: list[tuple[str, tuple[Record, ...]]] = []
    for section in sections:
        own = [record for record in records if record.kind in section.kinds]
        try:
            shown = list(renderer.parts(section, own))
            glances = [line for t in section.tables for line in t.glances(own)[:MOST_LINES]]
        except BROKEN as error:
            reason = f"{type(error).__name__}: {error}"
            problems.append(
                f"The part “{section.title}” cannot be shown; its records are off ({reason})."
            )
        else:
            parts += shown
            lines += glances
    body = renderer.fill("glance.html", lines=lines, problems=problems)
    parts.append(PagePart("glance", "", "At a glance", body))
    body = renderer.fill("table.html", table=_contents(folders))
    parts.append(PagePart("runs", "More", "What this page is made of", body))
    known = {kind for section in sections for kind in section.kinds}
    if table := OTHERS.fill([record for record in records if record.kind not in known]):
        body = renderer.fill("table.html", table=table)
        parts.append(PagePart("other", "More", "Other records", body))
    names = ", ".join(dict.fromkeys(Path(path).resolve().name for path in paths))
    noun = "folder" if len(folders) == 1 else "folders"
    page = renderer.page(
        parts,
        kind=kind,
        title=title or f"mjp: {names}",
        lead=lead or f"{len(records)} records of {len(folders)} {noun}.",
        command=command,
    )
    _write_whole(out, page)
    return Report(out, len(records), tuple(problems), tuple(line for line, _ in lines))


class Renderer:
    """Makes the parts of a page, and numbers records in the order in which it first uses them."""

    def __init__(self, folders: Sequence[Folder]) -> None:
        self._paths = {folder.name: folder.path for folder in folders}
        self._entries = {id(entry.record): entry for folder in folders for entry in folder.entries}
        self._numbers: dict[Entry, int] = {}
        self._environment = Environment(
            loader=PackageLoader("mjp", "report"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters["number"] = format_scalar
        self._environment.globals["source"] = self._link

    def fill(self, template: str, **values: Any) -> Markup:
        """The template with these values, as a part of a page."""
        return Markup(self._environment.get_template(template).render(**values))

    def parts(self, section: Section, records: Sequence[Record]) -> Iterator[PagePart]:
        """The section, or one for each value of what it is made for; none with nothing to show."""
        groups = split(records, section.per) if section.per else [records] if records else []
        for place, some in enumerate(groups, 1):
            tables = [
                self.fill("table.html", table=filled)
                for table in section.tables
                for filled in table.fill_all(some)
            ]
            figures = list(self._figures(section, some))
            texts = [Markup("<p>{}</p>").format(p) for p in section.intro.split("\n\n") if p]
            if section.template:
                texts.append(self.fill(section.template, records=some))
            if section.template or tables or figures:
                shown = [*figures, *tables] if section.figures_first else [*tables, *figures]
                yield PagePart(
                    f"{section.id}-{place}" if section.per else section.id,
                    section.chapter,
                    filled_in(section.title, some[0]),
                    Markup("\n").join([*texts, *shown]),
                )

    def page(self, parts: Sequence[PagePart], **texts: str) -> str:
        """The whole page, with the records behind it at its end.

        Args:
            texts: what `page.html` wants: kind, title, lead, command.
        """
        chapters: dict[str, list[PagePart]] = {"": []}  # What has no chapter comes first.
        for part in parts:
            chapters.setdefault(part.chapter, []).append(part)
        folder = files("mjp") / "report"
        script = (folder / "page_script.js").read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
        return self.fill(
            "page.html",
            **texts,
            chapters=chapters,
            style=Markup((folder / "page_style.css").read_text(encoding="utf-8")),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            sources=self._numbers,
        )

    def _link(self, *records: Record) -> Markup:
        """Links to the records, in place of a cell's text; none to what stands in no file."""
        links = []
        for entry in dict.fromkeys(self._entries.get(id(record)) for record in records):
            if entry is not None:
                number = self._numbers.setdefault(entry, len(self._numbers) + 1)
                link = '<a class="source" href="#r{0}" aria-label="record {0}">{0}</a>'
                links.append(Markup(link).format(number))
        return Markup(" ").join(links)

    def _figures(self, section: Section, records: Sequence[Record]) -> Iterator[Markup]:
        """Figures drawn of the records, as vectors where they can be, and those beside them."""
        for figure in section.figures:
            with tempfile.TemporaryDirectory(prefix="mjp-figures-") as folder:
                paths = figure.draw(records, Path(folder))
                for path in [path for path in paths if path.suffix == ".svg"] or paths:
                    yield self._figure(path, figure.alt, figure.caption)
        for name in dict.fromkeys(str(record.conditions.get(FOLDER)) for record in records):
            for kept in section.files:
                before, _, after = kept.pattern.partition("*")
                for path in sorted(self._paths[name].glob(kept.pattern))[: kept.most]:
                    star = path.name.removeprefix(before).removesuffix(after)
                    caption = kept.caption.replace("{name}", star)
                    alt = kept.alt.replace("{name}", star) or caption
                    yield self._figure(path, f"{alt} ({name})", caption)

    def _figure(self, path: Path, alt: str, caption: str) -> Markup:
        """A file as part of the page; as an image, so that nothing in it can run or load."""
        content = base64.b64encode(path.read_bytes()).decode("ascii")
        source = f"data:{TYPES[path.suffix]};base64,{content}"
        return self.fill("figure.html", source=source, alt=alt, caption=caption)


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


def _write_whole(path: Path, text: str) -> None:
    """Writes a page, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise MjpError(f"the page cannot be written to {path}: {error.strerror}") from error
