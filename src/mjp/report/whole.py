"""`write_report`: one page from any set of runs, whatever they hold and whatever is broken."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mjp.core.errors import MjpError
from mjp.report.audit_figures import draw_audit, picture_file
from mjp.report.audit_page import audit_sections
from mjp.report.demo import METHOD, PANELS, demo_sections
from mjp.report.evaluation import KINDS, evaluation_sections
from mjp.report.glance import findings, glance_section, other_sections, run_sections
from mjp.report.leaks import Audit, words
from mjp.report.page import Renderer, Section, write_whole
from mjp.report.probing import probing_sections
from mjp.report.robustness import robustness_sections
from mjp.report.runs import Run, find_runs
from mjp.report.sources import Sources
from mjp.report.training import training_sections

Maker = Callable[[Sequence[Run], Renderer], list[Section]]

KNOWN = {
    *("train start", "train epoch", "train step", "train end", "train timing"),
    *("eval corruption", "eval corruption summary", "eval imagenet-a", "eval imagenet-o"),
    *("probe positions", "probe attention", "audit", "audit accuracy", "audit image"),
    *(METHOD, PANELS, *KINDS),
}
"""Kinds of records that have a section of their own."""
BROKEN = (KeyError, ValueError, TypeError, AttributeError, IndexError, OSError, MjpError)
"""What records that are not as they should be lead to."""


@dataclass(frozen=True)
class Report:
    """A page that was written.

    Args:
        records: that it is made of.
        problems: that it tells of, in sentences.
    """

    path: Path
    records: int
    problems: tuple[str, ...]


def write_report(paths: Sequence[Path], out: Path, *, command: str, title: str = "") -> Report:
    """Writes the page on all runs that these folders hold.

    Args:
        out: the page.
        command: the command line that makes it.
        title: of the page; by default it names the runs.
    """
    runs = find_runs(paths)
    renderer = Renderer(Sources(entry for run in runs for entry in run.entries))
    problems = [problem for run in runs for problem in run.problems]
    sections: list[Section] = []
    for what, make in MAKERS.items():
        try:
            sections += make(runs, renderer)
        except BROKEN as error:
            reason = f"{type(error).__name__}: {error}"
            problems.append(f"The part on {what} cannot be shown; its records are off ({reason}).")
    try:
        told = findings(runs)
    except BROKEN as error:
        told = []
        problems.append(f"What was found cannot be told in sentences; records are off ({error}).")
    first = [glance_section(told, problems, renderer)]
    names = ", ".join(dict.fromkeys(Path(path).resolve().name for path in paths))
    demo = any(run.of(PANELS) for run in runs)
    page = renderer.page(
        _ordered(first, sections),
        kind="Demonstration" if demo else "Report",
        heading=title or ("Masked Jigsaw Puzzle, on your machine" if demo else f"mjp: {names}"),
        lead=_lead(runs, demo),
        title=title or f"mjp: {names}",
        command=command,
    )
    count = sum(len(run.entries) for run in runs)
    return Report(write_whole(out, page), count, tuple(problems))


def _ordered(first: list[Section], others: list[Section]) -> list[Section]:
    """The demonstration's pictures come before all words."""
    pictures = [one for one in others if one.id == "panels"]
    return [*pictures, *first, *(one for one in others if one not in pictures)]


def _lead(runs: Sequence[Run], demo: bool) -> str:
    if demo:
        return (
            "Two pairs of small vision transformers were trained on this machine, one pair on each "
            "of two data sets, without and with MJP position embeddings; then their accuracy, "
            "their answers to jigsaws and their position embeddings were measured, and gradients "
            "attacked. All pictures and numbers below come from that."
        )
    count = sum(len(run.entries) for run in runs)
    noun = "run" if len(runs) == 1 else "runs"
    return f"What {len(runs)} {noun} measured, from {count} records."


def _audit(runs: Sequence[Run], renderer: Renderer) -> list[Section]:
    """All audits together, their pictures run by run."""
    found = [run for run in runs if run.of("audit")]
    if not found:
        return []
    records = [one for run in found for one in run.of("audit", "audit accuracy")]
    with tempfile.TemporaryDirectory(prefix="mjp-figures-") as folder:
        figures = draw_audit(records, (), Path(folder), Path(folder))
        for place, run in enumerate(found):
            names = _pictures(run)
            out = Path(folder) / str(place)
            out.mkdir()
            grids = draw_audit(run.images, names, run.folder, out)
            figures |= {name: path for name, path in grids.items() if name not in figures}
        return audit_sections(Audit.of(records), figures, renderer, "Privacy audit")


def _pictures(run: Run) -> list[str]:
    """The names of an audit's first pictures, by their numbers, as far as they were kept."""
    names = {
        one.conditions["number"]: words(one.conditions, "image")
        for one in run.images
        if picture_file(
            run.folder, one.conditions, "original", int(str(one.conditions["number"]))
        ).is_file()
    }
    found: list[str] = []
    while len(found) in names:
        found.append(names[len(found)])
    return found


MAKERS: dict[str, Maker] = {
    "the demonstration": demo_sections,
    "training": training_sections,
    "evaluation": evaluation_sections,
    "robustness": robustness_sections,
    "positions and attention": probing_sections,
    "the audit": _audit,
    "runs": run_sections,
    "other records": lambda runs, renderer: other_sections(runs, KNOWN, renderer),
}
"""What a page is made of, in order, each by what it is about."""
