"""The one list of plug-ins: which rooms offer verbs, sections of the report, and tasks."""

from importlib import import_module
from types import ModuleType

from mjp.core.verbs import Verb
from mjp.report.table import Section

PLUGINS = (
    "mjp.commands",
    "mjp.reporting",
    "mjp.train",
    "mjp.evaluate",
    "mjp.privacy",
    "mjp.study",
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
