"""ImageNet-A and ImageNet-O: how right and how sure a model is, over 200 of its classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from mjp.core.errors import DataError
from mjp.core.records import Record, Scalar
from mjp.core.seeds import seed_for
from mjp.core.statistics import LEVEL, estimates
from mjp.data.decoding import BLOCK, Block
from mjp.data.opening import open_images
from mjp.data.source import Source, of_classes
from mjp.evaluate.config import EvalNaturalOptions, EvalOutliersOptions
from mjp.evaluate.evaluation import Evaluation, Progress, Rows, finish
from mjp.evaluate.tables import FOOLING, UNKNOWN
from mjp.models.subject import Subject, class_outputs, imagenet_synsets

Subset = Literal["imagenet_a", "imagenet_o"]
INTERVAL_RESAMPLES = 500
CALIBRATION_BIN = 100
"""Images in a bin of the calibration error, as in ImageNet-A's own evaluation."""


def run_natural(options: EvalNaturalOptions) -> None:
    """`mjp eval imagenet-a`: accuracy over 200 classes, AURRA, calibration."""
    from mjp.report.figures import draw_response_rates

    with Evaluation.open(options) as evaluation:
        source = evaluation.open_source()
        strange = [name for name in source.classes if name not in subset_classes("imagenet_a")]
        if strange:
            raise DataError(
                f"{source.name} has classes that are none of ImageNet-A's 200: "
                f"{', '.join(strange[:5])}; its folders are named by WordNet numbers"
            )
        answers = answer(evaluation, source, "imagenet_a", "ImageNet-A")
        records, drawn = [], {}
        for label, conditions in evaluation.conditions(source.name).items():
            read = answers[label].read()
            drawn[label] = read[:, 0], read[:, 1]
            values = natural_values(read, options.seed)
            values["unreadable"] = answers[label].unreadable
            records.append(Record("eval imagenet-a", conditions, values))
        run = evaluation.run
        draw = partial(draw_response_rates, drawn, run.out)
        finish(run, options, run.write(*records), FOOLING, draw=draw)


def run_outliers(options: EvalOutliersOptions) -> None:
    """`mjp eval imagenet-o`: how well low confidence finds images of no known class."""
    from mjp.report.figures import draw_outliers

    with Evaluation.open(options) as evaluation:
        outliers = evaluation.open_source()
        known = of_classes(
            open_images(options.inliers, options.inliers_source, options.split),
            subset_classes("imagenet_o"),
            in_order=imagenet_synsets(),
        )
        inliers = evaluation.some_of(known)
        odd = answer(evaluation, outliers, "imagenet_o", "ImageNet-O", labelled=False)
        usual = answer(evaluation, inliers, "imagenet_o", "ImageNet, same classes")
        records, drawn = [], {}
        both = evaluation.conditions(outliers.name, inliers=inliers.name)
        for label, conditions in both.items():
            strange, read = odd[label].read(), usual[label].read()
            drawn[label] = strange[:, 0], read[:, 0]
            values = {
                **outlier_values(*drawn[label], options.seed),
                "inlier_accuracy": 100 * float(read[:, 1].mean()),
                "unreadable": odd[label].unreadable + usual[label].unreadable,
            }
            records.append(Record("eval imagenet-o", conditions, values))
        run = evaluation.run
        draw = partial(draw_outliers, drawn, run.out)
        finish(run, options, run.write(*records), UNKNOWN, draw=draw)


@cache
def subset_classes(subset: Subset) -> tuple[str, ...]:
    """The WordNet numbers of the 200 classes of ImageNet-A or ImageNet-O, in order."""
    return tuple((files("mjp.evaluate") / f"{subset}.txt").read_text(encoding="utf-8").split())


def answer(
    evaluation: Evaluation[Any], source: Source, subset: Subset, what: str, *, labelled: bool = True
) -> dict[str, Rows]:
    """What each model answers, among the 200 classes of a subset; right, where the images' labels
    mean something."""

    def scorer(subject: Subject, batch: int) -> ConfidenceScorer:
        competing = class_outputs(subject.model, subset_classes(subset), f"{what}'s list")
        places = torch.full((len(source.classes),), -1)
        if labelled:
            among = torch.full((int(subject.model.num_classes),), -1)
            among[competing] = torch.arange(len(competing))
            places = among[class_outputs(subject.model, source.classes, source.name)]
        device = evaluation.run.device
        return ConfidenceScorer(subject, competing.to(device), places.to(device), batch)

    return {subject.label: rows for subject, rows in evaluation.measure(source, what, scorer)}


@dataclass(frozen=True, eq=False)
class ConfidenceScorer:
    """Gives each image a row: the largest softmax among some of the classes, and whether it is
    right.

    Args:
        places: for each class of the data, its place among the outputs; -1 where it has none.
    """

    subject: Subject
    outputs: Int64[Tensor, " competing"]
    places: Int64[Tensor, " classes"]
    batch: int = BLOCK
    columns: int = 2

    def score(self, block: Block, advance: Progress) -> Float[Tensor, "batch columns"]:
        """Runs the model on a block of images."""
        logits = self.subject.logits(block.images, self.batch, advance)
        confidence, best = logits[:, self.outputs].double().softmax(dim=1).max(dim=1)
        right = best == self.places[block.labels]
        return torch.stack((confidence, right.double()), dim=1)


def natural_values(answers: Float[np.ndarray, "images 2"], seed: int) -> dict[str, Scalar]:
    """Accuracy, AURRA and calibration error in percent, with 95 % intervals, of each image's
    confidence and whether it is right."""

    def measured(rows: np.ndarray) -> dict[str, float]:
        return {
            "aurra": 100 * response_rate_accuracy(*rows.T),
            "calibration_error": 100 * calibration_error(*rows.T),
        }

    accuracy = estimates(answers[:, 1:])[0].percent()
    values = _resampled(measured, [answers], seed)
    # Resampling adds noise, which a distance only grows by: the interval is that of the growth,
    # turned around (the basic bootstrap).
    point, low, high = (values[f"calibration_error{end}"] for end in ("", "_low", "_high"))
    values["calibration_error_low"] = max(0.0, 2 * point - high)
    values["calibration_error_high"] = max(point, 2 * point - low)
    return {**accuracy.values("accuracy"), "images": len(answers), **values}


def outlier_values(
    outliers: Float[np.ndarray, " outliers"], inliers: Float[np.ndarray, " inliers"], seed: int
) -> dict[str, Scalar]:
    """AUPR, AUROC and FPR95 in percent, of the negative confidence as the score of an outlier.

    FPR95 is the share of inliers taken for outliers by the first threshold that finds 95 % of the
    outliers.
    """

    def measured(outliers: np.ndarray, inliers: np.ndarray) -> dict[str, float]:
        labels = np.repeat((1, 0), (len(outliers), len(inliers)))
        scores = -np.concatenate((outliers, inliers))
        false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
        return {
            "aupr": 100 * average_precision_score(labels, scores),
            "auroc": 100 * roc_auc_score(labels, scores),
            "fpr95": 100 * false[np.argmax(true >= 0.95)],
        }

    values = _resampled(measured, [outliers, inliers], seed)
    return {"outliers": len(outliers), "inliers": len(inliers), **values}


def response_rate_accuracy(
    confidence: Float[np.ndarray, " images"], correct: Float[np.ndarray, " images"]
) -> float:
    """AURRA: accuracy among the k most confident answers, averaged over all k.

    Equally confident answers count as answered in random order.
    """
    _, ties, counts = np.unique(-confidence, return_inverse=True, return_counts=True)
    expected = np.repeat(np.bincount(ties, correct) / counts, counts)
    return float(np.mean(np.cumsum(expected) / np.arange(1, len(correct) + 1)))


def calibration_error(
    confidence: Float[np.ndarray, " images"],
    correct: Float[np.ndarray, " images"],
    bin_size: int = CALIBRATION_BIN,
) -> float:
    """RMS distance between confidence and accuracy, over bins of equally many images.

    The last bin takes what is left over. (The code published with ImageNet-A leaves the last bin,
    that of the most confident answers, out.)
    """
    order = np.argsort(confidence, kind="stable")
    edges = bin_size * np.arange(max(1, len(order) // bin_size))
    sizes = np.diff([*edges, len(order)])
    gaps = np.add.reduceat((confidence - correct)[order], edges) / sizes
    return float(np.sqrt(np.sum(sizes * gaps**2) / len(order)))


def _resampled(
    measured: Callable[..., dict[str, float]], groups: Sequence[np.ndarray], seed: int
) -> dict[str, float]:
    """Each value, and its interval over resampled images; each group's among their own."""
    rng = np.random.default_rng(seed_for(seed, "bootstrap"))
    drawn = []
    for _ in range(INTERVAL_RESAMPLES):
        images = [group[rng.integers(len(group), size=len(group))] for group in groups]
        drawn.append(list(measured(*images).values()))
    tail = (1 - LEVEL) / 2
    ends = np.quantile(drawn, [tail, 1 - tail], axis=0)
    values: dict[str, float] = {}
    for (name, value), low, high in zip(measured(*groups).items(), *ends, strict=True):
        values |= {name: float(value), f"{name}_low": float(low), f"{name}_high": float(high)}
    return values
