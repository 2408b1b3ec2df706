"""Measures models: accuracy, consistency, robustness, what positions learned, attention."""

from mjp.core.verbs import Verb
from mjp.evaluate import config
from mjp.evaluate.tables import SECTIONS as SECTIONS


def _accuracy(options: config.EvalAccuracyOptions) -> None:
    from mjp.evaluate.accuracy import run_accuracy

    run_accuracy(options)


def _corruptions(options: config.EvalCorruptionsOptions) -> None:
    from mjp.evaluate.corruptions import run_corruptions

    run_corruptions(options)


def _natural(options: config.EvalNaturalOptions) -> None:
    from mjp.evaluate.confidence import run_natural

    run_natural(options)


def _outliers(options: config.EvalOutliersOptions) -> None:
    from mjp.evaluate.confidence import run_outliers

    run_outliers(options)


def _positions(options: config.ProbePositionsOptions) -> None:
    from mjp.evaluate.positions import run_positions

    run_positions(options)


def _attention(options: config.ProbeAttentionOptions) -> None:
    from mjp.evaluate.attention import run_attention

    run_attention(options)


VERBS = (
    Verb("eval accuracy", config.EvalAccuracyOptions, _accuracy),
    Verb("eval corruptions", config.EvalCorruptionsOptions, _corruptions),
    Verb("eval imagenet-a", config.EvalNaturalOptions, _natural),
    Verb("eval imagenet-o", config.EvalOutliersOptions, _outliers),
    Verb("probe positions", config.ProbePositionsOptions, _positions),
    Verb("probe attention", config.ProbeAttentionOptions, _attention),
)
