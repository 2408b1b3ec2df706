"""Training: what a task is, and the loop that carries its recipes out. Light: imports no torch."""

from typing import Any

from mjp.core.verbs import Verb
from mjp.train.config import CheckOptions, TrainOptions
from mjp.train.tables import SECTIONS as SECTIONS


def _train(options: TrainOptions[Any]) -> None:
    from mjp.train.loop import train

    train(options)


def _check(options: CheckOptions[Any]) -> None:
    from mjp.train.check import check

    check(options)


VERBS = (
    Verb("train", TrainOptions, _train, takes_recipe=True),
    Verb("check", CheckOptions, _check, takes_recipe=True),
)
