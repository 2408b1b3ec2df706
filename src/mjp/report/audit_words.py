"""The verdicts of an audit in words for people who have never read about gradients."""

from collections import Counter
from dataclasses import dataclass

from mjp.core.records import Record
from mjp.report.leaks import NONE, Audit, Cell, is_measured, number, words

WORTH_TELLING = 0.5
"""dB between two attackers below which they are as good as each other."""
GETS = {
    "recovered": "recovers the picture",
    "recognisable": "gets a recognisable picture",
    "traces": "gets traces of the picture",
}
COUNTED = {
    "recovered": "the picture is recovered through {}",
    "recognisable": "a recognisable picture gets through {}",
    "traces": "traces get through {}",
    "failed": "the attacks tried here fail against {}",
    "does not apply": "no attack tried here applies to {}",
}


@dataclass(frozen=True)
class Verdict:
    """What an audit found of one defence: a level, a sentence, and what it rests on."""

    defence: str
    title: str
    level: str
    sentence: str
    details: tuple[str, ...]
    record: Record


def judge(audit: Audit, model: str, defence: str) -> Verdict:
    """The verdict on one defence, by the attack that got the most."""
    cells = audit.of_defence(model, defence)
    cell = max(cells, key=lambda one: one.gravity)
    details = [
        *_evidence(cell),
        *_knowledge(cells, defence),
        *_doubts(cell, cells),
        *_accuracy(audit, model, defence),
    ]
    sentence = _sentence(audit, cell)
    return Verdict(defence, cell.defence_title, cell.level, sentence, tuple(details), cell.record)


def headline(audit: Audit, model: str) -> str:
    """All defences of a model in two sentences."""
    parts = []
    if NONE in audit.defences(model):
        parts.append(judge(audit, model, NONE).sentence)
    others = [one for one in audit.defences(model) if one != NONE]
    levels = Counter(judge(audit, model, defence).level for defence in others)
    counts = [told.format(levels[level]) for level, told in COUNTED.items() if levels[level]]
    if counts:
        noun = "defence" if len(others) == 1 else "defences"
        parts.append(f"Of {len(others)} {noun} tried, {'; '.join(counts)}.")
    return " ".join(parts)


def _sentence(audit: Audit, cell: Cell) -> str:
    if cell.level == "does not apply":
        return "None of the attacks tried applies here, so nothing was measured."
    if cell.level == "failed":
        best = audit.highest(cell.model, cell.defence) or cell
        guess = "" if best.baseline is None else f", where a trivial guess scores {_db(best)}"
        return (
            f"No attack tried here got the picture: at best {_decibels(best, 'psnr')}{guess}. "
            "The attacks failed; that does not prove the picture private."
        )
    if cell.defence == NONE:
        who = "Without a defence, an attacker"
    elif cell.informed:
        who = "An attacker who knows the defence"
    else:
        who = "An attacker who does not even know the defence"
    return f"{who} {GETS[cell.level]}: {_amount(cell)}."


def _amount(cell: Cell) -> str:
    """PSNR, and where the picture is found if not in its place."""
    whole = _decibels(cell, "psnr")
    if cell.elsewhere == "psnr_unmasked":
        return f"{_decibels(cell, 'psnr_unmasked')} on the patches left alone, {whole} over all"
    if cell.mark == "elsewhere":
        fed = _decibels(cell, "client_psnr")
        return f"{fed} against the picture as the model was fed it, {whole} against the original"
    return whole


def _evidence(cell: Cell) -> list[str]:
    """Which attack, over how many images, how far apart, and how often the picture is named."""
    if not cell.applies:
        reason = cell.words("reason")
        return [f"{cell.attack}: {reason}"] if reason else []
    found = f"Strongest attack: {cell.attack}"
    low, high = cell.number("psnr_lowest"), cell.number("psnr_highest")
    if low is not None and high is not None:
        found += f", {low:.1f} to {high:.1f} dB from image to image"
    images = cell.number("images")
    told = [found + (f" ({images:.0f} images)." if images else ".")]
    shares = [cell.number(f"identified_{how}") for how in ("pixels", "features")]
    known = [share for share in shares if share is not None]
    gallery = cell.number("gallery")
    if known and gallery:
        told.append(f"Picked out of {gallery:.0f} pictures in {max(known):.0%} of cases.")
    return told


def _knowledge(cells: list[Cell], defence: str) -> list[str]:
    """What it is worth to an attacker to know the defence."""
    if defence == NONE:
        return []
    split = any(one.number("psnr_unmasked") is not None for one in cells)
    name, where = ("psnr_unmasked", " on the patches left alone") if split else ("psnr", "")
    best = []
    for informed in (False, True):
        found = [one for one in cells if one.informed == informed and one.number(name) is not None]
        if not found:
            return []
        best.append(max(found, key=lambda one: one.number(name) or 0.0))
    unaware, aware = (one.number(name) or 0.0 for one in best)
    if abs(aware - unaware) < WORTH_TELLING:
        return []
    return [
        f"At best {unaware:.1f} dB{where} for one who does not know the defence "
        f"({best[0].attack}), {aware:.1f} dB for one who does ({best[1].attack})."
    ]


def _doubts(cell: Cell, cells: list[Cell]) -> list[str]:
    """Where a failure says nothing about the defence."""
    tried = [one for one in cells if one.applies]
    if cell.level == "failed" and tried and all(one.unproven for one in tried):
        return ["Does not count for the defence: no attack here is known to work without it."]
    return []


def _accuracy(audit: Audit, model: str, defence: str) -> list[str]:
    record = audit.accuracies.get((model, defence))
    top1 = None if record is None else number(record.values, "top1")
    if record is None or top1 is None:
        return []
    note = words(record.values, "accuracy_note")
    return [f"Top-1 accuracy {top1:.1f} %" + (f": {note}." if not is_measured(record) else ".")]


def _decibels(cell: Cell, name: str) -> str:
    value = cell.number(name)
    return "a number that was not kept" if value is None else f"{value:.1f} dB"


def _db(cell: Cell) -> str:
    return "" if cell.baseline is None else f"{cell.baseline:.1f} dB"
