"""Verdicts: whether a claim holds in a study, in a sentence with its numbers and intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mjp.core.records import Record
from mjp.report.study import Quantity, Study
from mjp.report.study_cells import difference
from mjp.report.study_claims import Claim, Part, claims_of
from mjp.report.study_derived import Compared, Derived, unit
from mjp.report.study_tests import Comparison, together

CLOSE = 0.1
"""So much of half an interval is close."""
Found = Sequence[tuple[Part, Compared]]
Level = Literal["holds", "in part", "does not hold", "cannot be told"]
HEADS: dict[Level, str] = {
    "holds": "Holds here",
    "in part": "Holds in part",
    "does not hold": "Does not hold here",
    "cannot be told": "Cannot be told here",
}
NAMES = {
    "top1": "accuracy",
    "consistency": "consistency",
    "diff_norm": "Diff. Norm.",
    "mae_1d": "1-D error",
    "mae_2d": "2-D error",
    "psnr patch_solve": "PSNR of patch solve",
    "psnr adaptive_solve": "PSNR of adaptive solve",
    "mean_error": "mean error",
    "epoch_seconds": "time of an epoch",
}


@dataclass(frozen=True, eq=False)
class Verdict:
    """What became of a claim.

    Args:
        sentence: with all numbers, which stand in the records.
        one_seed: an interval that decides on it is over images, which do not say what another seed
            would give.
        close: an interval that decides on it ends close to its bound.
    """

    claim: Claim
    level: Level
    sentence: str
    records: tuple[Record, ...]
    one_seed: bool
    close: bool

    @property
    def limits(self) -> str:
        """What weakens it, in brackets."""
        return limits(one_seed=self.one_seed, close=self.close)


def verdicts_of(view: Derived, table: str) -> list[Verdict]:
    """One for each claim on a table."""
    return [judge(view, claim) for claim in claims_of(view.study, table)]


def judge(view: Derived, claim: Claim) -> Verdict:
    """Whether the claim holds, by its comparisons and, over γ, by the order of the means."""
    study = view.study
    found = [(part, _pair(view, part)) for part in claim.parts]
    measured = [(part, pair) for part, pair in found if pair is not None]
    outcomes = [(part, outcome(pair.comparison, part)) for part, pair in measured]
    missing = [part for part, pair in found if pair is None]
    monotone = _is_monotone(view, claim) if claim.trend and measured else True
    level = _level(claim, outcomes, whole=not missing and monotone)
    mixed = len({one for _, one in outcomes}) > 1
    phrases = _phrases(study, measured, mixed)
    if claim.trend and len(measured) > 1:
        way = claim.trend if monotone else f"do not all {claim.trend}"
        phrases.append(f"from each γ to the next they {way} (single steps are not tested)")
    phrases += _gaps(study, missing)
    if mixed:
        phrases.append("✗: does not hold, ?: cannot be told")
    told = "; ".join(phrases) or "nothing that decides on it was measured"
    records = [record for _, pair in measured for record in pair.records]
    one_seed = any(pair.comparison.over != "seeds" for _, pair in measured)
    one_seed = one_seed and level != "cannot be told"
    close = any(is_close(pair.comparison, part) for part, pair in measured)
    close = close and level != "cannot be told"
    head = HEADS[level] + limits(one_seed=one_seed, close=close)
    return Verdict(claim, level, f"{head}: {told}.", tuple(records), one_seed, close)


def limits(*, one_seed: bool, close: bool) -> str:
    """What weakens a verdict, in brackets; empty for nothing."""
    told = ["over images of one seed"] * one_seed + ["barely"] * close
    return f" ({', '.join(told)})" if told else ""


def is_close(found: Comparison, part: Part) -> bool:
    """Whether the interval that decides ends so close to the bound that another seed may tip it."""
    if outcome(found, part) == "open" or found.low is None or found.high is None:
        return False
    nearest = min(abs(found.low - part.bound), abs(found.high - part.bound))
    return nearest < CLOSE * (found.high - found.low) / 2


def outcome(found: Comparison, part: Part) -> Literal["holds", "fails", "open"]:
    """On which side of a part's bound the whole interval lies."""
    if found.low is None or found.high is None:
        return "open"
    above, below = found.low > part.bound, found.high < part.bound
    wanted, other = (above, below) if part.side == "above" else (below, above)
    return "holds" if wanted else "fails" if other else "open"


def _level(claim: Claim, outcomes: Sequence[tuple[Part, str]], *, whole: bool) -> Level:
    """Of all parts together.

    What is only kept does not make a claim of a gain hold in part: nothing has to happen for it.

    Args:
        whole: nothing is missing, and what should rise or fall does so.
    """
    found = {one for _, one in outcomes}
    if found == {"holds"} and whole:
        return "holds"
    changes = any(not part.is_kept for part in claim.parts)
    if any(one == "holds" and not (changes and part.is_kept) for part, one in outcomes):
        return "in part"
    return "does not hold" if "fails" in found else "cannot be told"


def _pair(view: Derived, part: Part) -> Compared | None:
    runs = view.study.runs
    return view.pair(runs.get(part.run), runs.get(part.than), part.quantity)


def _is_monotone(view: Derived, claim: Claim) -> bool:
    """Whether what runs have more than the first goes one way from it on."""
    pairs = [_pair(view, one) for one in claim.parts if one.than == claim.parts[0].than]
    more = [0.0, *(one.comparison.difference for one in pairs if one is not None)]
    steps = [after - before for before, after in pairwise(more)]
    return all(step > 0 if claim.trend == "rise" else step < 0 for step in steps)


def named(quantity: Quantity) -> str:
    """A quantity in words, with the share of patches moved."""
    name = NAMES.get(quantity.value, quantity.value.replace("_", " "))
    return name if quantity.ratio is None else f"{name} at {quantity.ratio:g}"


def _phrases(study: Study, found: Found, mixed: bool) -> list[str]:
    """What was found: runs that are compared with one other in the same in one phrase."""
    groups: dict[tuple[str, Quantity], list[tuple[Part, Compared]]] = {}
    for part, pair in found:
        groups.setdefault((part.than, part.quantity), []).append((part, pair))
    large = [own for own in groups.values() if len(own) > 2]
    rest = [one for one in found if not any(one in own for own in large)]
    phrases = [_over_ratios(study, own, mixed) for own in large]
    return [*phrases, *_one_by_one(study, rest, mixed)]


def _one_by_one(study: Study, found: Found, mixed: bool) -> list[str]:
    """A phrase for each pair of runs."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for part, pair in found:
        told = f"{named(part.quantity)} {_numbers(pair, part, mixed)} ({pair.comparison.basis})"
        pairs.setdefault((part.run, part.than), []).append(told)
    return [
        f"{study.runs[run].label} against {study.runs[than].label}: {', '.join(phrases)}"
        for (run, than), phrases in pairs.items()
    ]


def _over_ratios(study: Study, found: Found, mixed: bool) -> str:
    """One phrase for all runs, which differ in γ."""
    part = found[0][0]
    told = [
        f"γ = {study.runs[part.run].gamma:g} {_numbers(pair, part, mixed)}" for part, pair in found
    ]
    basis = together([pair.comparison for _, pair in found])
    return (
        f"{named(part.quantity)} against {study.runs[part.than].label}: {', '.join(told)} ({basis})"
    )


def _numbers(pair: Compared, part: Part, mixed: bool) -> str:
    """A difference with its interval and unit; without what the interval is over.

    Args:
        mixed: some parts of the claim hold and others do not, so that each says so.
    """
    told = difference(pair).rstrip(" †‡§")
    number, _, interval = told.partition(" ")
    sign = {"holds": "", "fails": "✗", "open": "?"}[outcome(pair.comparison, part)]
    marks = (number, unit(part.quantity), interval, sign if mixed else "")
    return " ".join(one for one in marks if one)


def _gaps(study: Study, missing: Sequence[Part]) -> list[str]:
    """What was not measured, in a phrase for each quantity."""
    gone = dict.fromkeys(
        name for part in missing for name in (part.run, part.than) if name not in study.runs
    )
    told = [f"there is no run {name} yet" for name in gone]
    for part in missing:
        if part.run in study.runs and part.than in study.runs:
            labels = f"{study.runs[part.run].label} and {study.runs[part.than].label}"
            told.append(f"{named(part.quantity)} was not measured of both {labels}")
    return told


def by_level(view: Derived) -> dict[Level, list[Verdict]]:
    """What became of all claims, those that hold first; levels that none came to are left out."""
    found = [one for table in view.study.tables for one in verdicts_of(view, table)]
    sorted_in = {level: [one for one in found if one.level == level] for level in HEADS}
    return {level: own for level, own in sorted_in.items() if own}


def overview(view: Derived) -> str:
    """How many claims hold, in a sentence; empty without a claim."""
    levels = by_level(view)
    if not levels:
        return ""
    told = ", ".join(_counted(level, levels.get(level, [])) for level in HEADS)
    found = [one for own in levels.values() for one in own]
    ours = sum(one.claim.ours for one in found)
    counts = {"of the paper": len(found) - ours, "of ours": ours}
    both = [f"{count} {whose}" for whose, count in counts.items() if count]
    return f"Of the claims that the study “{view.study.name}” looks at ({', '.join(both)}): {told}."


def _counted(level: Level, found: Sequence[Verdict]) -> str:
    """How many claims came out so, and how many of these by one seed alone."""
    verbs: dict[Level, tuple[str, str]] = {
        "holds": ("holds here", "hold here"),
        "in part": ("holds in part", "hold in part"),
        "does not hold": ("does not hold", "do not hold"),
        "cannot be told": ("cannot be told", "cannot be told"),
    }
    few = sum(one.one_seed for one in found)
    told = f"{len(found)} {verbs[level][len(found) != 1]}"
    if not few:
        return told
    which = "" if few == len(found) else f"{few} of them "
    return f"{told} ({which}over images of one seed)"
