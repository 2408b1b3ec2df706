"""Measures models: accuracy, consistency, robustness, what positions learned, attention."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mjp.core.verbs import Verb
from mjp.evaluate import config
from mjp.evaluate.tables import SECTIONS as SECTIONS


def _lazily(module: str, function: str) -> Callable[[Any], None]:
    """A function of a module of this package, which is loaded when it is called."""

    def run(options: Any) -> None:
        getattr(import_module(f"{__name__}.{module}"), function)(options)

    return run


VERBS = (
    Verb("eval accuracy", config.EvalAccuracyOptions, _lazily("accuracy", "run_accuracy")),
    Verb(
        "eval corruptions", config.EvalCorruptionsOptions, _lazily("corruptions", "run_corruptions")
    ),
    Verb("eval imagenet-a", config.EvalNaturalOptions, _lazily("confidence", "run_natural")),
    Verb("eval imagenet-o", config.EvalOutliersOptions, _lazily("confidence", "run_outliers")),
    Verb("probe positions", config.ProbePositionsOptions, _lazily("positions", "run_positions")),
    Verb("probe attention", config.ProbeAttentionOptions, _lazily("attention", "run_attention")),
)
