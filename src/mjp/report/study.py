"""`Study`: what the runs of a study measured, by run, seed and quantity; whole or half finished."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mjp.core.records import Record, Scalar
from mjp.report.leaks import number, words

SUMMARY, COMPARISON = "study summary", "study comparison"
"""Kinds of records that are worked out of the others."""
MEASURED = (
    *("study accuracy", "study run", "study jigsaw", "study positions"),
    *("study leak", "study corruption", "study corruption summary"),
)
RECIPE = (
    *("architecture", "arguments", "image_size", "init", "epochs", "warmup_epochs", "batch"),
    *("precision", "train_images"),
)
"""Facts of a run in which runs of a recipe agree, as far as records tell of recipes."""
STUDY_KINDS = (*MEASURED, "study epoch", "study difference", SUMMARY, COMPARISON)
TRAINING = "training"
"""Where a value comes from that no evaluation measured."""
TABLES = (
    *("ablation", "gamma", "backbones", "robustness"),
    *("finetune", "cost", "convergence", "repeat"),
)
"""The tables that we have words for, in their order; others follow."""
LARGEST = 1e12
"""Numbers beyond it are no measurements; they would only break sums and axes."""


def sane(values: Mapping[str, Scalar], name: str) -> float | None:
    """A number of a record; None where there is none, or one that nothing measures."""
    found = number(values, name)
    return None if found is None or abs(found) > LARGEST else found


@dataclass(frozen=True)
class Quantity:
    """What is measured.

    Args:
        value: such as top1, consistency, `psnr patch_solve`, `error fog`.
        ratio: share of patches that is moved while measuring; None where nothing moves.
    """

    value: str
    ratio: float | None = None


SECONDS = Quantity("epoch_seconds")
"""Times are compared where nothing else ran beside a run."""
IN_PERCENT = (SECONDS, Quantity("mae_1d"), Quantity("mae_2d"))
"""Times and errors of positions, whose noise goes with their size."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A number of one seed, its 95 % interval over images where it has one, and its record."""

    value: float
    low: float | None
    high: float | None
    record: Record

    @property
    def images(self) -> float | None:
        """How many images it is of."""
        told = sane(self.record.conditions, "images")
        return sane(self.record.values, "images") if told is None else told


Readings = Mapping[str, Mapping[str, Reading]]
"""By evaluation, then by seed."""


@dataclass(frozen=True, eq=False)
class StudyRun:
    """A run, over all its seeds.

    Args:
        told: the `study run` record of each seed.
        readings: what was measured.
        epochs: top-1 accuracy after each epoch, by seed.
    """

    name: str
    told: dict[str, Record] = field(default_factory=dict)
    readings: dict[Quantity, dict[str, dict[str, Reading]]] = field(default_factory=dict)
    epochs: dict[str, dict[int, float]] = field(default_factory=dict)

    def _first(self, name: str) -> str:
        return next((words(one.conditions, name) for one in self.told.values()), "")

    @property
    def label(self) -> str:
        return self._first("label") or self.name

    @property
    def tables(self) -> list[str]:
        return self._first("tables").split()

    @property
    def baseline(self) -> str:
        """The run that it is compared with; empty for none."""
        return self._first("baseline")

    @property
    def variant(self) -> str:
        """The row of the paper's ablation that it is of; empty for none."""
        return self._first("variant")

    @property
    def architecture(self) -> str:
        return self._first("architecture")

    @property
    def kind(self) -> tuple[str, str, str]:
        """Architecture, size and start: runs that agree in them differ in how they train."""
        return self.architecture, self._first("image_size"), self.start

    @property
    def recipe(self) -> tuple[str, ...]:
        """Runs that agree in it are taken to scatter alike over seeds; empty where none is told."""
        return tuple(self._first(name) for name in RECIPE) if self.architecture else ()

    @property
    def start(self) -> str:
        """The weights that training began with; empty where they were drawn."""
        return self._first("init")

    @property
    def alone(self) -> bool:
        """Whether nothing else ran beside it, so that its time can be compared."""
        return all(one.conditions.get("alone") for one in self.told.values())

    @property
    def gamma(self) -> float:
        """The share of patches that its training moved; 0 where it moved none."""
        found = (sane(one.conditions, "ratio") for one in self.told.values())
        return next(found, None) or 0.0

    def of(self, quantity: Quantity) -> Readings:
        """What was measured of this; empty where nothing was."""
        return self.readings.get(quantity, {})


Differences = dict[tuple[str, str, str, Quantity, str], Record]
"""By run, the run it is compared with, seed, quantity, evaluation."""


@dataclass(frozen=True, eq=False)
class Study:
    """A study as far as its records go.

    Args:
        runs: by name, in the order in which the records name them.
        differences: on the same images.
        written: summaries and comparisons that stand among the records.
    """

    name: str
    runs: dict[str, StudyRun] = field(default_factory=dict)
    differences: Differences = field(default_factory=dict)
    written: list[Record] = field(default_factory=list)

    @property
    def tables(self) -> list[str]:
        """Names of tables that have a row, those that we know first."""
        found = dict.fromkeys(name for run in self.runs.values() for name in run.tables)
        known = [name for name in TABLES if name in found]
        return [*known, *(name for name in found if name not in known)]

    def rows(self, table: str) -> list[StudyRun]:
        """The runs of a table: by γ, by the paper's letter, or as they come."""
        found = [run for run in self.runs.values() if table in run.tables]
        if table == "gamma":
            return sorted(found, key=lambda run: run.gamma)
        if table == "ablation" and all(run.variant for run in found):
            return sorted(found, key=lambda run: run.variant)
        return found

    def baseline(self, table: str, run: StudyRun) -> StudyRun | None:
        """The run that a row of a table is compared with; over γ, the row without a jigsaw.

        One whose own baseline has no row there is compared with the plain model of its kind.
        """
        rows = self.rows(table)
        if table == "gamma":
            return next((one for one in rows if not one.gamma and run.gamma), None)
        own = self.runs.get(run.baseline)
        if own is None or own in rows:
            return own
        same = [one for one in rows if one.variant == "A" and one.kind == run.kind]
        return next((one for one in same if one is not run), own)

    def ends(self) -> tuple[StudyRun, StudyRun] | None:
        """The runs of the largest γ and of the smallest above 0; None where there are not two."""
        found = [run for run in self.rows("gamma") if run.gamma]
        return (found[-1], found[0]) if len(found) > 1 else None

    @property
    def ratios(self) -> list[float]:
        """Shares of patches that were moved in evaluations."""
        found = {one.ratio for run in self.runs.values() for one in run.readings}
        return sorted(one for one in found if one is not None)
