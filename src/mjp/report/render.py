"""`Renderer`: sections, tables and figures as parts of a page, each number with its source."""

import base64
import hashlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mjp.core.errors import ConfigError
from mjp.core.records import Record
from mjp.report.folders import FOLDER, Entry, Folder
from mjp.report.table import FilledTable, Section, filled_in, format_scalar

TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class PagePart:
    """A part of a page.

    Args:
        id: of its place, for links.
        chapter: the heading that it stands under in the contents; empty for none.
    """

    id: str
    title: str
    body: Markup
    chapter: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture of a page: its content, what it shows in place of it, and words below it."""

    source: str
    alt: str
    caption: str


class Sources:
    """Numbers records in the order in which a page first uses them.

    Args:
        entries: all that the page may use, with the files they are from.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {id(entry.record): entry for entry in entries}
        self._numbers: dict[int, int] = {}

    def link(self, *records: Record) -> Markup:
        """Links to the records, in place of a cell's text; none to what stands in no file."""
        known = dict.fromkeys(id(record) for record in records if id(record) in self._entries)
        numbers = [self._numbers.setdefault(key, len(self._numbers) + 1) for key in known]
        return Markup(" ").join(
            Markup('<a class="source" href="#r{0}" aria-label="record {0}">{0}</a>').format(number)
            for number in numbers
        )

    def listing(self) -> Markup:
        """All that were linked to, as they stand in their files."""
        items = []
        for key, number in self._numbers.items():
            entry = self._entries[key]
            head = Markup('<li id="r{}" value="{}"><code>{}</code>, line {}: {}').format(
                number, number, entry.file, entry.line, entry.record.kind
            )
            items.append(head + Markup("<pre>{}</pre></li>").format(escape(entry.text)))
        return Markup("\n").join(items)


class Renderer:
    """Makes the parts of a page; all of them share their sources."""

    def __init__(self, folders: Sequence[Folder]) -> None:
        self._paths = {folder.name: folder.path for folder in folders}
        self._sources = Sources(entry for folder in folders for entry in folder.entries)
        self._environment = Environment(
            loader=PackageLoader("mjp", "report"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters["number"] = format_scalar
        self._environment.globals["source"] = self._sources.link

    def fill(self, template: str, **values: Any) -> Markup:
        """The template with these values, as a part of a page."""
        return Markup(self._environment.get_template(template).render(**values))

    def section(self, section: Section, records: Sequence[Record], place: int = 0) -> PagePart:
        """What a page shows of a section's records; it has nothing to show without a body.

        Args:
            place: among the parts that the section has, from 1; 0 where it has one.
        """
        own = [record for record in records if record.kind in section.kinds]
        tables = [
            self.fill("table.html", table=filled)
            for table in section.tables
            for filled in table.fill_all(own)
        ]
        pictures = [
            self.fill("figure.html", figure=picture) for picture in self._pictures(section, own)
        ]
        words = [Markup("<p>{}</p>").format(text) for text in section.intro.split("\n\n") if text]
        if section.template:
            words.append(self.fill(section.template, records=own))
        shown = [*pictures, *tables] if section.figures_first else [*tables, *pictures]
        has_content = bool(shown or section.template)
        return PagePart(
            f"{section.id}-{place}" if place else section.id,
            filled_in(section.title, own[0]),
            Markup("\n").join([*words, *shown]) if has_content else Markup(""),
            section.chapter,
        )

    def table(self, table: FilledTable) -> Markup:
        """A table that can be sorted."""
        return self.fill("table.html", table=table)

    def _pictures(self, section: Section, records: Sequence[Record]) -> list[Picture]:
        """Figures drawn of the records, as vectors where they can be, and those beside them."""
        pictures = []
        for figure in section.figures:
            with tempfile.TemporaryDirectory(prefix="mjp-figures-") as folder:
                paths = figure.draw(records, Path(folder))
                vectors = [path for path in paths if path.suffix == ".svg"]
                pictures += [
                    embedded(path, figure.alt, figure.caption) for path in vectors or paths
                ]
        for name in dict.fromkeys(str(record.conditions.get(FOLDER)) for record in records):
            for files_of in section.files:
                before, _, after = files_of.pattern.partition("*")
                for path in sorted(self._paths[name].glob(files_of.pattern))[: files_of.most]:
                    star = path.name.removeprefix(before).removesuffix(after)
                    caption = files_of.caption.replace("{name}", star)
                    alt = (files_of.alt or files_of.caption).replace("{name}", star)
                    pictures.append(embedded(path, f"{alt} ({name})", caption))
        return pictures

    def page(self, parts: Sequence[PagePart], texts: Mapping[str, str]) -> str:
        """The whole page, with the records behind it at its end.

        Args:
            texts: what `page.html` wants: kind, heading, lead, title, command.
        """
        chapters: dict[str, list[PagePart]] = {}
        for part in parts:
            chapters.setdefault(part.chapter, []).append(part)
        script = _asset("page_script.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
        return self.fill(
            "page.html",
            **texts,
            chapters=chapters,
            style=Markup(_asset("page_style.css")),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            listing=self._sources.listing(),
        )


def embedded(path: Path, alt: str, caption: str) -> Picture:
    """A file as part of the page; as an image, so that nothing in it can run or load."""
    if path.suffix not in TYPES:
        raise ConfigError(f"figure {path} is neither PNG nor SVG; give one of {', '.join(TYPES)}")
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    return Picture(f"data:{TYPES[path.suffix]};base64,{content}", alt, caption)


def _asset(name: str) -> str:
    return files("mjp").joinpath("report", name).read_text(encoding="utf-8")
