"""ImageNet-A and ImageNet-O: how right and how sure a model is, over 200 of its classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.errors import DataError
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.core.seeds import seed_for
from mjp.core.statistics import LEVEL, estimates
from mjp.data.decoding import BLOCK, Block
from mjp.data.opening import open_images
from mjp.data.source import Source, of_classes
from mjp.evaluate import metrics
from mjp.evaluate.config import EvalNaturalOptions, EvalOutliersOptions, EvaluationOptions
from mjp.evaluate.evaluation import (
    Advance,
    batch_size,
    conditions_of,
    evaluation,
    finish,
    measure,
    open_source,
    some_of,
)
from mjp.evaluate.tables import FOOLING, UNKNOWN
from mjp.models.facts import class_outputs, imagenet_synsets
from mjp.models.subject import Subject

Subset = Literal["imagenet_a", "imagenet_o"]
INTERVAL_RESAMPLES = 500


def run_natural(options: EvalNaturalOptions) -> None:
    """`mjp eval imagenet-a`: accuracy over 200 classes, AURRA, calibration."""
    from mjp.report.figures import draw_response_rates

    with evaluation(options) as (run, subjects):
        source = open_source(options)
        strange = [name for name in source.classes if name not in subset_classes("imagenet_a")]
        if strange:
            raise DataError(
                f"{source.name} has classes that are none of ImageNet-A's 200: "
                f"{', '.join(strange[:5])}; its folders are named by WordNet numbers"
            )
        answers = answer(run, subjects, source, options, "imagenet_a", "ImageNet-A")
        records = [
            Record(
                "eval imagenet-a",
                conditions_of(subject, source.name, options),
                {
                    **natural_values(given.confidence, given.correct, options.seed),
                    "unreadable": given.unreadable,
                },
            )
            for subject in subjects
            for given in [answers[subject.label]]
        ]
        drawn = {label: (given.confidence, given.correct) for label, given in answers.items()}
        finish(
            run,
            options,
            run.write(*records),
            FOOLING,
            draw=lambda: draw_response_rates(drawn, run.out),
        )


def run_outliers(options: EvalOutliersOptions) -> None:
    """`mjp eval imagenet-o`: how well low confidence finds images of no known class."""
    from mjp.report.figures import draw_outliers

    with evaluation(options) as (run, subjects):
        outliers = open_source(options)
        known = of_classes(
            open_images(options.inliers, options.inliers_source, options.split),
            subset_classes("imagenet_o"),
            in_order=imagenet_synsets(),
        )
        inliers = some_of(known, options)
        odd = answer(run, subjects, outliers, options, "imagenet_o", "ImageNet-O", labelled=False)
        usual = answer(run, subjects, inliers, options, "imagenet_o", "ImageNet, same classes")
        confidences = {label: (odd[label].confidence, usual[label].confidence) for label in odd}
        records = [
            Record(
                "eval imagenet-o",
                {**conditions_of(subject, outliers.name, options), "inliers": inliers.name},
                {
                    **outlier_values(*confidences[subject.label], options.seed),
                    "inlier_accuracy": 100 * float(usual[subject.label].correct.mean()),
                    "unreadable": odd[subject.label].unreadable + usual[subject.label].unreadable,
                },
            )
            for subject in subjects
        ]
        finish(
            run,
            options,
            run.write(*records),
            UNKNOWN,
            draw=lambda: draw_outliers(confidences, run.out),
        )


@cache
def subset_classes(subset: Subset) -> tuple[str, ...]:
    """The WordNet numbers of the 200 classes of ImageNet-A or ImageNet-O, in order."""
    return tuple((files("mjp.evaluate") / f"{subset}.txt").read_text(encoding="utf-8").split())


@dataclass(frozen=True, eq=False)
class Answers:
    """How sure a model is of each image that was read, and whether it is right."""

    confidence: Float[np.ndarray, " images"]
    correct: Bool[np.ndarray, " images"]
    unreadable: int = 0


def answer(
    run: Run,
    subjects: Sequence[Subject],
    source: Source,
    options: EvaluationOptions,
    subset: Subset,
    what: str,
    *,
    labelled: bool = True,
) -> dict[str, Answers]:
    """What each model answers, among the 200 classes of a subset.

    Args:
        labelled: False where the images' labels mean nothing.
    """

    def scorer(subject: Subject) -> ConfidenceScorer:
        competing = class_outputs(subject.model, subset_classes(subset), f"{what}'s list")
        places = torch.full((len(source.classes),), -1)
        if labelled:
            outputs = class_outputs(subject.model, source.classes, source.name)
            places = places_among(outputs, competing)
        batch = batch_size(run, options)
        return ConfidenceScorer(subject, competing.to(run.device), places.to(run.device), batch)

    answers = {}
    for subject, rows in measure(run, subjects, source, options, what, scorer):
        confidence, correct = rows.read().T
        answers[subject.label] = Answers(confidence, correct > 0, rows.unreadable)
    return {subject.label: answers[subject.label] for subject in subjects}


@dataclass(frozen=True, eq=False)
class ConfidenceScorer:
    """Gives each image a row: the largest softmax among some of the classes, and whether it is
    right.

    Args:
        outputs: the outputs that compete; on the device.
        places: for each class of the data, its place among those outputs; -1 where it has none.
    """

    subject: Subject
    outputs: Int64[Tensor, " competing"]
    places: Int64[Tensor, " classes"]
    batch: int = BLOCK
    columns: int = 2
    passes: int = 1

    def score(self, block: Block, advance: Advance) -> Float[Tensor, "batch columns"]:
        """Runs the model on a block of images."""
        logits = self.subject.logits(block.images, self.batch, advance)
        confidence, best = logits[:, self.outputs].double().softmax(dim=1).max(dim=1)
        right = best == self.places[block.labels]
        return torch.stack((confidence, right.double()), dim=1)


def places_among(
    outputs: Int64[Tensor, " classes"], competing: Int64[Tensor, " competing"]
) -> Int64[Tensor, " classes"]:
    """For each output, its place among those that compete; -1 where it is none of them."""
    equal = outputs[:, None] == competing[None]
    return torch.where(equal.any(dim=1), equal.int().argmax(dim=1), -1)


def natural_values(
    confidence: Float[np.ndarray, " images"], correct: Bool[np.ndarray, " images"], seed: int
) -> dict[str, Scalar]:
    """Accuracy, AURRA and calibration error in percent, with 95 % intervals."""

    def measured(rows: np.ndarray) -> tuple[float, ...]:
        chosen = confidence[rows], correct[rows]
        return (
            100 * metrics.response_rate_accuracy(*chosen),
            100 * metrics.calibration_error(*chosen),
        )

    accuracy = estimates(correct.astype(float)[:, None])[0]
    values: dict[str, Scalar] = {
        **accuracy.percent().values("accuracy"),
        "images": len(correct),
    }
    resampled = _resampled(("aurra", "calibration_error"), measured, (len(correct),), seed)
    # Resampling adds noise, which a distance only grows by: the interval is that of the growth,
    # turned around (the basic bootstrap).
    point, low, high = (resampled[f"calibration_error{end}"] for end in ("", "_low", "_high"))
    resampled["calibration_error_low"] = max(0.0, 2 * point - high)
    resampled["calibration_error_high"] = max(point, 2 * point - low)
    return {**values, **resampled}


def outlier_values(
    outliers: Float[np.ndarray, " outliers"], inliers: Float[np.ndarray, " inliers"], seed: int
) -> dict[str, Scalar]:
    """AUPR, AUROC and FPR95 in percent, of the negative confidence as the score of an outlier."""

    def measured(rows: np.ndarray) -> tuple[float, ...]:
        scores = (
            -outliers[rows[rows < len(outliers)]],
            -inliers[rows[rows >= len(outliers)] - len(outliers)],
        )
        return (
            100 * metrics.average_precision(*scores),
            100 * metrics.area_under_roc(*scores),
            100 * metrics.false_alarm_rate(*scores),
        )

    sizes = (len(outliers), len(inliers))
    values: dict[str, Scalar] = {"outliers": sizes[0], "inliers": sizes[1]}
    return {**values, **_resampled(("aupr", "auroc", "fpr95"), measured, sizes, seed)}


def _resampled(
    names: tuple[str, ...],
    measured: Callable[[np.ndarray], tuple[float, ...]],
    sizes: tuple[int, ...],
    seed: int,
) -> dict[str, float]:
    """Each value, and its interval over resampled images; each kind of image among its own."""
    starts = np.cumsum((0, *sizes))
    rng = np.random.default_rng(seed_for(seed, "bootstrap"))
    point = measured(np.arange(starts[-1]))
    drawn = [
        measured(
            np.concatenate(
                [
                    start + rng.integers(size, size=size)
                    for start, size in zip(starts[:-1], sizes, strict=True)
                ]
            )
        )
        for _ in range(INTERVAL_RESAMPLES)
    ]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(np.array(drawn), [tail, 1 - tail], axis=0)
    values: dict[str, float] = {}
    for name, value, lowest, highest in zip(names, point, low, high, strict=True):
        values |= {name: value, f"{name}_low": float(lowest), f"{name}_high": float(highest)}
    return values
