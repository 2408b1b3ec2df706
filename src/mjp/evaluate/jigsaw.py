"""Accuracy, and what a jigsaw of the image does to it: consistency, Diff. Norm., the whole curve.

For an image x and its jigsaw x̃, as the paper defines them: consistency is the share of images whose
predicted class stays the same; Diff. Norm. is the mean Euclidean distance between the features
before the classifier. All are measured in one pass over the images.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mjp.core.errors import ConfigError, DataError
from mjp.core.ranges import check_count, check_ratio
from mjp.core.records import Record, Scalar
from mjp.core.seeds import generator_for
from mjp.core.statistics import Estimate, estimates
from mjp.core.team import Team
from mjp.data.decoding import BLOCK, Block
from mjp.jigsaw import JigsawPlan, PatchGrid, sample_plan
from mjp.models.subject import Subject

_JIGSAW_VALUES = (("accuracy", 100.0), ("consistency", 100.0), ("diff_norm", 1.0))

RATIOS = (0.03, 0.09, 0.15, 0.21, 0.27, 0.5, 0.9)


@dataclass(frozen=True)
class JigsawSettings:
    """Which jigsaws every image is shown as.

    Args:
        ratios: shares of the patches that are moved.
        draws: jigsaws of an image at each ratio.
    """

    ratios: tuple[float, ...] = RATIOS
    draws: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for ratio in self.ratios:
            check_ratio("ratios", ratio)
        if len(set(self.ratios)) < len(self.ratios):
            raise ConfigError(f"ratios lists a value twice: {self.ratios}")
        check_count("draws", self.draws)


def images_shown(settings: JigsawSettings) -> int:
    """How often a model runs on each image: once without a jigsaw, and once on each."""
    return 1 + len(settings.ratios) * settings.draws


@dataclass(frozen=True, eq=False)
class Scores:
    """What came out for every image of the data, in the data's order.

    Args:
        counted: False for images that could not be read.
        same: whether the jigsaw is taken for the same class as the image.
        correct: whether the jigsaw is taken for the right class.
        moved: distance between the features of the image and of its jigsaw.
    """

    counted: np.ndarray
    top1: Float[np.ndarray, " images"]
    top5: Float[np.ndarray, " images"]
    same: Float[np.ndarray, "images ratios draws"]
    correct: Float[np.ndarray, "images ratios draws"]
    moved: Float[np.ndarray, "images ratios draws"]


class JigsawScorer:
    """Gathers the scores of one model, block by block, on the device, without waiting for it.

    Args:
        outputs: the model's output for each class of the data.
        among_data: whether only the classes of the data compete, not all of the model's.
    """

    def __init__(
        self,
        subject: Subject,
        settings: JigsawSettings,
        images: int,
        outputs: Int64[Tensor, " classes"],
        team: Team,
        *,
        among_data: bool = False,
        batch: int = BLOCK,
    ) -> None:
        self.subject = subject
        self.passes = images_shown(settings)
        self._grid = subject.grid  # Raises where the images cannot be cut into patches.
        self._settings = settings
        self._team = team
        self._batch = batch
        self._outputs = outputs.to(team.device)
        self._among_data = among_data
        columns = 3 + 3 * len(settings.ratios) * settings.draws
        self._rows = torch.zeros(images, columns, device=team.device)

    @torch.inference_mode()
    def add(self, block: Block, tell: Callable[[int], None]) -> None:
        """Runs the model on a block of images and on their jigsaws."""
        plans = self._plans(block)
        for rows in torch.arange(len(block.indices)).split(self._batch):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            images = self.subject.normalized(block.images[part])
            labels = block.labels[part] if self._among_data else self._outputs[block.labels[part]]
            scored = self._score(images, labels, [plan[part] for plan in plans], tell)
            first = int(block.indices[part][0])
            self._rows[first : first + len(rows)] = torch.cat(
                (block.readable[part].float()[:, None], scored), dim=1
            )

    def _plans(self, block: Block) -> list[JigsawPlan]:
        """The block's jigsaws, of all ratios and draws in turn; a function of seed and block."""
        settings = self._settings
        plans = []
        for ratio in settings.ratios:
            purpose = f"evaluation jigsaw {ratio:g}"
            for draw in range(settings.draws):
                generator = generator_for(
                    settings.seed,
                    purpose,
                    rank=draw,
                    step=block.number,
                    device=self._team.device,
                )
                plans.append(sample_plan(self._grid, BLOCK, ratio, generator))
        return [plan[: len(block.indices)] for plan in plans]

    def _score(
        self,
        images: Tensor,
        labels: Int64[Tensor, " batch"],
        plans: list[JigsawPlan],
        tell: Callable[[int], None],
    ) -> Float[Tensor, "batch columns"]:
        logits, feature = self._answers(images)
        tell(len(images))
        # The largest is found the same way with and without the jigsaw: bf16 logits often tie.
        best = logits.argmax(dim=1)
        first_five = logits.topk(min(5, logits.shape[1]), dim=1).indices
        columns = [
            (best == labels).float(),
            (first_five == labels[:, None]).any(dim=1).float(),
        ]
        for plan in plans:
            other, other_feature = self._answers(images, plan)
            prediction = other.argmax(dim=1)
            columns += [
                (prediction == best).float(),
                (prediction == labels).float(),
                (other_feature - feature).norm(dim=1),
            ]
            tell(len(images))
        return torch.stack(columns, dim=1)

    def _answers(self, images: Tensor, plan: JigsawPlan | None = None) -> tuple[Tensor, Tensor]:
        logits, feature = self.subject.answers(images, plan)
        return (logits[:, self._outputs] if self._among_data else logits), feature

    def scores(self) -> Scores:
        """What came out, over all processes. Every image was scored by one of them, so that the
        sum is exact."""
        rows = self._team.total(self._rows).cpu().numpy()
        shape = (len(rows), len(self._settings.ratios), self._settings.draws, 3)
        jigsaws = rows[:, 3:].reshape(shape)
        return Scores(
            counted=rows[:, 0] > 0,
            top1=rows[:, 1],
            top5=rows[:, 2],
            same=jigsaws[..., 0],
            correct=jigsaws[..., 1],
            moved=jigsaws[..., 2],
        )


def _columns(scores: Scores) -> Float[np.ndarray, "images columns"]:
    """A row for each image that was read: top-1, top-5, and three values for each ratio."""
    if not scores.counted.any():
        raise DataError("not one of the images could be read")
    per_ratio = np.stack((scores.correct, scores.same, scores.moved), axis=-1).mean(axis=2)
    flat = per_ratio.reshape(len(per_ratio), -1)
    table = np.concatenate((scores.top1[:, None], scores.top5[:, None], flat), axis=1)
    return table[scores.counted].astype(np.float64)


def to_records(
    grid: PatchGrid, scores: Scores, settings: JigsawSettings, conditions: Mapping[str, Scalar]
) -> list[Record]:
    """One record of accuracy, and one for each ratio; shares in percent, with 95 % intervals.

    Args:
        grid: of the patches that moved.
    """
    table = _columns(scores)
    found = estimates(table)
    facts = dict(conditions)
    counts: dict[str, Scalar] = {
        "images": len(table),
        "unreadable": int((~scores.counted).sum()),
    }
    values = found[0].scaled(100.0).values("top1") | found[1].scaled(100.0).values("top5")
    records = [Record("eval accuracy", facts, {**values, **counts})]
    patches = grid.num_patches
    for place, ratio in enumerate(settings.ratios):
        own = found[2 + 3 * place : 5 + 3 * place]
        values = {}
        for (name, factor), estimate in zip(_JIGSAW_VALUES, own, strict=True):
            values |= estimate.scaled(factor).values(name)
        moved: dict[str, Scalar] = {"patches_moved": round(ratio * patches), "patches": patches}
        records.append(
            Record(
                "eval jigsaw",
                {**facts, "ratio": ratio, "draws": settings.draws},
                {**values, **moved, **counts},
            )
        )
    return records


def difference(
    first: Scores, other: Scores, settings: JigsawSettings
) -> dict[tuple[str, float | None], Estimate]:
    """Other minus first on the same images and jigsaws, by value and ratio, with intervals."""
    both = first.counted & other.counted
    tables = [_columns(replace(scores, counted=both)) for scores in (first, other)]
    found = estimates(tables[1] - tables[0])
    result: dict[tuple[str, float | None], Estimate] = {("top1", None): found[0].scaled(100.0)}
    for place, ratio in enumerate(settings.ratios):
        for offset, (name, factor) in enumerate(_JIGSAW_VALUES):
            result[name, ratio] = found[2 + 3 * place + offset].scaled(factor)
    return result
