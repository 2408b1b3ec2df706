"""What the records of an audit say together: which number counts, and which one is the gravest."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mjp.core.records import Record, Scalar

NONE = "none"
LEVELS = ("recovered", "recognisable", "traces", "failed", "does not apply")
"""From the gravest on."""
ATTACKS = (
    *("april", "patch_solve", "adaptive_solve"),
    *("invert", "dlg", "idlg", "april_opt", "gradvit"),
)
"""The order in which attacks are shown; others follow."""
CEILING = 60.0
"""dB at which axes end: rounding to 8 bits alone costs as much, so beyond it no one sees more."""

MARGIN = 1.0
"""dB over the trivial guess from which patches left alone, or moved ones, count as recovered."""

_MJP = re.compile(r"mjp=([0-9.]+(?:e-?[0-9]+)?)")

Mark = Literal["", "failed", "elsewhere"]


def number(values: Mapping[str, Scalar], name: str) -> float | None:
    """A finite number of a record; None where there is none."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def words(values: Mapping[str, Scalar], name: str) -> str:
    """A text of a record; empty where there is none."""
    value = values.get(name)
    return "" if value is None else str(value)


def mjp_ratio(defence: str) -> float | None:
    """γ of a defence that is MJP alone, 0 for no defence; None for all others."""
    if defence == NONE:
        return 0.0
    found = _MJP.fullmatch(defence)
    return None if found is None else float(found[1])


@dataclass(frozen=True, eq=False)
class Cell:
    """What one attack got from one model under one defence.

    Args:
        undefended: the same attack on the same model without a defence, if it was tried.
    """

    record: Record
    undefended: "Cell | None" = None

    def number(self, name: str) -> float | None:
        return number(self.record.values, name)

    def words(self, name: str) -> str:
        return words(self.record.values, name)

    def condition(self, name: str) -> str:
        return words(self.record.conditions, name)

    @property
    def model(self) -> str:
        return self.condition("model")

    @property
    def defence(self) -> str:
        return self.condition("defence")

    @property
    def defence_title(self) -> str:
        return self.condition("defence_title") or self.defence

    @property
    def attack(self) -> str:
        """Its name in words."""
        return self.condition("attack").replace("_", " ")

    @property
    def informed(self) -> bool:
        """Whether the attacker knows the defence."""
        return bool(self.record.conditions.get("knows_defence"))

    @property
    def applies(self) -> bool:
        """Whether the attack gave a picture of at least one image."""
        applied = self.number("applied")
        return self.number("psnr") is not None if applied is None else applied > 0

    @property
    def baseline(self) -> float | None:
        """PSNR of the better of the two guesses that need no attack."""
        both = (self.number("baseline_mean_psnr"), self.number("baseline_colour_psnr"))
        return max((one for one in both if one is not None), default=None)

    def above_baseline(self, name: str = "psnr", margin: float = 0.0) -> bool:
        """Whether this PSNR is better than a trivial guess."""
        psnr, baseline = self.number(name), self.baseline
        if name == "psnr_unmasked" and (guess := self.number("guess_unmasked")) is not None:
            baseline = guess  # Of the same patches.
        return psnr is not None and (baseline is None or psnr > baseline + margin)

    @property
    def elsewhere(self) -> Literal["", "psnr_unmasked", "client_psnr"]:
        """Where something was found even if the whole is no good: the patches that were left
        alone, or the picture with its patches moved."""
        if self.above_baseline("psnr_unmasked", MARGIN):
            return "psnr_unmasked"
        return "client_psnr" if self.above_baseline("client_psnr", MARGIN) else ""

    @property
    def mark(self) -> Mark:
        """How a PSNR below the baseline is to be read; empty for one above it.

        `failed`: the solver got nothing. `elsewhere`: it got something, but out of place.
        """
        if not self.applies or self.number("psnr") is None or self.above_baseline():
            return ""
        return "elsewhere" if self.elsewhere else "failed"

    @property
    def unproven(self) -> str:
        """Why the number says nothing about the defence; empty where it does.

        An attack that needs the defence (there is no mask without one) and beats the baseline
        speaks for itself.
        """
        if self.defence == NONE or not self.applies:
            return ""
        if self.undefended is None:
            return "this attack was not tried without a defence"
        if not self.undefended.applies:
            leaks = self.above_baseline() or self.mark == "elsewhere"
            return "" if leaks else "without a defence, this attack does not apply"
        if self.undefended.level == "failed" or not self.undefended.above_baseline():
            return "without a defence, this attack does not beat the baseline either"
        return ""

    @property
    def level(self) -> str:
        """How grave the leak is, as recorded; from the numbers where that is missing.

        A failure over the whole picture that found the patches left alone is no failure.
        """
        if not self.applies:
            return LEVELS[-1]
        told = self.words("level")
        if told in LEVELS and not (told == "failed" and self.elsewhere):
            return told
        return "traces" if self.above_baseline() or self.elsewhere else "failed"

    @property
    def verdict(self) -> str:
        """The recorded sentence, unless it tells of another level than ours."""
        return self.words("verdict") if self.words("level") == self.level else ""

    @property
    def gravity(self) -> tuple[int, float]:
        """Larger for the graver leak."""
        psnr = self.number("psnr")
        return -LEVELS.index(self.level), -math.inf if psnr is None else psnr


@dataclass(frozen=True, eq=False)
class Audit:
    """The records of an audit by model, defence and attack; the later of two of one kind counts."""

    cells: tuple[Cell, ...]
    accuracies: Mapping[tuple[str, str], Record]

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Audit":
        """The audit that these records tell of; records of other kinds are left aside."""
        found: dict[tuple[str, str, str], Record] = {}
        accuracies: dict[tuple[str, str], Record] = {}
        for record in records:
            model, defence, attack = (
                words(record.conditions, name) for name in ("model", "defence", "attack")
            )
            if record.kind == "audit":
                found[model, defence, attack] = record
            elif record.kind == "audit accuracy":
                accuracies[model, defence] = record
        cells = []
        for (model, _, attack), record in found.items():
            plain = found.get((model, NONE, attack))
            cells.append(Cell(record, None if plain is None else Cell(plain)))
        return cls(tuple(cells), accuracies)

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(cell.model for cell in self.cells))

    def defences(self, model: str) -> list[str]:
        """As they come, but no defence first."""
        found = dict.fromkeys(cell.defence for cell in self.cells if cell.model == model)
        return sorted(found, key=lambda defence: defence != NONE)

    @property
    def attacks(self) -> list[str]:
        """Names in words."""
        found = dict.fromkeys(cell.attack for cell in self.cells)
        known = [name.replace("_", " ") for name in ATTACKS]
        return sorted(found, key=lambda name: known.index(name) if name in known else len(known))

    def of_defence(self, model: str, defence: str) -> list[Cell]:
        """One cell for each attack."""
        order = self.attacks
        found = [one for one in self.cells if (one.model, one.defence) == (model, defence)]
        return sorted(found, key=lambda cell: order.index(cell.attack))

    def gravest(self, model: str, defence: str) -> Cell | None:
        """The attack that got the most, by its level first."""
        return max(self.of_defence(model, defence), key=lambda one: one.gravity, default=None)

    def highest(self, model: str, defence: str) -> Cell | None:
        """The attack whose picture is the closest to the original; None where none has one."""
        found = [one for one in self.of_defence(model, defence) if one.number("psnr") is not None]
        return max(found, key=lambda one: one.number("psnr") or 0.0, default=None)

    def baselines(self, model: str) -> dict[str, float]:
        """PSNR of the trivial guesses, in words, where they were measured."""
        titles = {
            "baseline_mean_psnr": "the data's mean picture",
            "baseline_colour_psnr": "one colour, the picture's own mean",
        }
        found: dict[str, float] = {}
        for cell in self.cells:
            for name, title in titles.items():
                value = cell.number(name)
                if cell.model == model and value is not None:
                    found.setdefault(title, value)
        return found


def is_measured(accuracy: Record) -> bool:
    """Whether an accuracy is that of a model under this very defence, by what its note says."""
    return "not measured" not in words(accuracy.values, "accuracy_note")
