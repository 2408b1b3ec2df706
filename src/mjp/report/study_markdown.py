"""`fill`: the tables, verdicts and figures of a study, put into a Markdown document's places."""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mjp.core.errors import ConfigError
from mjp.report.page import DataTable, write_whole
from mjp.report.runs import find_runs
from mjp.report.study import TABLES
from mjp.report.study_derived import Derived
from mjp.report.study_figures import Drawing, draw_table
from mjp.report.study_page import summary_of, trained_table, views_of
from mjp.report.study_tables import PAPERS_SETTING, READ, tables_of
from mjp.report.study_words import HEADS, Verdict, by_level, overview, verdicts_of

MARK = re.compile(r"<!-- (?:study: (?P<name>[^\n]*?)|(?P<end>end)) -->")
NOTHING = "Nothing of this was run yet."

Figures = Mapping[str, Sequence[Drawing]]
"""Of each table."""


def fill_document(paths: Sequence[Path], document: Path) -> list[Path]:
    """Fills a document from the one study in these folders; it, and the figures beside it.

    Args:
        paths: folders with records, or files of them.
    """
    if not document.is_file():
        raise ConfigError(f"there is no file {document}; name a Markdown document with marks")
    if not MARK.search(document.read_text(encoding="utf-8")):
        raise ConfigError(
            f"{document} has no marks to fill; put <!-- study: overview --> and <!-- end --> where "
            "the study should stand"
        )
    views = views_of(find_runs(paths))
    if len(views) != 1:
        names = ", ".join(view.study.name for view in views) or "none"
        raise ConfigError(f"a document tells of one study, but there are {len(views)}: {names}")
    with tempfile.TemporaryDirectory(prefix="mjp-figures-") as folder:
        figures = {
            table: draw_table(views[0], table, Path(folder)) for table in views[0].study.tables
        }
        text = fill(document.read_text(encoding="utf-8"), views[0], figures)
        used = [_png(one) for own in figures.values() for one in own]
        kept = [path for path in used if f"]({path.name})" in text]
        pictures = {document.parent / path.name: path.read_bytes() for path in kept}
    for path, content in pictures.items():
        path.write_bytes(content)
    return [write_whole(document, text), *pictures]


def fill(text: str, view: Derived, figures: Figures) -> str:
    """The text with what stands between its marks made anew; all else stays as it is."""
    parts, name, at = [], None, 0
    for mark in MARK.finditer(text):
        line = text.count("\n", 0, mark.start()) + 1
        if mark["end"] and name is None:
            raise ConfigError(f"line {line}: <!-- end --> without a <!-- study: … --> before it")
        if not mark["end"] and name is not None:
            raise ConfigError(f"line {line}: <!-- study: {name} --> needs an <!-- end --> before")
        if mark["end"]:
            parts.append(f"\n\n{_content(str(name), view, figures, line)}\n\n{mark[0]}")
        else:
            parts.append(text[at : mark.end()])
        name, at = mark["name"], mark.end()
    if name is not None:
        raise ConfigError(f"<!-- study: {name} --> has no <!-- end -->; add one where it ends")
    return "".join([*parts, text[at:]])


def _content(name: str, view: Derived, figures: Figures, line: int) -> str:
    makers: dict[str, Callable[[], str]] = {
        "overview": lambda: overview(view),
        "claims": lambda: "\n\n".join(_claims(view)),
        "reading": lambda: f"{READ} {PAPERS_SETTING}",
        "summary": lambda: _table(summary_of(view)),
        "runs": lambda: _table(trained_table(view)),
    }
    if name in makers:
        return makers[name]() or NOTHING
    tables = (*TABLES, *(one for one in view.study.tables if one not in TABLES))
    if name not in tables:
        known = ", ".join((*makers, *tables))
        raise ConfigError(f"line {line}: a study has no part {name!r}; it has {known}")
    if name not in view.study.tables:
        return NOTHING
    return "\n\n".join(_part(view, name, figures.get(name, ())))


def _part(view: Derived, name: str, figures: Sequence[Drawing]) -> Iterator[str]:
    """What is claimed and came out, the tables that are not folded away, and the figures."""
    verdicts = verdicts_of(view, name)
    if verdicts:
        yield "\n".join(map(_verdict, verdicts))
    for table in tables_of(view, name):
        if not table.folded:
            yield _table(table)
    for one in figures:
        yield f"![{_plain(one.alt)}]({_png(one).name})"
        yield f"*{_plain(one.caption)}*"


def _claims(view: Derived) -> Iterator[str]:
    """All claims, by what became of them."""
    for level, verdicts in by_level(view).items():
        told = "\n".join(_claim(one) + one.limits for one in verdicts)
        yield f"**{HEADS[level]}**\n\n{told}"


def _claim(found: Verdict) -> str:
    whose = "Ours to ask" if found.claim.ours else "The paper"
    return f"- {whose}: {_plain(found.claim.text)}"


def _verdict(found: Verdict) -> str:
    head, _, rest = found.sentence.partition(": ")
    return f"{_claim(found)} **{head}:** {_plain(rest)}"


def _table(table: DataTable) -> str:
    """GitHub's form of a table; words that stand once in the document are left out of its note."""
    heads = [_plain(column.title) for column in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    lines = [heads, rules, *([_plain(cell) for cell in row.cells] for row in table.rows)]
    told = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    note = _plain(table.note.replace(READ, "").replace(PAPERS_SETTING, "").strip())
    return f"**{_plain(table.caption)}**\n\n{told}" + (f"\n\n{note}" if note else "")


def _plain(text: str) -> str:
    """Words that Markdown shows as they are."""
    kept = re.sub(r"([\\`*|])", r"\\\1", " ".join(text.split()))
    return kept.replace("<", "&lt;").replace("](", "]\\(")


def _png(drawing: Drawing) -> Path:
    return next(path for path in drawing.paths if path.suffix == ".png")
