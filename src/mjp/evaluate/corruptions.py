"""Errors under corruption: ImageNet-C, from its files or made of clean images on the way."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from mjp.core.errors import ConfigError, DataError
from mjp.core.records import Record, Scalar
from mjp.core.statistics import Estimate, estimates
from mjp.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    CorruptingDecoder,
    check_corruption,
    find_prepared,
)
from mjp.data.decoding import BLOCK, Block, View
from mjp.data.source import FolderSource, Source
from mjp.evaluate.config import EvalCorruptionsOptions
from mjp.evaluate.evaluation import Evaluation, Progress, finish
from mjp.evaluate.tables import CORRUPTED
from mjp.models.subject import Subject, by_view, class_outputs

CLEAN = "clean"
"""Stands for no corruption."""

ALEXNET_ERRORS: Mapping[str, float] = dict(
    zip(
        CORRUPTIONS,
        (
            *(0.886428, 0.894468, 0.922640),
            *(0.819880, 0.826268, 0.785948, 0.798360),
            *(0.866816, 0.826572, 0.819324, 0.564592),
            *(0.853204, 0.646056, 0.717840, 0.606500),
        ),
        strict=True,
    )
)
"""AlexNet's top-1 error on ImageNet-C, the mean over five severities of each corruption."""


def run_corruptions(options: EvalCorruptionsOptions) -> None:
    """`mjp eval corruptions`: measures one corruption after another, prints, draws.

    The record of each corruption is written as soon as it is measured.
    """
    names = _names(options)
    prepared = find_prepared(Path(options.data).expanduser())
    if prepared and options.crop is None:
        options = replace(options, crop=1.0)  # Its files are cropped already.
    with Evaluation.open(options) as evaluation:
        run = evaluation.run
        clean = None if prepared else evaluation.open_source()
        sources = _sources(evaluation, names, clean, prepared)
        conditions = _conditions(evaluation, clean)
        outcomes: dict[str, dict[str, WrongAnswers]] = {label: {} for label in conditions}
        records = []
        for name, images in sources.items():
            files = {label: _outcome_file(name, each) for label, each in conditions.items()}
            known = {}
            if options.resume and run.leads:
                kept = {label: _read(run.out / file) for label, file in files.items()}
                known = {label: outcome for label, outcome in kept.items() if outcome is not None}
            # All processes measure what the leading one lacks.
            missing = run.team.gathered([*(files.keys() - known)] if run.leads else [])
            measured = _measure(evaluation, name, images, missing, made=not prepared)
            for label in files if run.leads else ():
                outcome = outcomes[label][name] = known.get(label) or measured[label]
                if label in measured:
                    wrong = {str(i): each.astype(np.uint8) for i, each in enumerate(outcome.wrong)}
                    unreadable = np.array([outcome.unreadable])
                    with run.file(files[label]) as part:
                        save_file({**wrong, "unreadable": unreadable}, part)
                if name != CLEAN:
                    record = corruption_record(name, outcome, conditions[label])
                    written = None if label in measured else run.done(record.key())
                    records.append(written or run.write(record)[0])
        if run.leads:
            summaries = [
                summary_record(outcomes[label], conditions[label], paired=not prepared)
                for label in conditions
            ]
            records += run.write(*summaries)
        finish(run, options, records, CORRUPTED)


@dataclass(frozen=True, eq=False)
class WrongAnswers:
    """What one model got wrong under one corruption: at each severity 1 for every image that it got
    wrong; and how many could not be read, at all severities together."""

    wrong: tuple[Float[np.ndarray, " images"], ...] = ()
    unreadable: int = 0

    @property
    def errors(self) -> tuple[float, ...]:
        """Top-1 error at each severity, between 0 and 1."""
        return tuple(float(wrong.mean()) for wrong in self.wrong)

    def by_image(self) -> Float[np.ndarray, " images"] | None:
        """Each image's mean over the severities; None where these are not of the same images."""
        if len({len(wrong) for wrong in self.wrong}) > 1:
            return None
        return np.stack(self.wrong, axis=1).mean(axis=1)


def _outcome_file(name: str, conditions: Mapping[str, Scalar]) -> str:
    """The same for the same weights under the same conditions, whatever the model is called."""
    key = Record(name, {**conditions, "model": None}, {}).key()
    digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    return f"corruptions/{name}-{digest}.safetensors"


def _read(file: Path) -> WrongAnswers | None:
    """What an earlier run measured; None where there is no such file."""
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError):
        return None
    unreadable = int(tensors.pop("unreadable")[0])
    wrong = tuple(tensors[str(place)].astype(float) for place in range(len(tensors)))
    return WrongAnswers(wrong, unreadable)


def _names(options: EvalCorruptionsOptions) -> tuple[str, ...]:
    keep = options.keep
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ConfigError(f"--keep {keep} is not an empty folder; name a new one")
    names = options.corruptions or CORRUPTIONS
    for name in names:
        check_corruption(name)
    return tuple(dict.fromkeys((*names, *(EXTRA_CORRUPTIONS if options.extra else ()))))


def _sources(
    evaluation: Evaluation[EvalCorruptionsOptions],
    names: Sequence[str],
    clean: Source | None,
    prepared: Mapping[str, list[Path]],
) -> dict[str, list[Source]]:
    """What each corruption is measured on: clean images, which it is made of, or else its files,
    severity by severity."""
    data, keep = evaluation.options.data, evaluation.options.keep
    if clean is not None:
        views = by_view(evaluation.subjects)
        if keep is not None and len(views) > 1:
            raise ConfigError("--keep writes images of one size; evaluate models of one size")
        for view in views:  # Raises where its images are too small.
            CorruptingDecoder(clean, view, names[0], evaluation.run.seed, keep=keep)
        return {name: [clean] for name in (CLEAN, *names)}
    if keep is not None:
        raise ConfigError(f"{data} holds corrupted images already; leave out --keep")
    if missing := [name for name in names if name not in prepared]:
        raise DataError(
            f"{data} lacks {', '.join(missing)}; choose among what is there with "
            f"--corruptions {' '.join(prepared)}"
        )
    opened = {name: map(FolderSource, prepared[name]) for name in names}
    return {name: [*map(evaluation.some_of, each)] for name, each in opened.items()}


def _conditions(
    evaluation: Evaluation[EvalCorruptionsOptions], clean: Source | None
) -> dict[str, dict[str, Scalar]]:
    options = evaluation.options
    made: dict[str, Scalar] = {"corrupted": "made here" if clean else "from files"}
    if clean:
        made |= {"images": len(clean), "jpeg_quality": options.jpeg or None}
    data = clean.name if clean else options.data
    more = {"among": options.among, "skip_corrupt": options.skip_corrupt, **made}
    conditions = evaluation.conditions(data, **more)
    for each in conditions.values():
        # Among fewer classes than ImageNet's, AlexNet's errors are no measure.
        each["imagenet"] = bool(each["imagenet"]) and options.among == "all"
    return conditions


@dataclass(frozen=True, eq=False)
class ErrorScorer:
    """Gives each image a row: whether the model gets it wrong, in each of its versions; among all
    of the model's classes, or only those of the data."""

    subject: Subject
    columns: int
    outputs: Int64[Tensor, " classes"]
    batch: int = BLOCK
    among_data: bool = False

    def score(self, block: Block, advance: Progress) -> Float[Tensor, "batch columns"]:
        """Runs the model on all versions of a block's images."""
        images = block.images if block.images.dim() == 5 else block.images[:, None]
        labels = block.labels if self.among_data else self.outputs[block.labels]
        logits = self.subject.logits(images.flatten(0, 1), self.batch, advance)
        logits = logits[:, self.outputs] if self.among_data else logits
        wrong = logits.argmax(dim=1) != labels.repeat_interleave(self.columns)
        return wrong.reshape(-1, self.columns).float()


def _measure(
    evaluation: Evaluation[EvalCorruptionsOptions],
    name: str,
    sources: Sequence[Source],
    labels: Sequence[str],
    *,
    made: bool,
) -> dict[str, WrongAnswers]:
    """What some of the models get wrong; the corruption is made of the images, or in them."""
    options, corrupts = evaluation.options, made and name != CLEAN
    versions = len(SEVERITIES) if corrupts else 1
    missing = [subject for subject in evaluation.subjects if subject.label in labels]
    outcomes = {label: WrongAnswers() for label in labels}
    for source in sources if labels else ():

        def decoder(view: View, source: Source = source) -> CorruptingDecoder:
            quality, keep = options.jpeg or None, options.keep
            return CorruptingDecoder(source, view, name, options.seed, quality=quality, keep=keep)

        def scorer(subject: Subject, batch: int, source: Source = source) -> ErrorScorer:
            outputs = class_outputs(subject.model, source.classes, source.name)
            outputs = outputs.to(evaluation.run.device)
            return ErrorScorer(subject, versions, outputs, batch, options.among == "data")

        decode = decoder if corrupts else None
        what = name.replace("_", " ")
        for subject, rows in evaluation.measure(source, what, scorer, decode, missing, versions):
            before = outcomes[subject.label]
            wrong, unreadable = rows.read().T, before.unreadable + rows.unreadable
            outcomes[subject.label] = WrongAnswers((*before.wrong, *wrong), unreadable)
    return outcomes


def corruption_record(name: str, outcome: WrongAnswers, conditions: Mapping[str, Scalar]) -> Record:
    """Errors in percent; over AlexNet's where the classes are ImageNet's."""
    errors = [100 * error for error in outcome.errors]
    alexnet = ALEXNET_ERRORS.get(name) if conditions.get("imagenet") else None
    mean = _mean([outcome])
    values: dict[str, Scalar] = {
        **{f"error_{severity}": e for severity, e in zip(SEVERITIES, errors, strict=True)},
        **mean.percent().values("error"),
        "images": len(outcome.wrong[0]),
        "unreadable": outcome.unreadable,
        "relative_to_alexnet": None if alexnet is None else 100 * mean.mean / alexnet,
    }
    return Record("eval corruption", {**conditions, "corruption": name}, values)


def summary_record(
    outcomes: Mapping[str, WrongAnswers], conditions: Mapping[str, Scalar], *, paired: bool
) -> Record:
    """mCE, normalised by AlexNet and not, where all fifteen corruptions were measured; with
    intervals where they are paired: of the same images."""
    clean = outcomes.get(CLEAN)
    values: dict[str, Scalar] = {
        "clean_error": None if clean is None else 100 * clean.errors[0],
        "corruptions": len(outcomes.keys() - {CLEAN}),
    }
    if outcomes.keys() >= set(CORRUPTIONS):
        all_of_them = [outcomes[name] for name in CORRUPTIONS]
        values |= _mean(all_of_them, paired=paired).percent().values("mean_error")
        if conditions.get("imagenet"):
            alexnet = [ALEXNET_ERRORS[name] for name in CORRUPTIONS]
            values |= _mean(all_of_them, alexnet, paired=paired).scaled(100).values("mce")
    return Record("eval corruption summary", dict(conditions), values)


def _mean(
    outcomes: Sequence[WrongAnswers], divisors: Sequence[float] = (), *, paired: bool = True
) -> Estimate:
    """The mean over corruptions of each one's error over its divisor; its interval, where all are
    of the same images."""
    divisors = divisors or [1.0] * len(outcomes)
    pairs = list(zip(outcomes, divisors, strict=True))
    point = float(np.mean([np.mean(outcome.errors) / divisor for outcome, divisor in pairs]))
    rows = [
        errors / divisor
        for outcome, divisor in pairs
        if paired and (errors := outcome.by_image()) is not None
    ]
    if len(rows) < len(outcomes):
        return Estimate(point, math.nan, math.nan)
    return replace(estimates(np.mean(rows, axis=0)[:, None])[0], mean=point)
