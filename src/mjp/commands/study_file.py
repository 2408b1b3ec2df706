"""`StudyFile`: a study as its TOML file says it, before anything of it is looked up."""

import re
from dataclasses import dataclass, field
from typing import Any

from mjp.commands.options import Variant
from mjp.core.errors import ConfigError
from mjp.core.ranges import check_count

TRAINING = "train"
"""The folder of a run's training, beside those of its evaluations."""
LOG = "log.txt"
"""In the folder of a run: what its process printed."""
BESIDE = "beside.json"
"""In the folder of a run: how many shared the machine while it was trained."""
_TAKEN = (TRAINING, LOG, BESIDE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class RunEntry:
    """A run as a study file lists it.

    Args:
        label: what tables call it; by default its name.
        recipe: a recipe's name or path, where it is not the study's.
        variant: a row of the paper's ablation, in place of the recipe's mjp section.
        set: values of the recipe to change, in its sections.
        model: a model to evaluate that is not trained here, as `mjp eval --model` takes it.
        seeds: each makes a run of its own.
        tables: the tables that it is a row of.
        baseline: the run that it is compared with, seed by seed and image by image.
        compared: more runs that it is compared with.
        evaluations: by their names.
        alone: nothing else may run beside it, because its time is measured.
    """

    name: str
    label: str = ""
    recipe: str | None = None
    variant: Variant | None = None
    set: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    seeds: tuple[int, ...] = (0,)
    tables: tuple[str, ...] = ()
    baseline: str | None = None
    compared: tuple[str, ...] = ()
    evaluations: tuple[str, ...] = ()
    alone: bool = False

    def __post_init__(self) -> None:
        for name in (self.name, *self.tables, *self.evaluations):
            check_name(name)
        for name in _TAKEN:
            if name in self.evaluations:
                raise ConfigError(f"{self.name}: an evaluation cannot be called {name}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"{self.name}: seeds must be different, and at least one")
        for seed in self.seeds:
            check_count(f"{self.name}: seeds", seed, 0)
        if self.model is not None and (self.recipe or self.variant or self.set):
            raise ConfigError(f"{self.name} has a model, which is not trained: no recipe, no set")


@dataclass(frozen=True)
class StudyFile:
    """A study as its file says it.

    Args:
        name: of the study.
        title: heading of its page.
        recipe: of all runs that name no other.
        set: values of every recipe to change, before a run's own.
        evaluations: by name: a verb, and options of that verb.
        runs: in the order in which they are begun.
    """

    name: str
    title: str = ""
    recipe: str | None = None
    set: dict[str, Any] = field(default_factory=dict)
    evaluations: dict[str, Any] = field(default_factory=dict)
    runs: tuple[RunEntry, ...] = ()


def check_name(name: str) -> None:
    """Raises unless this can be part of a folder's name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name: use letters, digits, '.', '_' and '-'")
