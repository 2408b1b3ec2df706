"""Errors under corruption: ImageNet-C, from its files or made of clean images on the way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mjp.core.errors import DataError
from mjp.core.records import Record, Scalar
from mjp.core.statistics import Estimate, estimates
from mjp.core.team import Team
from mjp.data.corruptions import CORRUPTIONS, SEVERITIES
from mjp.data.decoding import BLOCK, Block
from mjp.evaluate.metrics import ALEXNET_ERRORS, mean_corruption_error
from mjp.models.subject import Subject

NAN = float("nan")


class ErrorCounter:
    """Which images a model gets wrong, in each of their versions.

    Args:
        versions: how many versions of an image a block holds.
        outputs: the model's output for each class of the data.
        among_data: whether only the classes of the data compete, not all of the model's.
    """

    def __init__(
        self,
        subject: Subject,
        images: int,
        versions: int,
        outputs: Int64[Tensor, " classes"],
        team: Team,
        batch: int = BLOCK,
        *,
        among_data: bool = False,
    ) -> None:
        self.subject = subject
        self.passes = versions
        self._outputs = outputs.to(team.device)
        self._team = team
        self._batch = batch
        self._among_data = among_data
        self._rows = torch.zeros(images, 1 + versions, device=team.device)

    @torch.inference_mode()
    def add(self, block: Block, tell: Callable[[int], None]) -> None:
        """Runs the model on all versions of a block's images."""
        images = block.images if block.images.dim() == 5 else block.images[:, None]
        count, versions = images.shape[:2]
        labels = block.labels if self._among_data else self._outputs[block.labels]
        labels = labels.repeat_interleave(versions)
        logits = self.subject.logits(images.flatten(0, 1), self._batch, tell)
        logits = logits[:, self._outputs] if self._among_data else logits
        wrong = logits.argmax(dim=1) != labels
        first = int(block.indices[0])
        self._rows[first : first + count, 0] = block.readable.float()
        self._rows[first : first + count, 1:] = wrong.reshape(count, versions).float()

    def errors(self) -> Float[np.ndarray, "images versions"]:
        """1 for wrong and 0 for right, for every image that was read, over all processes.

        Images that could not be read are left out.
        """
        rows = self._team.total(self._rows).cpu().numpy()
        counted = rows[:, 0] > 0
        if not counted.any():
            raise DataError("not one of the images could be read")
        return rows[counted, 1:].astype(np.float64)


@dataclass(frozen=True)
class CorruptionErrors:
    """Top-1 error of a model under one corruption, between 0 and 1.

    Args:
        severities: error at each severity.
        mean: over the severities, with its interval.
        images: mean error of each image, where all corruptions are of the same images.
        counts: images that were read, at each severity.
        unreadable: images that could not be read, at all severities together.
    """

    severities: tuple[float, ...]
    mean: Estimate
    images: Float[np.ndarray, " images"] | None
    counts: tuple[int, ...]
    unreadable: int

    @classmethod
    def of(
        cls,
        errors: Sequence[Float[np.ndarray, " images"]],
        seed: int,
        *,
        paired: bool,
        unreadable: int = 0,
    ) -> "CorruptionErrors":
        """From 1 for wrong and 0 for right, of each image at each severity."""
        severities = tuple(float(one.mean()) for one in errors)
        counts = tuple(len(one) for one in errors)
        if len(set(counts)) > 1:
            mean = Estimate(float(np.mean(severities)), NAN, NAN)
            return cls(severities, mean, None, counts, unreadable)
        each = np.stack(errors, axis=1).mean(axis=1)
        mean = estimates(each[:, None])[0]
        return cls(severities, mean, each if paired else None, counts, unreadable)


def corruption_record(name: str, found: CorruptionErrors, facts: Mapping[str, Scalar]) -> Record:
    """Errors in percent; over AlexNet's where the classes are ImageNet's."""
    values: dict[str, Scalar] = {
        f"error_{severity}": 100 * error
        for severity, error in zip(SEVERITIES, found.severities, strict=True)
    }
    values |= found.mean.scaled(100.0).values("error")
    values |= {"images": found.counts[0], "unreadable": found.unreadable}
    alexnet = ALEXNET_ERRORS.get(name) if facts.get("imagenet") else None
    values["relative_to_alexnet"] = None if alexnet is None else 100 * found.mean.mean / alexnet
    return Record("eval corruption", {**facts, "corruption": name}, values)


def summary_record(
    errors: Mapping[str, CorruptionErrors],
    clean: float | None,
    facts: Mapping[str, Scalar],
    seed: int,
) -> Record:
    """mCE, normalised by AlexNet and not, where all fifteen corruptions were measured."""
    common = [name for name in CORRUPTIONS if name in errors]
    values: dict[str, Scalar] = {
        "clean_error": None if clean is None else 100 * clean,
        "corruptions": len(errors),
    }
    if len(common) == len(CORRUPTIONS):
        severities = {name: errors[name].severities for name in common}
        plain = float(np.mean([np.mean(one) for one in severities.values()]))
        equal = dict.fromkeys(common, 1.0)
        values |= _estimate(plain, errors, equal, seed).scaled(100.0).values("mean_error")
        if facts.get("imagenet"):
            point = mean_corruption_error(severities)
            weights = {name: 1 / ALEXNET_ERRORS[name] for name in common}
            values |= _estimate(point, errors, weights, seed).scaled(100.0).values("mce")
    return Record("eval corruption summary", dict(facts), values)


def _estimate(
    point: float, errors: Mapping[str, CorruptionErrors], weights: Mapping[str, float], seed: int
) -> Estimate:
    """A weighted mean over corruptions; its interval, where they are of the same images."""
    rows = [errors[name].images for name in weights]
    if any(row is None for row in rows):
        return Estimate(point, NAN, NAN)
    table = np.stack([row for row in rows if row is not None], axis=1)
    mean = table @ np.array(list(weights.values())) / len(weights)
    found = estimates(mean[:, None])[0]
    return Estimate(point, found.low, found.high)
