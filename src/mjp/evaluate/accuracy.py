"""Accuracy, and what a jigsaw of the image does to it: consistency, Diff. Norm., the whole curve.

For an image x and its jigsaw x̃, as the paper defines them: consistency is the share of images whose
predicted class stays the same; Diff. Norm. is the mean Euclidean distance between the features
before the classifier. All are measured in one pass over the images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.core.seeds import generator_for
from mjp.core.statistics import Estimate, estimates
from mjp.data.decoding import BLOCK, Block
from mjp.data.source import Source
from mjp.evaluate.config import EvalAccuracyOptions
from mjp.evaluate.evaluation import (
    Advance,
    Rows,
    batch_size,
    conditions_of,
    evaluation,
    finish,
    measure,
    open_source,
)
from mjp.evaluate.tables import EVALUATION
from mjp.jigsaw import JigsawPlan, sample_plan
from mjp.models.facts import class_outputs
from mjp.models.subject import Subject

JIGSAW_VALUES = (("accuracy", 100.0), ("consistency", 100.0), ("diff_norm", 1.0))
"""What is measured of every jigsaw, in order, and what its mean is multiplied by."""


def run_accuracy(options: EvalAccuracyOptions) -> None:
    """`mjp eval`: measures models side by side, prints, draws."""
    with evaluation(options, patch=options.patch, jigsaw=options.jigsaw) as (run, subjects):
        records = evaluate_accuracy(run, subjects, open_source(options), options)
        finish(run, options, records, EVALUATION, _notes(records))


def evaluate_accuracy(
    run: Run, subjects: Sequence[Subject], source: Source, options: EvalAccuracyOptions
) -> list[Record]:
    """The records of every model, written as soon as it has seen all images; then what each has
    more or less than the first."""
    rows: dict[str, Rows] = {}
    records: dict[str, list[Record]] = {}
    conditions: dict[str, dict[str, Scalar]] = {
        subject.label: {
            **conditions_of(subject, source.name, options),
            "among": options.among,
        }
        for subject in subjects
    }

    def scorer(subject: Subject) -> JigsawScorer:
        outputs = class_outputs(subject.model, source.classes, source.name).to(run.device)
        return JigsawScorer(subject, options, outputs, batch_size(run, options))

    what = f"evaluating, {images_shown(options)} passes an image"
    for subject, scored in measure(run, subjects, source, options, what, scorer):
        label = subject.label
        rows[label] = scored
        patches = subject.grid.num_patches
        records[label] = run.write(*to_records(scored, patches, options, conditions[label]))
    first, *others = (subject.label for subject in subjects)
    differences = [
        record
        for other in others
        for record in to_differences(
            rows[first], rows[other], options, conditions[first], conditions[other]
        )
    ]
    return [
        *(record for subject in subjects for record in records[subject.label]),
        *run.write(*differences),
    ]


def images_shown(options: EvalAccuracyOptions) -> int:
    """How often a model runs on each image: once without a jigsaw, and once on each."""
    return 1 + len(options.ratios) * options.draws


@dataclass(frozen=True, eq=False)
class JigsawScorer:
    """Gives each image a row: right, right among the first five; and for each of its jigsaws
    `JIGSAW_VALUES`.

    Args:
        options: which jigsaws every image is shown as, and which classes compete.
        outputs: the model's output for each class of the data; on the device.
        batch: most images in a forward pass.
    """

    subject: Subject
    options: EvalAccuracyOptions
    outputs: Int64[Tensor, " classes"]
    batch: int = BLOCK

    def __post_init__(self) -> None:
        _ = self.subject.grid  # Raises where the images cannot be cut into patches.

    @property
    def columns(self) -> int:
        return 2 + len(JIGSAW_VALUES) * (self.passes - 1)

    @property
    def passes(self) -> int:
        return images_shown(self.options)

    def score(self, block: Block, advance: Advance) -> Float[Tensor, "batch columns"]:
        """Runs the model on a block of images and on their jigsaws."""
        plans = self._plans(block)
        labels = block.labels if self.options.among == "data" else self.outputs[block.labels]
        rows = []
        for start in range(0, len(block.indices), self.batch):
            part = slice(start, start + self.batch)
            images = self.subject.normalized(block.images[part])
            rows.append(self._score(images, labels[part], [plan[part] for plan in plans], advance))
        return torch.cat(rows)

    def _plans(self, block: Block) -> list[JigsawPlan]:
        """The block's jigsaws, of all ratios and draws in turn; a function of seed and block."""
        plans = []
        for ratio in self.options.ratios:
            for draw in range(self.options.draws):
                generator = generator_for(
                    self.options.seed,
                    f"evaluation jigsaw {ratio:g}",
                    rank=draw,
                    step=block.number,
                    device=block.images.device,
                )
                plans.append(sample_plan(self.subject.grid, BLOCK, ratio, generator))
        return [plan[: len(block.indices)] for plan in plans]

    def _score(
        self,
        images: Tensor,
        labels: Int64[Tensor, " batch"],
        plans: list[JigsawPlan],
        advance: Advance,
    ) -> Float[Tensor, "batch columns"]:
        logits, feature = self._answers(images)
        advance(len(images))
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
                (prediction == labels).float(),
                (prediction == best).float(),
                (other_feature - feature).norm(dim=1),
            ]
            advance(len(images))
        return torch.stack(columns, dim=1)

    def _answers(self, images: Tensor, plan: JigsawPlan | None = None) -> tuple[Tensor, Tensor]:
        logits, feature = self.subject.answers(images, plan)
        return (logits[:, self.outputs] if self.options.among == "data" else logits), feature


def _means(rows: Rows, options: EvalAccuracyOptions) -> Float[np.ndarray, "images columns"]:
    """A row for each image that was read: top-1, top-5, and the mean over draws of the values of
    each ratio."""
    read = rows.read()
    shape = (len(read), len(options.ratios), options.draws, len(JIGSAW_VALUES))
    jigsaws = read[:, 2:].reshape(shape).mean(axis=2)
    return np.concatenate((read[:, :2], jigsaws.reshape(len(read), -1)), axis=1)


def to_records(
    rows: Rows, patches: int, options: EvalAccuracyOptions, conditions: dict[str, Scalar]
) -> list[Record]:
    """One record of accuracy, and one for each ratio; shares in percent, with 95 % intervals.

    Args:
        patches: how many the images are cut into.
    """
    top1, top5, *jigsaws = estimates(_means(rows, options))
    counts: dict[str, Scalar] = {
        "images": int(rows.readable.sum()),
        "unreadable": rows.unreadable,
    }
    values: dict[str, Scalar] = {
        **top1.percent().values("top1"),
        **top5.percent().values("top5"),
    }
    records = [Record("eval accuracy", conditions, {**values, **counts})]
    for place, ratio in enumerate(options.ratios):
        values = {}
        for (name, factor), estimate in zip(
            JIGSAW_VALUES, jigsaws[3 * place : 3 * place + 3], strict=True
        ):
            shown = estimate.percent() if factor == 100 else estimate
            values |= shown.values(name)
        values |= {"patches_moved": round(ratio * patches), "patches": patches}
        more: dict[str, Scalar] = {"ratio": ratio, "draws": options.draws}
        records.append(Record("eval jigsaw", {**conditions, **more}, {**values, **counts}))
    return records


def to_differences(
    first: Rows,
    other: Rows,
    options: EvalAccuracyOptions,
    first_conditions: dict[str, Scalar],
    other_conditions: dict[str, Scalar],
) -> list[Record]:
    """Other minus first on the same images and jigsaws: a record for each value and ratio."""
    both = first.readable & other.readable
    means = [_means(Rows(both, rows.values), options) for rows in (first, other)]
    top1, _, *jigsaws = estimates(means[1] - means[0])
    conditions = {
        **other_conditions,
        "than": first_conditions["model"],
        **{
            f"than_{name}": value
            for name, value in first_conditions.items()
            if name != "model" and value != other_conditions[name]
        },
        "draws": options.draws,
        "images": len(both),
    }
    named: list[tuple[str, float | None, Estimate]] = [("top1", None, top1.scaled(100.0))]
    for place, estimate in enumerate(jigsaws):
        name, factor = JIGSAW_VALUES[place % len(JIGSAW_VALUES)]
        ratio = options.ratios[place // len(JIGSAW_VALUES)]
        named.append((name, ratio, estimate.scaled(factor)))
    return [
        Record(
            "eval difference",
            {**conditions, "value": name, "ratio": ratio},
            dict(estimate.values("difference")),
        )
        for name, ratio, estimate in named
    ]


def _notes(records: Sequence[Record]) -> list[str]:
    still = [
        record.conditions
        for record in records
        if record.values.get("patches_moved") == 0 and record.conditions["ratio"]
    ]
    return [
        f"note: at a ratio of {first['ratio']:g} no patch of {first['model']} moves: its grid is "
        "too coarse"
        for first in still[:1]
    ]
