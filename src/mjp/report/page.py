"""One HTML page of sections: self-contained, with contents, figures inside, and its sources."""

import base64
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mjp.core.errors import ConfigError, MjpError
from mjp.core.records import Record
from mjp.report.reading import MISSING
from mjp.report.sources import Sources

TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Section:
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
class Figure:
    """A picture of a page: its content, what it shows in place of it, and words below it."""

    source: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Column:
    """A column of a table: of numbers, or of words."""

    title: str
    numeric: bool = True


@dataclass(frozen=True, eq=False)
class Row:
    """A line of a table, and the records that its numbers come from."""

    cells: Sequence[str]
    records: Sequence[Record | None] = ()


@dataclass(frozen=True, eq=False)
class DataTable:
    """Numbers in rows; the first cell of each names it.

    Args:
        folded: whether it is long, and opened by those who want it.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    folded: bool = False

    @property
    def has_sources(self) -> bool:
        """Whether any row tells its records."""
        return any(row.records for row in self.rows)


class Renderer:
    """Fills templates; all of a page's sections share its sources."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._environment = Environment(
            loader=PackageLoader("mjp", "report"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(fixed=fixed, percent=percent, short=short)
        self._environment.globals["source"] = sources.link

    def fill(self, template: str, **values: Any) -> Markup:
        """The template with these values, as a part of a page."""
        return Markup(self._environment.get_template(template).render(**values))

    def macros(self, template: str, **values: Any) -> Any:
        """The template's macros, each a function without arguments that gives a part of a page."""
        return self._environment.get_template(template).make_module(values)

    def table(self, table: DataTable) -> Markup:
        """A table that can be sorted."""
        return self.fill("table.html", table=table)

    def figure(self, figure: Figure) -> Markup:
        """A picture that can be enlarged."""
        return self.fill("figure.html", figure=figure)

    def paragraphs(self, *texts: str) -> Markup:
        """Plain words."""
        return Markup("").join(Markup("<p>{}</p>\n").format(text) for text in texts)

    def page(
        self,
        sections: Iterable[Section],
        *,
        kind: str,
        heading: str,
        lead: str,
        title: str,
        command: str,
    ) -> str:
        """The whole page, with the records behind it at its end.

        Args:
            kind: what sort of page it is, in two words.
            command: the command line that made it.
        """
        chapters: dict[str, list[Section]] = {}
        for section in sections:
            chapters.setdefault(section.chapter, []).append(section)
        script = _asset("page_script.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
        return self._environment.get_template("page.html").render(
            chapters=chapters,
            kind=kind,
            heading=heading,
            lead=lead,
            title=title,
            command=command,
            style=Markup(_asset("page_style.css")),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            listing=self.sources.listing(),
        )


def embedded(path: Path, alt: str, caption: str) -> Figure:
    """A file as part of the page; as an image, so that nothing in it can run or load."""
    if path.suffix not in TYPES:
        raise ConfigError(f"figure {path} is neither PNG nor SVG; give one of {', '.join(TYPES)}")
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    return Figure(f"data:{TYPES[path.suffix]};base64,{content}", alt, caption)


def write_whole(path: Path, text: str) -> Path:
    """Writes a page, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise MjpError(f"the page cannot be written to {path}: {error.strerror}") from error
    return path


@contextmanager
def drawn(draw: Callable[[Path], list[Path]]) -> Iterator[list[Path]]:
    """What a function draws into a folder, as vectors where it does; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mjp-figures-") as folder:
        paths = draw(Path(folder))
        vectors = [path for path in paths if path.suffix == ".svg"]
        yield vectors or paths


def fixed(value: float | None, digits: int = 1) -> str:
    """A number with this many digits after the point; a dash where there is none."""
    if value is None:
        return MISSING
    small = digits >= 3 and 0 < abs(value) < 0.5 * 10**-digits
    return f"{value:.0e}" if small else f"{value:.{digits}f}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share of 1 as percent."""
    return MISSING if share is None else f"{100 * share:.{digits}f} %"


def short(value: float | None) -> str:
    """Three digits, whatever the size."""
    return MISSING if value is None else f"{value:.3g}"


def _asset(name: str) -> str:
    return files("mjp").joinpath("report", name).read_text(encoding="utf-8")
