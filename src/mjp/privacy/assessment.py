"""What the records of an audit say together: which number counts, and which is the gravest.

Gives rows for tables and figures, each with the records that it rests on. Imports no torch.
"""

import re
from collections.abc import Sequence
from typing import get_args

from mjp.core.records import Record, Scalar
from mjp.privacy.verdict import MARGIN, Level
from mjp.report.paper import PRIVACY, PRIVACY_RATIO
from mjp.report.table import Joined, number, text_of

LEVELS = get_args(Level)
"""From the gravest on."""
NONE = "none"
"""The defence that is none."""
SETTINGS = (("a", 0.0, ""), ("b", PRIVACY_RATIO, "client_"), ("c", PRIVACY_RATIO, ""))
"""The paper's settings: name, the share of patches that is moved, what is compared with."""
METRICS = ("mse", "fft2d", "psnr", "ssim", "lpips")
_MJP = re.compile(r"mjp=([0-9.]+(?:e-?[0-9]+)?)")


def mjp_ratio(defence: str) -> float | None:
    """γ of a defence that is MJP alone, 0 for no defence; None for all others."""
    alone = _MJP.fullmatch(defence)
    return 0.0 if defence == NONE else float(alone[1]) if alone else None


def assessed(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    """What each attack got, with what only all records together say; and the record itself.

    Adds to the values: `baseline`, the PSNR of the better trivial guess; `part`, where something
    was found if not in the whole; `counts` and, if it does not count, `why`; `ratio` of MJP.
    """
    own = [record for record in records if record.kind == "audit"]
    undefended = {
        (r.conditions.get("model"), r.conditions.get("attack")): r
        for r in own
        if r.conditions.get("defence") == NONE
    }
    rows = []
    for record in sorted(own, key=lambda record: record.conditions.get("defence") != NONE):
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
        conditions["defence_title"] = text_of(told, "defence_title") or text_of(told, "defence")
        rows.append((Record("audit", conditions, values), record))
    return rows


def applies(record: Record) -> bool:
    applied = number(record.values, "applied")
    return number(record.values, "psnr") is not None if applied is None else applied > 0


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
    if record.conditions.get("defence") == NONE or not applies(record):
        return ""
    if undefended is None:
        return "untried"
    if not applies(undefended):
        return "" if _beats_a_guess(record) or _part(record) else "refused"
    is_weak = _level(undefended) == "failed" or not _beats_a_guess(undefended)
    return "weak" if is_weak else ""


def _gravity(record: Record) -> tuple[int, float]:
    """Larger for the graver leak."""
    psnr = number(record.values, "psnr")
    level = text_of(record.values, "level")
    return -LEVELS.index(level), -1e9 if psnr is None else psnr


def accuracies_of(records: Sequence[Record]) -> dict[tuple[Scalar, Scalar], Record]:
    return {
        (record.conditions.get("model"), record.conditions.get("defence")): record
        for record in records
        if record.kind == "audit accuracy"
    }


def _by_defence(records: Sequence[Record]) -> list[list[tuple[Record, Record]]]:
    """The assessed records of each model and defence."""
    groups: dict[tuple[Scalar, Scalar], list[tuple[Record, Record]]] = {}
    for pair in assessed(records):
        told = pair[0].conditions
        groups.setdefault((told.get("model"), told.get("defence")), []).append(pair)
    return list(groups.values())


def of_every_attack(records: Sequence[Record]) -> Joined:
    for row, record in assessed(records):
        yield row, (record,)


def strongest(records: Sequence[Record]) -> Joined:
    """For each defence, the attack that got the most, with the accuracy that is left."""
    accuracies = accuracies_of(records)
    for pairs in _by_defence(records):
        row, record = max(pairs, key=lambda pair: _gravity(pair[0]))
        accuracy = accuracies.get((row.conditions.get("model"), row.conditions.get("defence")))
        more = {} if accuracy is None else accuracy.values
        sources = (record,) if accuracy is None else (record, accuracy)
        yield Record("audit", row.conditions, {**more, **row.values}), sources


def costs(records: Sequence[Record]) -> Joined:
    """For each defence its accuracy, and the closest picture that came back."""
    best = {}
    for pairs in _by_defence(records):
        known = [pair for pair in pairs if number(pair[0].values, "psnr") is not None]
        if known:
            row, record = max(known, key=lambda pair: number(pair[0].values, "psnr") or 0.0)
            best[row.conditions.get("model"), row.conditions.get("defence")] = row, record
    for key, accuracy in accuracies_of(records).items():
        row, *sources = best.get(key, (Record("audit", {}, {}),))
        names = ("psnr", "psnr_low", "psnr_high", "level", "part", "baseline")
        values = {
            **{name: row.values.get(name) for name in names},
            "measured": not accuracy.values.get("accuracy_note"),
            **accuracy.values,
        }
        title = text_of(accuracy.conditions, "defence_title") or accuracy.conditions.get("defence")
        told = {**accuracy.conditions, "defence_title": title}
        told["attack"] = row.conditions.get("attack")
        yield Record("audit accuracy", told, values), (accuracy, *sources)


def split_by_mask(records: Sequence[Record]) -> Joined:
    for row, record in assessed(records):
        if any(number(row.values, f"psnr_{name}") is not None for name in ("masked", "unmasked")):
            yield row, (record,)


def preflights(records: Sequence[Record]) -> Joined:
    """For each defence, what the attacks saw before they began."""
    for pairs in _by_defence(records):
        rows = [row for row, _ in pairs]

        def most(name: str, rows: list[Record] = rows) -> float | None:
            known = [number(row.values, name) for row in rows]
            return max((value for value in known if value is not None), default=None)

        facts: dict[str, Scalar] = {
            name: next((v for r in rows if (v := number(r.values, name)) is not None), None)
            for name in ("rank", "rank_needed", "condition")
        }
        facts |= {name: most(name) for name in ("masked_patches", "mask_recovered")}
        yield Record("audit", rows[0].conditions, facts), tuple(record for _, record in pairs)


def refusals(records: Sequence[Record]) -> Joined:
    """What did not apply, one for each reason."""
    groups: dict[tuple[Scalar, ...], list[tuple[Record, Record]]] = {}
    for row, record in assessed(records):
        if not applies(record):
            key = (*(row.conditions.get(n) for n in ("model", "attack")), row.values.get("reason"))
            groups.setdefault(key, []).append((row, record))
    for pairs in groups.values():
        defences = ", ".join(str(row.conditions.get("defence")) for row, _ in pairs)
        row = pairs[0][0]
        yield (
            Record("audit", {**row.conditions, "defence": defences}, row.values),
            tuple(record for _, record in pairs),
        )


def attacks(records: Sequence[Record]) -> Joined:
    """Each attack once, where it took longest."""
    groups: dict[Scalar, list[tuple[Record, Record]]] = {}
    for row, record in assessed(records):
        groups.setdefault(row.conditions.get("attack"), []).append((row, record))
    for pairs in groups.values():
        row, record = max(pairs, key=lambda pair: number(pair[0].values, "seconds") or 0.0)
        knows = any(bool(row.conditions.get("knows_defence")) for row, _ in pairs)
        yield Record("audit", {**row.conditions, "knows_defence": knows}, row.values), (record,)


def papers_rows(records: Sequence[Record]) -> Joined:
    """Settings a, b and c of each attack that applies; then the paper's own rows."""
    accuracies = accuracies_of(records)
    for setting, ratio, prefix in SETTINGS:
        for row, record in assessed(records):
            if row.values["ratio"] != ratio or not applies(record):
                continue
            accuracy = accuracies.get((row.conditions.get("model"), row.conditions.get("defence")))
            values: dict[str, Scalar] = {n: row.values.get(f"{prefix}{n}") for n in METRICS}
            if accuracy is not None:
                values["accuracy"] = accuracy.values.get("top1")
                values["measured"] = not accuracy.values.get("accuracy_note")
            told = {**row.conditions, "setting": setting}
            told["of"] = f"Measured here: {row.conditions.get('model')}"
            sources = (record,) if accuracy is None else (record, accuracy)
            yield Record("audit", told, values), sources
    for leak in PRIVACY:
        told = {"model": leak.model, "setting": leak.setting, "attack": "the paper’s"}
        told["of"] = "The paper’s, as printed: another attack, network and images"
        names = ("accuracy", *METRICS)
        papers: dict[str, Scalar] = {name: getattr(leak, name) for name in names}
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
