"""ImageNet-A and ImageNet-O: how right and how sure a model is, over 200 of its classes."""

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.errors import DataError
from mjp.core.records import Scalar
from mjp.core.seeds import seed_for
from mjp.core.statistics import LEVEL, estimates
from mjp.core.team import Team
from mjp.data.decoding import BLOCK, Block
from mjp.evaluate import metrics
from mjp.models.subject import Subject

Subset = Literal["imagenet_a", "imagenet_o"]
INTERVAL_RESAMPLES = 500


@cache
def subset_classes(subset: Subset) -> tuple[str, ...]:
    """The WordNet numbers of the 200 classes of ImageNet-A or ImageNet-O, in order."""
    return tuple((files("mjp.evaluate") / f"{subset}.txt").read_text(encoding="utf-8").split())


class ConfidenceScorer:
    """The largest softmax of each image among some of a model's classes, and whether it is right.

    Args:
        outputs: the outputs that compete.
        places: for each class of the data, its place among those outputs; -1 where it has none.
    """

    def __init__(
        self,
        subject: Subject,
        images: int,
        outputs: Int64[Tensor, " competing"],
        places: Int64[Tensor, " classes"],
        team: Team,
        batch: int = BLOCK,
    ) -> None:
        self.subject = subject
        self.passes = 1
        self._outputs = outputs.to(team.device)
        self._places = places.to(team.device)
        self._team = team
        self._batch = batch
        self._rows = torch.zeros(images, 3, dtype=torch.float64, device=team.device)

    @torch.inference_mode()
    def add(self, block: Block, tell: Callable[[int], None]) -> None:
        """Runs the model on a block of images."""
        logits = self.subject.logits(block.images, self._batch, tell)
        confidence, best = logits[:, self._outputs].double().softmax(dim=1).max(dim=1)
        right = best == self._places[block.labels]
        first = int(block.indices[0])
        self._rows[first : first + len(best)] = torch.stack(
            (block.readable.double(), confidence, right.double()), dim=1
        )

    def results(self) -> tuple[Float[np.ndarray, " images"], Bool[np.ndarray, " images"]]:
        """Confidence and correctness of every image that was read, over all processes."""
        rows = self._team.total(self._rows).cpu().numpy()
        rows = rows[rows[:, 0] > 0]
        if not len(rows):
            raise DataError("not one of the images could be read")
        return rows[:, 1], rows[:, 2] > 0


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
        **accuracy.scaled(100.0).values("accuracy"),
        "images": len(correct),
    }
    found = _resampled(("aurra", "calibration_error"), measured, len(correct), seed)
    # Resampling adds noise, which a distance only grows by: the interval is that of the growth,
    # turned around (the basic bootstrap).
    point, low, high = (float(str(found[f"calibration_error{e}"])) for e in ("", "_low", "_high"))
    found["calibration_error_low"] = max(0.0, 2 * point - high)
    found["calibration_error_high"] = max(point, 2 * point - low)
    return values | found


def outlier_values(
    outliers: Float[np.ndarray, " outliers"], inliers: Float[np.ndarray, " inliers"], seed: int
) -> dict[str, Scalar]:
    """AUPR, AUROC and FPR95 in percent, of the negative confidence as the score of an outlier."""

    def measured(rows: np.ndarray) -> tuple[float, ...]:
        one = (
            -outliers[rows[rows < len(outliers)]],
            -inliers[rows[rows >= len(outliers)] - len(outliers)],
        )
        return (
            100 * metrics.average_precision(*one),
            100 * metrics.area_under_roc(*one),
            100 * metrics.false_alarm_rate(*one),
        )

    sizes = (len(outliers), len(inliers))
    values: dict[str, Scalar] = {"outliers": sizes[0], "inliers": sizes[1]}
    return values | _resampled(("aupr", "auroc", "fpr95"), measured, sizes, seed)


def _resampled(
    names: tuple[str, ...],
    measured: Callable[[np.ndarray], tuple[float, ...]],
    sizes: int | tuple[int, ...],
    seed: int,
) -> dict[str, Scalar]:
    """Each value, and its interval over resampled images; each kind of image among its own."""
    sizes = (sizes,) if isinstance(sizes, int) else sizes
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
    values: dict[str, Scalar] = {}
    for name, value, lowest, highest in zip(names, point, low, high, strict=True):
        values |= {name: value, f"{name}_low": float(lowest), f"{name}_high": float(highest)}
    return values
