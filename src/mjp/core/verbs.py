"""`Verb` and `TaskPlugin`: what a plug-in offers the command line. Imports nothing heavy."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_TASK = "classify"
"""The task of recipes that name none."""

RECIPE = "recipe.toml"
"""Where a run notes its recipe, in its folder."""


@dataclass(frozen=True)
class Verb:
    """A word of the command line.

    Args:
        name: the word, or two: `eval corruptions`. The first of several with one first word is
            what `mjp eval --flag …` does.
        options: the dataclass of its options; its docstring is the help.
        run: carries it out; loads what it needs only when called.
        takes_recipe: whether its options are generic over a task's configuration, with `name`, a
            recipe's name, and `recipe`, its values.
    """

    name: str
    options: Any
    run: Callable[[Any], None]
    takes_recipe: bool = False


@dataclass(frozen=True)
class TaskPlugin:
    """Something that can be trained.

    Args:
        config: the dataclass of its recipes; its `task` is the name.
        recipes: the folder of those that come with it.
    """

    config: Any
    recipes: Path

    @property
    def name(self) -> str:
        """What a recipe says that is of this task."""
        return self.config.task
