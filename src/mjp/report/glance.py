"""The start of a page: what was measured in a few sentences, which runs, and what is missing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mjp.core.records import Record
from mjp.report.audit_words import judge
from mjp.report.leaks import NONE, Audit, number, words
from mjp.report.page import Column, DataTable, Renderer, Row, Section
from mjp.report.reading import is_clear, label_of
from mjp.report.runs import Run

TELLING_RATIOS = (0.27, 0.5)
"""Shares of moved patches at which models are compared in a sentence."""


@dataclass(frozen=True, eq=False)
class Finding:
    """A sentence, and the records that it rests on."""

    text: str
    records: tuple[Record, ...]


def glance_section(told: Sequence[Finding], problems: Sequence[str], renderer: Renderer) -> Section:
    """What the page says first.

    Args:
        problems: what is missing or broken, in sentences.
    """
    body = renderer.fill("glance.html", findings=told, problems=problems)
    return Section("glance", "At a glance", body)


def run_sections(runs: Sequence[Run], renderer: Renderer) -> list[Section]:
    """What the page is made of."""
    return [Section("runs", "What this page is made of", renderer.table(_runs(runs)), "More")]


def findings(runs: Sequence[Run]) -> list[Finding]:
    """What the runs found, in a few sentences."""
    audits = [record for run in runs for record in run.of("audit", "audit accuracy")]
    return [
        *_accuracies(runs),
        *_differences(runs),
        *_positions(runs),
        *_leaks(Audit.of(audits)),
    ]


def _runs(runs: Sequence[Run]) -> DataTable:
    rows = []
    for run in runs:
        kinds = {kind.split()[0] for kind in run.kinds}
        count = len(run.problems)
        state = f"{count} problem{'s' if count > 1 else ''}" if count else "whole"
        replaced = f"; {run.replaced} replaced by later ones" if run.replaced else ""
        held = f"{len(run.entries)} record{'' if len(run.entries) == 1 else 's'}{replaced}"
        rows.append(Row((run.name, ", ".join(sorted(kinds)) or "nothing", held, state)))
    columns = [Column(name, False) for name in ("Run", "Holds", "Records", "State")]
    return DataTable("The runs", columns, rows)


def _accuracies(runs: Sequence[Run]) -> Iterator[Finding]:
    """One for each data set: what each model gets right."""
    sets: dict[str, list[Record]] = {}
    for run in runs:
        for one in run.of("eval accuracy"):
            sets.setdefault(words(one.conditions, "data"), []).append(one)
    for data, records in sets.items():
        told = [
            f"{label_of(one)} {number(one.values, 'top1'):.1f} %"
            for one in records
            if number(one.values, "top1") is not None
        ]
        if told:
            yield Finding(f"Accuracy on {data}: {', '.join(told)}.", tuple(records))


def _differences(runs: Sequence[Run]) -> Iterator[Finding]:
    """How much more consistent a model is than the first, at ratios that tell."""
    for run in runs:
        groups: dict[tuple[str, str, str], list[Record]] = {}
        for one in run.of("eval difference"):
            told = one.conditions
            if words(told, "value") == "consistency" and told.get("ratio") in TELLING_RATIOS:
                key = (label_of(one), words(told, "than"), words(told, "data"))
                groups.setdefault(key, []).append(one)
        for (model, than, data), records in groups.items():
            parts = []
            for one in records:
                value, ratio = number(one.values, "difference"), number(one.conditions, "ratio")
                if value is None or ratio is None:
                    continue
                clear = is_clear(one.values, "difference")
                doubt = "" if clear else " (the interval holds 0)"
                parts.append(f"{value:+.1f} points at γ = {ratio:g}{doubt}")
            if parts:
                text = f"Consistency of {model} against {than} on {data}: {', '.join(parts)}."
                yield Finding(text, tuple(records))


def _positions(runs: Sequence[Run]) -> Iterator[Finding]:
    records = [one for run in runs for one in run.of("probe positions")]
    told = [
        f"{label_of(one)} {number(one.values, 'mae_2d'):.2f}"
        for one in records
        if number(one.values, "mae_2d") is not None
    ]
    if told:
        text = (
            "Error, in cells of the grid, of telling a position from its embedding: "
            f"{', '.join(told)}."
        )
        yield Finding(text, tuple(records))


def _leaks(audit: Audit) -> Iterator[Finding]:
    """What comes back without a defence, and under MJP."""
    for model in audit.models:
        defences = audit.defences(model)
        chosen = [one for one in defences if one == NONE or one.startswith("mjp=")]
        for defence in (chosen or defences)[:4]:
            verdict = judge(audit, model, defence)
            cell = audit.gravest(model, defence)
            records = () if cell is None else (cell.record,)
            yield Finding(f"{model} ({verdict.title}): {verdict.sentence}", records)


def other_sections(runs: Sequence[Run], known: set[str], renderer: Renderer) -> list[Section]:
    """Records of kinds that have no section of their own: shown as they are, never dropped."""
    rows = []
    for run in runs:
        for entry in run.entries:
            record = entry.record
            if record.kind not in known:
                values = ", ".join(f"{name} {value}" for name, value in record.values.items())
                rows.append(Row((record.kind, run.name, values), (record,)))
    if not rows:
        return []
    columns = [Column(name, False) for name in ("Kind", "Run", "Values")]
    body: Markup = renderer.table(DataTable("As they were written down", columns, rows))
    return [Section("other", "Other records", body, "More")]
