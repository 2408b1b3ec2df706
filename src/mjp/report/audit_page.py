"""What a page says of an audit: verdicts, pictures, every number, and what they rest on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjp.core.records import Record
from mjp.report.audit_words import headline, judge
from mjp.report.leaks import CEILING, NONE, Audit, Cell, is_measured, mjp_ratio, number, words
from mjp.report.page import (
    Figure,
    Renderer,
    Section,
    embedded,
    fixed,
    percent,
    short,
    write_whole,
)
from mjp.report.paper import PRIVACY, PRIVACY_RATIO
from mjp.report.reading import MISSING
from mjp.report.runs import RECORDS, Entry
from mjp.report.sources import Sources

METRICS = ("mse", "fft2d", "psnr", "ssim", "lpips")
CHARTS = {
    "defences": (
        "Bars of the PSNR that each attack reaches under each defence",
        "How close each attack comes to the original, defence by defence. Longer bars are worse "
        "for the person in the picture; pale ones say nothing for the defence.",
    ),
    "tradeoff": (
        "PSNR of the strongest attack on each defence against top-1 accuracy",
        "What each defence leaks and what it costs. Low and to the right is where one would like "
        "to be, but low may also only mean that the attacks tried are weak.",
    ),
    "ratio": (
        "PSNR of each attack over the share of patches that MJP masks",
        "More masking hides more from attackers who do not know of it; the dashed line is what "
        "one who does know recovers of the patches left alone.",
    ),
}
"""The charts by name: what they show in place of a picture, and in words below it."""
TITLES = {
    "verdict": "The verdict",
    "pictures": "What the attackers see",
    "numbers": "Every attack on every defence",
    "split": "Masked and unmasked patches apart",
    "cost": "What the defences cost",
    "paper": "In the form of the paper’s table",
    "preflight": "What the gradients show before any attack",
    "method": "What was attacked, and how it was measured",
    "glossary": "The words used here",
    "conditions": "Conditions of the audit",
}
"""The sections by their ids, in order."""
MEASURED = ("verdict", "pictures", "numbers", "split", "cost")
"""Those that `audit.html` holds; the others are for reference."""
_OWN = ("model", "attack", "attack_about", "attack_kind", "knows_defence")
"""Conditions that differ from row to row and have a place of their own on the page."""


@dataclass(frozen=True)
class PaperRow:
    """Our numbers in the form of the paper's table."""

    setting: str
    attack: str
    numbers: tuple[str, ...]
    failed: bool
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Facts:
    """What a preflight found under one defence."""

    title: str
    rank: str
    enough: str
    condition: str
    masked: str
    read: str
    records: tuple[Record, ...]


def write_page(
    records: Iterable[Record],
    figures: Mapping[str, Path],
    out: Path,
    *,
    command: str,
    first_line: int = 1,
) -> Path:
    """Writes `report.html` on an audit alone; its path.

    Args:
        figures: PNG or SVG files. `defences`, `tradeoff` and `ratio` are shown with the numbers
            they belong to; every other name is the title of a grid of pictures.
        out: a folder.
        command: the command line that made all this.
        first_line: of the records in the folder's file of them.
    """
    records = list(records)
    file = (Path(out.name) / RECORDS).as_posix()
    entries = [
        Entry(one, file, line, one.to_json()) for line, one in enumerate(records, first_line)
    ]
    renderer = Renderer(Sources(entries))
    audit = Audit.of(records)
    count = len(audit.attacks)
    page = renderer.page(
        audit_sections(audit, figures, renderer),
        kind="Privacy audit",
        heading="How much of a picture does a shared gradient give away?",
        lead="In federated training a device keeps its pictures and sends gradients. This page "
        f"shows what attackers made of such gradients: {count} "
        f"{'attack' if count == 1 else 'attacks'} on {', '.join(audit.models) or 'no model'}.",
        title=f"Privacy audit: {', '.join(audit.models) or 'nothing measured'}",
        command=command,
    )
    return write_whole(out / "report.html", page)


def audit_sections(
    audit: Audit, figures: Mapping[str, Path], renderer: Renderer, chapter: str = ""
) -> list[Section]:
    """All that a page says of an audit.

    Args:
        figures: as for `write_page`.
    """
    drawn = {name: _figure(name, path) for name, path in figures.items()}
    grids = [one for name, one in drawn.items() if name not in CHARTS]
    values = {
        "audit": audit,
        "none": NONE,
        "ceiling": CEILING,
        "gallery": _gallery(audit),
        "charts": {name: drawn.get(name) for name in CHARTS},
        "grids": grids,
        "headlines": {model: headline(audit, model) for model in audit.models},
        "verdicts": {m: [judge(audit, m, d) for d in audit.defences(m)] for m in audit.models},
        "split": [one for one in audit.cells if _is_split(one)],
        "paper": PRIVACY,
        "paper_rows": {model: _paper_rows(audit, model) for model in audit.models},
        "has_ratio": any(mjp_ratio(cell.defence) == PRIVACY_RATIO for cell in audit.cells),
        "facts": {m: [_facts(audit, m, d) for d in audit.defences(m)] for m in audit.models},
        "refusals": _refusals(audit),
        "costs": {m: [_cost(audit, m, d) for d in audit.defences(m)] for m in audit.models},
        "attacks": _attacks(audit),
        "common": _common(audit),
    }
    macros = renderer.macros("audit.html", **values)
    reference = renderer.macros("audit_reference.html", **values)
    measured = any(number(one.values, "top1") is not None for one in audit.accuracies.values())
    empty = {"pictures": not grids, "split": not values["split"]}
    empty["cost"] = bool(audit.accuracies) and not measured and not _costs(audit)
    return [
        Section(
            name, title, getattr(macros if name in MEASURED else reference, f"on_{name}")(), chapter
        )
        for name, title in TITLES.items()
        if not empty.get(name)
    ]


def _costs(audit: Audit) -> bool:
    """Whether a defence takes anything from the gradient, or promises anything."""
    told = [
        (number(one.values, "fidelity"), number(one.values, "epsilon"))
        for one in audit.accuracies.values()
    ]
    return any(
        epsilon is not None or (kept is not None and kept < 0.9995) for kept, epsilon in told
    )


def _figure(name: str, path: Path) -> Figure:
    alt, caption = CHARTS.get(name) or (
        f"{name}: rows of pictures, each with the original, what the model was fed, and what "
        "each attack made of the gradient",
        name,
    )
    return embedded(path, alt, caption)


def _gallery(audit: Audit) -> float | None:
    """How many pictures a recovered one is looked for in; None unless all have the same."""
    sizes = {one.number("gallery") for one in audit.cells if one.applies}
    return sizes.pop() if len(sizes) == 1 else None


def _is_split(cell: Cell) -> bool:
    both = (cell.number("psnr_unmasked"), cell.number("psnr_masked"))
    return any(one is not None for one in both)


def _paper_rows(audit: Audit, model: str) -> list[PaperRow]:
    """Settings a, b and c of each attack that applies."""
    rows = []
    for setting, ratio, prefix in (
        ("a", 0.0, ""),
        ("b", PRIVACY_RATIO, "client_"),
        ("c", PRIVACY_RATIO, ""),
    ):
        for defence in audit.defences(model):
            if mjp_ratio(defence) != ratio:
                continue
            for cell in audit.of_defence(model, defence):
                if cell.applies:
                    found = (cell.number(f"{prefix}{name}") for name in METRICS)
                    digits = (4, 4, 2, 4, 4)
                    numbers = (fixed(n, d) for n, d in zip(found, digits, strict=True))
                    three = (_top1(audit, model, defence), *numbers)
                    failed = not cell.above_baseline(f"{prefix}psnr")
                    own = (cell.record, audit.accuracies.get((model, defence)))
                    records = tuple(one for one in own if one is not None)
                    rows.append(PaperRow(setting, cell.attack, three, failed, records))
    return rows


def _top1(audit: Audit, model: str, defence: str) -> str:
    """The accuracy, with a star where it is not that under the defence."""
    record = audit.accuracies.get((model, defence))
    top1 = None if record is None else number(record.values, "top1")
    if record is None or top1 is None:
        return MISSING
    return f"{top1:.1f}" + ("" if is_measured(record) else "*")


def _facts(audit: Audit, model: str, defence: str) -> Facts:
    """Of the attacks on a defence, the first that tells each fact; of masks, the most."""
    cells = audit.of_defence(model, defence)

    def first(name: str) -> float | None:
        return next((one.number(name) for one in cells if one.number(name) is not None), None)

    rank, needed = first("rank"), first("rank_needed")
    enough = MISSING
    if rank is not None and needed is not None:
        enough = "yes" if rank >= needed else "no: part of the picture is not determined"
    masked, read = (
        max((one.number(name) or 0.0 for one in cells), default=0.0)
        for name in ("masked_patches", "mask_recovered")
    )
    return Facts(
        title=cells[0].defence_title,
        rank=f"{fixed(rank, 0)} of {fixed(needed, 0)}",
        enough=enough,
        condition=short(first("condition")),
        masked=fixed(masked, 0),
        read=percent(read) if masked else MISSING,
        records=tuple(one.record for one in cells),
    )


def _refusals(audit: Audit) -> list[tuple[str, str, str, str]]:
    """Model, attack, reason and defences of what did not apply, one for each reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for cell in audit.cells:
        if not cell.applies:
            reason = cell.words("reason") or "no reason was recorded"
            found.setdefault((cell.model, cell.attack, reason), []).append(cell.defence)
    return [(*key, ", ".join(defences)) for key, defences in found.items()]


def _cost(audit: Audit, model: str, defence: str) -> dict[str, Any]:
    """A row on what a defence costs and what it promises."""
    record = audit.accuracies.get((model, defence))
    values = {} if record is None else record.values
    low, high = (number(values, f"top1_{end}") for end in ("low", "high"))
    best = audit.highest(model, defence)
    epsilon = number(values, "epsilon")
    return {
        "title": audit.of_defence(model, defence)[0].defence_title,
        "defence": defence,
        "top1": fixed(number(values, "top1")),
        "interval": "" if low is None or high is None else f"[{low:.1f}, {high:.1f}]",
        "images": fixed(number(values, "accuracy_images"), 0),
        "fidelity": fixed(number(values, "fidelity"), 3),
        "epsilon": MISSING if epsilon is None else f"{epsilon:.3g}",
        "leak": MISSING if best is None else f"{best.number('psnr'):.1f} dB",
        "attack": "" if best is None else best.attack,
        "note": words(values, "accuracy_note"),
        "records": (record, None if best is None else best.record),
    }


def _attacks(audit: Audit) -> list[dict[str, Any]]:
    """Each attack once: what it does, of what kind it is, what it knows, what it takes."""
    found = {}
    for attack in audit.attacks:
        cells = [cell for cell in audit.cells if cell.attack == attack]
        slowest = max(cells, key=lambda cell: cell.number("seconds") or 0.0)
        kind = cells[0].condition("attack_kind")
        found[attack] = {
            "name": attack,
            "about": next((c.condition("attack_about") for c in cells), ""),
            "kind": {"closed": "closed form", "search": "search"}.get(kind, kind),
            "knows": "yes" if any(cell.informed for cell in cells) else "no",
            "seconds": short(slowest.number("seconds")),
            "record": slowest.record,
        }
    return list(found.values())


def _common(audit: Audit) -> dict[str, str]:
    """Conditions of all records: each with its value, or its few values."""
    found: dict[str, dict[str, None]] = {}
    for cell in audit.cells:
        for name, value in cell.record.conditions.items():
            if name not in _OWN and not name.startswith("defence") and value is not None:
                found.setdefault(name, {})[str(value)] = None
    return {
        name.replace("_", " "): "; ".join(values) if len(values) <= 6 else f"{len(values)} values"
        for name, values in found.items()
    }
