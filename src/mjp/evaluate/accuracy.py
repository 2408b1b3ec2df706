"""Accuracy, and what a jigsaw of the image does to it: consistency, Diff. Norm., the whole curve.

For an image x and its jigsaw x̃, as the paper defines them: consistency is the share of images whose
predicted class stays the same; Diff. Norm. is the mean Euclidean distance between the features
before the classifier. All are measured in one pass over the images.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from mjp.core.records import Record, Scalar
from mjp.core.seeds import generator_for
from mjp.core.statistics import estimates
from mjp.data.decoding import BLOCK, Block
from mjp.evaluate.config import EvalAccuracyOptions
from mjp.evaluate.evaluation import Evaluation, Progress, Rows, finish
from mjp.evaluate.tables import EVALUATION
from mjp.jigsaw import JigsawPlan, sample_plan
from mjp.models.subject import Subject, class_outputs

JIGSAW_VALUES = ("accuracy", "consistency", "diff_norm")
"""What is measured of every jigsaw, in order; all but Diff. Norm. are shares."""


def run_accuracy(options: EvalAccuracyOptions) -> None:
    """`mjp eval`: measures models side by side; then what each has more or less than the first."""
    with Evaluation.open(options, patch=options.patch, jigsaw=options.jigsaw) as evaluation:
        run, source = evaluation.run, evaluation.open_source()
        conditions = evaluation.conditions(source.name, among=options.among)

        def scorer(subject: Subject, batch: int) -> JigsawScorer:
            outputs = class_outputs(subject.model, source.classes, source.name)
            return JigsawScorer(subject, options, outputs.to(run.device), batch)

        passes = images_shown(options)
        what = f"evaluating, {passes} passes an image"
        rows, written = {}, {}
        for subject, scored in evaluation.measure(source, what, scorer, passes=passes):
            label, patches = subject.label, subject.grid.num_patches
            rows[label] = scored
            written[label] = run.write(*to_records(scored, patches, options, conditions[label]))
        records = [record for label in conditions for record in written[label]]
        first, *others = conditions
        for label in others:
            facts = conditions[first], conditions[label]
            records += run.write(*to_differences(rows[first], rows[label], options, *facts))
        still = [
            f"note: at a ratio of {record.conditions['ratio']:g} no patch of "
            f"{record.conditions['model']} moves: its grid is too coarse"
            for record in records
            if record.values.get("patches_moved") == 0 and record.conditions["ratio"]
        ]
        finish(run, options, records, EVALUATION, still[:1])


def images_shown(options: EvalAccuracyOptions) -> int:
    """How often a model runs on each image: once without a jigsaw, and once on each."""
    return 1 + len(options.ratios) * options.draws


@dataclass(frozen=True, eq=False)
class JigsawScorer:
    """Gives each image a row: right, right among the first five; and for each of its jigsaws
    `JIGSAW_VALUES`. Classes of the data have their `outputs` of the model."""

    subject: Subject
    options: EvalAccuracyOptions
    outputs: Int64[Tensor, " classes"]
    batch: int = BLOCK

    def __post_init__(self) -> None:
        _ = self.subject.grid  # Raises where the images cannot be cut into patches.

    @property
    def columns(self) -> int:
        return 2 + len(JIGSAW_VALUES) * (images_shown(self.options) - 1)

    def score(self, block: Block, advance: Progress) -> Float[Tensor, "batch columns"]:
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
        for ratio, draw in product(self.options.ratios, range(self.options.draws)):
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
        advance: Progress,
    ) -> Float[Tensor, "batch columns"]:
        columns: list[Tensor] = []
        for plan in (None, *plans):
            logits, feature = self.subject.answers(images, plan)
            if self.options.among == "data":
                logits = logits[:, self.outputs]
            # Found the same way with and without the jigsaw: bf16 logits often tie.
            prediction = logits.argmax(dim=1)
            columns.append((prediction == labels).float())
            if plan is None:
                best, clean = prediction, feature
                first_five = logits.topk(min(5, logits.shape[1]), dim=1).indices
                columns.append((first_five == labels[:, None]).any(dim=1).float())
            else:
                columns += [(prediction == best).float(), (feature - clean).norm(dim=1)]
            advance(len(images))
        return torch.stack(columns, dim=1)


def _columns(options: EvalAccuracyOptions) -> list[tuple[str, float | None]]:
    """The columns of `_means`: what was measured, and of jigsaws of which ratio."""
    jigsaws = [(name, ratio) for ratio in options.ratios for name in JIGSAW_VALUES]
    return [("top1", None), ("top5", None), *jigsaws]


def _means(rows: Rows, options: EvalAccuracyOptions) -> Float[np.ndarray, "images columns"]:
    """A row for each image that was read, with means over draws."""
    read = rows.read()
    shape = (len(read), len(options.ratios), options.draws, len(JIGSAW_VALUES))
    jigsaws = read[:, 2:].reshape(shape).mean(axis=2)
    return np.concatenate((read[:, :2], jigsaws.reshape(len(read), -1)), axis=1)


def to_records(
    rows: Rows, patches: int, options: EvalAccuracyOptions, conditions: dict[str, Scalar]
) -> list[Record]:
    """One record of accuracy, and one for each ratio; shares in percent, with 95 % intervals."""
    found: dict[float | None, dict[str, Scalar]] = defaultdict(dict)
    means = estimates(_means(rows, options))
    for (name, ratio), estimate in zip(_columns(options), means, strict=True):
        found[ratio] |= (estimate if name == "diff_norm" else estimate.percent()).values(name)
    counts: dict[str, Scalar] = {"images": int(rows.readable.sum()), "unreadable": rows.unreadable}
    records = [Record("eval accuracy", conditions, {**found[None], **counts})]
    for ratio in options.ratios:
        jigsaws = {**conditions, "ratio": ratio, "draws": options.draws}
        moved = {"patches_moved": round(ratio * patches), "patches": patches}
        records.append(Record("eval jigsaw", jigsaws, {**found[ratio], **moved, **counts}))
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
    before, after = (_means(Rows(both, rows.values), options) for rows in (first, other))
    conditions = {**other_conditions, "than": first_conditions["model"]}
    for name, value in first_conditions.items():
        if name != "model" and value != other_conditions[name]:
            conditions[f"than_{name}"] = value
    conditions |= {"draws": options.draws, "images": len(both)}
    return [
        Record(
            "eval difference",
            {**conditions, "value": name, "ratio": ratio},
            estimate.scaled(1 if name == "diff_norm" else 100).values("difference"),
        )
        for (name, ratio), estimate in zip(
            _columns(options), estimates(after - before), strict=True
        )
        if name != "top5"
    ]
