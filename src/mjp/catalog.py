"""The one list of plug-ins, which offer verbs, sections of the report, and tasks with recipes."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mjp.core.configuration import from_mapping, read_toml, suggestion
from mjp.core.errors import ConfigError
from mjp.core.verbs import DEFAULT_TASK, RECIPE, TaskPlugin, Verb
from mjp.report.table import Section

PLUGINS = (
    "mjp.demo",
    "mjp.train",
    "mjp.tasks.classify",
    "mjp.tasks.pixels",
    "mjp.evaluate",
    "mjp.privacy",
    "mjp.study",
    "mjp.reporting",
    "mjp.web",
    "mjp.bench",
)
"""Each may have `VERBS`, `SECTIONS` and `TASK`; importing one loads no torch."""

GROUPS = {
    "eval": "Measure models: accuracy and jigsaws (the default), corruptions, ImageNet-A, "
    "ImageNet-O.",
    "probe": "Look into models: what their position embeddings learned (the default), where they "
    "attend.",
    "bench": "Measure what MJP costs, as a ratio in one run.",
}
"""What verbs of two words have in common."""


def plugins() -> list[ModuleType]:
    return [import_module(name) for name in PLUGINS]


def verbs() -> list[Verb]:
    """All that the command line can do, in the order that help lists them in."""
    return [verb for plugin in plugins() for verb in getattr(plugin, "VERBS", ())]


def sections() -> list[Section]:
    """All that a report shows of the plug-ins' records, in the order of the page."""
    return [section for plugin in plugins() for section in getattr(plugin, "SECTIONS", ())]


def tasks() -> dict[str, TaskPlugin]:
    """What can be trained, by name."""
    offered = [plugin.TASK for plugin in plugins() if hasattr(plugin, "TASK")]
    return {task.name: task for task in offered}


def recipes() -> dict[str, Path]:
    """The recipes of all tasks, by name."""
    files = (path for task in tasks().values() for path in task.recipes.glob("*.toml"))
    return {path.stem: path for path in sorted(files)}


def read_recipe(name: str) -> Any:
    """A recipe by the name of one of the package's, or the path of a TOML file."""
    known = recipes()
    if name in known:
        return recipe_from(read_toml(known[name]), f"recipe {name}")
    if name.endswith(".toml"):
        return recipe_from(read_toml(Path(name)), name)
    hint = suggestion(name, list(known))
    raise ConfigError(f"there is no recipe {name!r}{hint} (or the path of a .toml file)")


def recipe_of_run(out: str | Path) -> Any:
    """The recipe that a run was started with."""
    path = Path(out) / RECIPE
    if not path.is_file():
        raise ConfigError(f"{out} holds no run to resume: there is no {RECIPE} in it")
    return recipe_from(read_toml(path), str(path))


def recipe_from(values: Mapping[str, Any], where: str) -> Any:
    """A task's configuration from the content of a TOML file, which may say which task it is of."""
    known = tasks()
    name = values.get("task", DEFAULT_TASK)
    if name not in known:
        raise ConfigError(f"{where}: there is no task {name!r}{suggestion(str(name), list(known))}")
    rest = {key: value for key, value in values.items() if key != "task"}
    return from_mapping(known[name].config, rest, where=where)
