"""Carries out one run of a study: trains it, then evaluates it; leaves out what is done."""

import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.numpy import save_file

from mjp.commands import audit, eval_accuracy, eval_corruptions, probe_positions, train
from mjp.commands.options import TrainOptions
from mjp.commands.study_plan import Part, Task
from mjp.commands.study_state import (
    FINAL,
    check_same,
    is_evaluated,
    is_trained,
    part_folder,
    stamp,
    training_folder,
)
from mjp.evaluate.jigsaw import Scores
from mjp.train import runs
from mjp.train.journal import EpochReport, StepReport

SCORES = "scores.safetensors"
"""What came out for every image, so that two runs can be compared image by image."""


class Tell(Protocol):
    """Is told how far a run is."""

    def __call__(self, what: str, done: float) -> None:
        """What is being done, and which share of it is done."""


class Teller:
    """Tells of training as it goes on."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def prepare(self, what: str, done: int, total: int) -> None:
        """Something is under way before the first step."""
        self._tell(what, 0.0)

    def step(self, report: StepReport) -> None:
        """A moment."""
        what = f"epoch {report.epoch}/{report.epochs}, {report.images_per_second:,.0f} images/s"
        self._tell(what, report.step / report.steps)

    def epoch(self, report: EpochReport) -> None:
        """Goes into the log of the run."""
        top1 = "" if report.top1 is None else f"  top-1 {report.top1:.2f} %"
        print(
            f"epoch {report.epoch}  loss {report.losses.total:.4f}{top1}  "
            f"{report.images_per_second:,.0f} images/s",
            flush=True,
        )

    def say(self, text: str) -> None:
        """Goes into the log of the run."""
        print(f"mjp: {text}", flush=True)


class Workshop:
    """Where runs are carried out one after another."""

    def __init__(self, out: Path, device: str | None) -> None:
        self._out = out
        self._device = device

    def carry_out(self, task: Task, tell: Tell) -> None:
        """Trains and evaluates, as far as that is not done."""
        check_same(self._out, task)
        if not is_trained(self._out, task):
            self._train(task, tell)
        for place, part in enumerate(task.parts):
            if not is_evaluated(self._out, task, part):
                tell(part.name, place / len(task.parts))
                self._evaluate(task, part)

    def _train(self, task: Task, tell: Tell) -> None:
        folder = training_folder(self._out, task)
        assert task.recipe is not None
        recipe = replace(task.recipe, run=replace(task.recipe.run, device=self._device))
        begun = (folder / runs.RECIPE).exists()
        options = TrainOptions(out=folder, resume=begun, recipe=recipe)
        train.carry_out(options, Teller(tell))
        if recipe.run.compile != "off":  # Else the compiler is not loaded, which takes seconds.
            # What compiled code and its graphs hold of this run would be in the way of the next.
            torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)

    def _evaluate(self, task: Task, part: Part) -> None:
        folder = part_folder(self._out, task, part)
        shutil.rmtree(folder, ignore_errors=True)  # Of one that was stopped.
        model = task.model or str(training_folder(self._out, task) / FINAL)
        options = part.options(model=(f"{task.entry.name}={model}",), out=folder)
        if "device" in {field.name for field in fields(options)}:
            options = replace(options, device=self._device)
        VERBS[part.verb](options)
        stamp(self._out, task, part)


def _accuracy(options: Any) -> None:
    """Accuracy and jigsaws; the outcome of every image is kept."""
    (scores,) = eval_accuracy.carry_out(options).values()
    write_scores(options.out / SCORES, scores)


VERBS: dict[str, Callable[[Any], None]] = {
    "accuracy": _accuracy,
    "corruptions": eval_corruptions.run,
    "positions": probe_positions.run,
    "audit": audit.run,
}


def write_scores(path: Path, scores: Scores) -> None:
    """Keeps what came out for every image; yes and no in a byte, distances in half precision."""
    flags = ("counted", "top1", "top5", "same", "correct")
    tensors = {name: np.ascontiguousarray(getattr(scores, name)).astype(np.uint8) for name in flags}
    save_file({**tensors, "moved": np.ascontiguousarray(scores.moved).astype(np.float16)}, path)
