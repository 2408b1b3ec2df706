"""How grave it is what came back, of one attack and of all that were tried. Imports no torch.

The functions on records give rows for tables and figures, each with the records it rests on.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from mjp.core.records import Record, Scalar
from mjp.report.paper import PRIVACY, PRIVACY_RATIO
from mjp.report.table import Joined, look_up, number, text_of

Rows = list[tuple[Record, tuple[Record, ...]]]
"""What columns read, and the records that it is from."""
Level = Literal["recovered", "recognisable", "traces", "failed", "does not apply"]
LEVELS = get_args(Level)
"""From the gravest on."""
RECOVERED = 30.0
"""dB from which a reconstruction can hardly be told from the picture at a glance."""
RECOGNISABLE = 20.0
"""dB from which people and things in it are recognised."""
MARGIN = 1.0
"""dB that an attack has to be above the trivial guess to count as one."""
ELSEWHERE = 3.0
"""dB by which what is found of a part has to be better than the whole to stand for it."""
MOST_OF_IT = 0.5
"""Share of the patches from which what is outside a mask counts as the picture."""
VERDICTS: Mapping[Level, str] = {
    "recovered": "{who} recovers the picture{of}: {psnr:.0f} dB.",
    "recognisable": "{who} recovers a recognisable picture{of}: {psnr:.0f} dB.",
    "traces": "{who} recovers traces of the picture{of}: {psnr:.0f} dB, where a plain guess gives "
    "{baseline:.0f}.",
    "failed": "The solver failed: {psnr:.0f} dB, no better than the plain guess of {baseline:.0f}. "
    "That is no proof of privacy.",
    "does not apply": "This attack does not apply here, which says nothing about others.",
}
"""What each level means, in words that need no expert."""
SETTINGS = (("a", 0.0, ""), ("b", PRIVACY_RATIO, "client_"), ("c", PRIVACY_RATIO, ""))
"""The paper's settings: name, the share of patches that is moved, what is compared with."""
METRICS = ("mse", "fft2d", "psnr", "ssim", "lpips")
_MJP = re.compile(r"mjp=([0-9.]+(?:e-?[0-9]+)?)")


def judged(summary: Mapping[str, Scalar], baseline: float, knows: bool) -> dict[str, Scalar]:
    """Level and verdict, of what came back best: the picture, its jigsaw, or its unmasked part.

    Args:
        baseline: PSNR of the best trivial guess on the same images.
    """

    def value(name: str) -> float:
        known = number(summary, name)
        return math.nan if known is None else known

    psnr, of = value("psnr"), ""
    # Every patch, in the wrong order, is more than the patches that stayed.
    if value("client_psnr") > psnr + ELSEWHERE:
        psnr, of = value("client_psnr"), ", its patches in shuffled order"
    share = 1 - value("masked_patches") / value("patches")
    if value("psnr_unmasked") > psnr + ELSEWHERE and share >= MOST_OF_IT:
        psnr, of = value("psnr_unmasked"), f" outside the mask ({100 * share:.0f} % of it)"
        baseline = max(baseline, value("guess_unmasked"))  # A NaN, which comes last, is not taken.
    level: Level = "does not apply"
    if not math.isnan(psnr):
        ends: dict[Level, float] = {"failed": baseline + MARGIN, "traces": RECOGNISABLE}
        ends["recognisable"] = RECOVERED
        level = next((name for name, end in ends.items() if psnr < end), "recovered")
    who = "An attacker who knows the defence" if knows else "An attacker"
    words = VERDICTS[level].format(who=who, of=of, psnr=psnr, baseline=baseline)
    return {"level": level, "verdict": words}


def mjp_ratio(defence: str) -> float | None:
    """γ of a defence that is MJP alone, 0 for no defence; None for all others."""
    alone = _MJP.fullmatch(defence)
    return 0.0 if defence == "none" else float(alone[1]) if alone else None


def assessed(records: Sequence[Record]) -> Rows:
    """What each attack got, with what only all records together say.

    Adds to the values: `baseline`, the PSNR of the better trivial guess; `part`, where something
    was found if not in the whole; `counts` and, if it does not count, `why`; `ratio` of MJP.
    """
    audits = [record for record in records if record.kind == "audit"]
    audits.sort(key=lambda record: record.conditions.get("defence") != "none")
    undefended = {
        (r.conditions.get("model"), r.conditions.get("attack")): r
        for r in audits
        if r.conditions.get("defence") == "none"
    }
    rows: Rows = []
    for record in audits:
        told = record.conditions
        why = _why_not(record, undefended.get((told.get("model"), told.get("attack"))))
        values: dict[str, Scalar] = {
            **record.values,
            "baseline": _baseline(record),
            "part": _part(record),
            "level": _level(record),
            "counts": not why,
            "why": why,
            "ratio": mjp_ratio(text_of(told, "defence")),
        }
        conditions = {**told, "attack": text_of(told, "attack").replace("_", " ")}
        rows.append((Record("audit", conditions, values), (record,)))
    return rows


def applies(record: Record) -> bool:
    return bool(number(record.values, "applied"))


def _baseline(record: Record) -> float | None:
    guesses = [number(record.values, f"baseline_{name}_psnr") for name in ("mean", "colour")]
    return max((guess for guess in guesses if guess is not None), default=None)


def _beats_a_guess(record: Record, name: str = "psnr", margin: float = 0.0) -> bool:
    psnr, baseline = number(record.values, name), _baseline(record)
    if name == "psnr_unmasked" and (guess := number(record.values, "guess_unmasked")) is not None:
        baseline = guess  # Of the same patches.
    return psnr is not None and (baseline is None or psnr > baseline + margin)


def _part(record: Record) -> str:
    """Where something was found; empty where the whole picture beats a guess, or nothing does."""
    if not applies(record) or _beats_a_guess(record):
        return ""
    if _beats_a_guess(record, "psnr_unmasked", MARGIN):
        return "unmasked"
    return "shuffled" if _beats_a_guess(record, "client_psnr", MARGIN) else ""


def _level(record: Record) -> str:
    """As recorded; a failure over the whole picture that found a part of it is no failure."""
    if not applies(record):
        return "does not apply"
    level = text_of(record.values, "level")
    if level in LEVELS and not (level == "failed" and _part(record)):
        return level
    return "traces" if _beats_a_guess(record) or _part(record) else "failed"


def _why_not(record: Record, undefended: Record | None) -> str:
    """Why a number says nothing about the defence; empty where it does.

    An attack that needs the defence (there is no mask without one) and beats the guess speaks
    for itself.
    """
    if record.conditions.get("defence") == "none" or not applies(record):
        return ""
    if undefended is None:
        return "untried"
    if not applies(undefended):
        return "" if _beats_a_guess(record) or _part(record) else "refused"
    is_weak = _level(undefended) == "failed" or not _beats_a_guess(undefended)
    return "weak" if is_weak else ""


def _grouped(records: Sequence[Record], *names: str) -> dict[tuple[Scalar, ...], Rows]:
    """The assessed records by some of their values and conditions."""
    groups: dict[tuple[Scalar, ...], Rows] = {}
    for row, sources in assessed(records):
        key = tuple(look_up(row, name) for name in names)
        groups.setdefault(key, []).append((row, sources))
    return groups


def _sources(rows: Rows) -> tuple[Record, ...]:
    return tuple(record for _, several in rows for record in several)


def _accuracies(records: Sequence[Record]) -> dict[tuple[Scalar, ...], Record]:
    """By model and defence."""
    return {
        (record.conditions.get("model"), record.conditions.get("defence")): record
        for record in records
        if record.kind == "audit accuracy"
    }


def _psnr(row: Record) -> float:
    psnr = number(row.values, "psnr")
    return -math.inf if psnr is None else psnr


def strongest(records: Sequence[Record]) -> Joined:
    """For each defence, the attack that got the most, with the accuracy that is left."""
    accuracies = _accuracies(records)
    for key, rows in _grouped(records, "model", "defence").items():
        rows.sort(key=lambda pair: (LEVELS.index(pair[0].values["level"]), -_psnr(pair[0])))
        row, sources = rows[0]
        if (accuracy := accuracies.get(key)) is not None:
            row = Record("audit", row.conditions, {**accuracy.values, **row.values})
            sources = (*sources, accuracy)
        yield row, sources


def costs(records: Sequence[Record]) -> Joined:
    """For each defence its accuracy, and the closest picture that came back."""
    groups = _grouped(records, "model", "defence")
    for key, accuracy in _accuracies(records).items():
        rows = [pair for pair in groups.get(key, []) if _psnr(pair[0]) > -math.inf]
        rows = rows or [(Record("audit", {}, {}), ())]
        row, sources = max(rows, key=lambda pair: _psnr(pair[0]))
        names = ("psnr", "psnr_low", "psnr_high", "level", "part", "baseline")
        values = {
            **{name: row.values.get(name) for name in names},
            "measured": not accuracy.values.get("accuracy_note"),
            **accuracy.values,
        }
        told = {**accuracy.conditions, "attack": row.conditions.get("attack")}
        yield Record("audit accuracy", told, values), (accuracy, *sources)


def split_by_mask(records: Sequence[Record]) -> Joined:
    for row, sources in assessed(records):
        if any(number(row.values, f"psnr_{name}") is not None for name in ("masked", "unmasked")):
            yield row, sources


def preflights(records: Sequence[Record]) -> Joined:
    """For each defence, what the attacks saw before they began."""
    for rows in _grouped(records, "model", "defence").values():
        facts: dict[str, Scalar] = {}
        for name in ("rank", "rank_needed", "condition", "masked_patches", "mask_recovered"):
            known = [v for row, _ in rows if (v := number(row.values, name)) is not None]
            facts[name] = max(known if name.startswith("mask") else known[:1], default=None)
        yield Record("audit", rows[0][0].conditions, facts), _sources(rows)


def refusals(records: Sequence[Record]) -> Joined:
    """What did not apply, one for each reason."""
    refused = [record for record in records if record.kind == "audit" and not applies(record)]
    for rows in _grouped(refused, "model", "attack", "reason").values():
        defences = ", ".join(str(row.conditions.get("defence")) for row, _ in rows)
        row = rows[0][0]
        yield Record("audit", {**row.conditions, "defence": defences}, row.values), _sources(rows)


def attacks(records: Sequence[Record]) -> Joined:
    """Each attack once, where it took longest."""
    for rows in _grouped(records, "attack").values():
        yield max(rows, key=lambda pair: number(pair[0].values, "seconds") or 0.0)


def papers_rows(records: Sequence[Record]) -> Joined:
    """Settings a, b and c of each attack that applies; then the paper's own rows."""
    accuracies = _accuracies(records)
    for setting, ratio, prefix in SETTINGS:
        for row, sources in assessed(records):
            if row.values["ratio"] != ratio or row.values["level"] == "does not apply":
                continue
            model = row.conditions.get("model")
            values: dict[str, Scalar] = {n: row.values.get(f"{prefix}{n}") for n in METRICS}
            if (accuracy := accuracies.get((model, row.conditions.get("defence")))) is not None:
                values["accuracy"] = accuracy.values.get("top1")
                values["measured"] = not accuracy.values.get("accuracy_note")
                sources = (*sources, accuracy)
            told = {**row.conditions, "setting": setting, "of": f"Measured here: {model}"}
            yield Record("audit", told, values), sources
    for leak in PRIVACY:
        told = {"model": leak.model, "setting": leak.setting, "attack": "the paper’s"}
        told["of"] = "The paper’s, as printed: another attack, network and images"
        papers = {name: getattr(leak, name) for name in ("accuracy", *METRICS)}
        yield Record("audit", told, {**papers, "measured": True}), ()


def common_conditions(records: Sequence[Record]) -> Joined:
    """Conditions of all records: each with its value, or its few values."""
    apart = ("model", "attack", "attack_about", "attack_kind", "knows_defence", "folder")
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.conditions.items():
            if name not in apart and not name.startswith("defence") and value is not None:
                values.setdefault(name, {})[str(value)] = None
    for name, several in values.items():
        text = "; ".join(several) if len(several) <= 6 else f"{len(several)} values"
        yield Record("audit", {"name": name.replace("_", " "), "value": text}, {}), ()
