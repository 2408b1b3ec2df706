"""Errors under corruption: ImageNet-C, from its files or made of clean images on the way."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from mjp.core.errors import ConfigError, DataError
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
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
from mjp.evaluate.metrics import ALEXNET_ERRORS, mean_corruption_error
from mjp.evaluate.tables import CORRUPTED
from mjp.models.facts import class_outputs
from mjp.models.subject import Subject, by_view

NAN = float("nan")
CLEAN = "clean"
"""Stands for no corruption."""


def run_corruptions(options: EvalCorruptionsOptions) -> None:
    """`mjp eval corruptions`: measures one corruption after another, prints, draws."""
    names = _names(options)
    prepared = find_prepared(Path(options.data).expanduser())
    if prepared and options.crop is None:
        options = replace(options, crop=1.0)  # Its files are cropped already.
    with evaluation(options) as (run, subjects):
        if prepared:
            sets = _prepared_sets(names, prepared, options)
        else:
            sets = _made_sets(names, options, subjects)
        records = evaluate_corruptions(run, subjects, sets, options)
        finish(run, options, records, CORRUPTED)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images that errors are counted on.

    Args:
        what: they are, in words.
        versions: how many severities of each image the decoder makes.
        decoder: makes them; None shows the images as they are.
    """

    source: Source
    what: str
    versions: int = 1
    decoder: Callable[[View], CorruptingDecoder] | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one model got wrong under one corruption.

    Args:
        wrong: at each severity, 1 for every image it got wrong and 0 for the others.
        unreadable: how many images could not be read, at all severities together.
    """

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


def evaluate_corruptions(
    run: Run,
    subjects: Sequence[Subject],
    sets: Mapping[str, Sequence[ImageSet]],
    options: EvalCorruptionsOptions,
) -> list[Record]:
    """The records of each corruption, written as soon as it is measured, and of all together.

    Args:
        sets: the images of each corruption; those of `CLEAN` are the same ones, untouched.
    """
    made = CLEAN in sets
    data = sets[CLEAN][0].source if made else None
    conditions = {subject.label: _conditions(subject, options, data) for subject in subjects}
    outcomes: dict[str, dict[str, Outcome]] = {subject.label: {} for subject in subjects}
    records = []
    for name, images in sets.items():
        known = _known(run, name, conditions) if options.resume else {}
        missing = _agreed(run, [s for s in subjects if s.label not in known], subjects)
        measured = _measure(run, missing, images, options)
        for label, outcome in {**known, **measured}.items() if run.leads else ():
            outcomes[label][name] = outcome
            if label in measured:
                _keep(run, name, conditions[label], outcome)
            if name != CLEAN:
                record = corruption_record(name, outcome, conditions[label])
                written = None if label in measured else run.done(record.key())
                records.append(written or run.write(record)[0])
    summaries = [
        summary_record(outcomes[label], conditions[label], paired=made)
        for label in outcomes
        if run.leads
    ]
    return [*records, *run.write(*summaries)]


def _names(options: EvalCorruptionsOptions) -> tuple[str, ...]:
    keep = options.keep
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ConfigError(f"--keep {keep} is not an empty folder; name a new one")
    names = options.corruptions or CORRUPTIONS
    for name in names:
        check_corruption(name)
    return tuple(dict.fromkeys((*names, *(EXTRA_CORRUPTIONS if options.extra else ()))))


def _prepared_sets(
    names: Sequence[str], folders: Mapping[str, list[Path]], options: EvalCorruptionsOptions
) -> dict[str, list[ImageSet]]:
    """The files of each corruption, severity by severity."""
    if options.keep is not None:
        raise ConfigError(f"{options.data} holds corrupted images already; leave out --keep")
    if missing := [name for name in names if name not in folders]:
        raise DataError(
            f"{options.data} lacks {', '.join(missing)}; choose among what is there with "
            f"--corruptions {' '.join(folders)}"
        )
    return {
        name: [
            ImageSet(
                some_of(FolderSource(folder), options),
                f"{name.replace('_', ' ')}, severity {folder.name}",
            )
            for folder in folders[name]
        ]
        for name in names
    }


def _made_sets(
    names: Sequence[str], options: EvalCorruptionsOptions, subjects: Sequence[Subject]
) -> dict[str, list[ImageSet]]:
    """Clean images, and the corruptions that are made of them."""
    source = open_source(options)
    views = by_view(subjects)
    if options.keep is not None and len(views) > 1:
        raise ConfigError("--keep writes images of one size; evaluate models of one size")
    for view in views:
        _decoder(names[0], source, options, view)  # Raises where the images are too small.
    sets = {CLEAN: [ImageSet(source, "clean images")]}
    for name in names:
        decoder = partial(_decoder, name, source, options)
        sets[name] = [ImageSet(source, name.replace("_", " "), len(SEVERITIES), decoder)]
    return sets


def _decoder(
    name: str, source: Source, options: EvalCorruptionsOptions, view: View
) -> CorruptingDecoder:
    quality = options.jpeg or None
    return CorruptingDecoder(source, view, name, options.seed, quality=quality, keep=options.keep)


def _conditions(
    subject: Subject, options: EvalCorruptionsOptions, made_of: Source | None
) -> dict[str, Scalar]:
    facts = conditions_of(subject, made_of.name if made_of else options.data, options)
    made: dict[str, Scalar] = {}
    if made_of:
        made = {"images": len(made_of), "jpeg_quality": options.jpeg or None}
    return {
        **facts,
        "among": options.among,
        # Among fewer classes than ImageNet's, AlexNet's errors are no measure.
        "imagenet": bool(facts["imagenet"]) and options.among == "all",
        "skip_corrupt": options.skip_corrupt,
        "corrupted": "made here" if made_of else "from files",
        **made,
    }


@dataclass(frozen=True, eq=False)
class ErrorScorer:
    """Gives each image a row: whether the model gets it wrong, in each of its versions.

    Args:
        outputs: the model's output for each class of the data; on the device.
        among_data: whether only the classes of the data compete, not all of the model's.
    """

    subject: Subject
    columns: int
    outputs: Int64[Tensor, " classes"]
    batch: int = BLOCK
    among_data: bool = False

    @property
    def passes(self) -> int:
        return self.columns

    def score(self, block: Block, advance: Advance) -> Float[Tensor, "batch columns"]:
        """Runs the model on all versions of a block's images."""
        images = block.images if block.images.dim() == 5 else block.images[:, None]
        labels = block.labels if self.among_data else self.outputs[block.labels]
        logits = self.subject.logits(images.flatten(0, 1), self.batch, advance)
        logits = logits[:, self.outputs] if self.among_data else logits
        wrong = logits.argmax(dim=1) != labels.repeat_interleave(self.columns)
        return wrong.reshape(-1, self.columns).float()


def _measure(
    run: Run,
    subjects: Sequence[Subject],
    sets: Sequence[ImageSet],
    options: EvalCorruptionsOptions,
) -> dict[str, Outcome]:
    """What each model gets wrong."""
    outcomes = {subject.label: Outcome() for subject in subjects}
    for images in sets if subjects else ():

        def scorer(subject: Subject, images: ImageSet = images) -> ErrorScorer:
            outputs = class_outputs(subject.model, images.source.classes, images.source.name)
            return ErrorScorer(
                subject,
                images.versions,
                outputs.to(run.device),
                batch_size(run, options),
                options.among == "data",
            )

        for subject, rows in measure(
            run, subjects, images.source, options, images.what, scorer, images.decoder
        ):
            before = outcomes[subject.label]
            outcomes[subject.label] = Outcome(
                (*before.wrong, *rows.read().T), before.unreadable + rows.unreadable
            )
    return outcomes


def _agreed(run: Run, missing: Sequence[Subject], subjects: Sequence[Subject]) -> list[Subject]:
    """Those that the leading process misses: all processes measure the same."""
    flags = [float(run.leads and subject in missing) for subject in subjects]
    total = run.team.total(torch.tensor(flags, device=run.device)).tolist()
    return [subject for subject, flag in zip(subjects, total, strict=True) if flag]


def _outcome_file(name: str, conditions: Mapping[str, Scalar]) -> str:
    """The same for the same weights under the same conditions, whatever the model is called."""
    key = Record(name, {**conditions, "model": None}, {}).key()
    digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    return f"corruptions/{name}-{digest}.safetensors"


def _keep(run: Run, name: str, conditions: Mapping[str, Scalar], outcome: Outcome) -> None:
    tensors = {str(n): wrong.astype(np.uint8) for n, wrong in enumerate(outcome.wrong)}
    with run.file(_outcome_file(name, conditions)) as part:
        save_file({**tensors, "unreadable": np.array([outcome.unreadable])}, part)


def _known(
    run: Run, name: str, conditions: Mapping[str, Mapping[str, Scalar]]
) -> dict[str, Outcome]:
    """What an earlier run in the folder found, of each model that it measured."""
    found = {}
    for label, facts in conditions.items():
        try:
            tensors = load_file(run.out / _outcome_file(name, facts))
            unreadable = int(tensors.pop("unreadable")[0])
        except (OSError, SafetensorError, KeyError):
            continue
        wrong = tuple(tensors[str(place)].astype(float) for place in range(len(tensors)))
        found[label] = Outcome(wrong, unreadable)
    return found


def corruption_record(name: str, outcome: Outcome, conditions: Mapping[str, Scalar]) -> Record:
    """Errors in percent; over AlexNet's where the classes are ImageNet's."""
    by_image = outcome.by_image()
    mean = Estimate(float(np.mean(outcome.errors)), NAN, NAN)
    if by_image is not None:
        mean = estimates(by_image[:, None])[0]
    alexnet = ALEXNET_ERRORS.get(name) if conditions.get("imagenet") else None
    values: dict[str, Scalar] = {
        **{
            f"error_{severity}": 100 * error
            for severity, error in zip(SEVERITIES, outcome.errors, strict=True)
        },
        **mean.percent().values("error"),
        "images": len(outcome.wrong[0]),
        "unreadable": outcome.unreadable,
        "relative_to_alexnet": None if alexnet is None else 100 * mean.mean / alexnet,
    }
    return Record("eval corruption", {**conditions, "corruption": name}, values)


def summary_record(
    outcomes: Mapping[str, Outcome], conditions: Mapping[str, Scalar], *, paired: bool
) -> Record:
    """mCE, normalised by AlexNet and not, where all fifteen corruptions were measured.

    Args:
        outcomes: of each corruption, and of `CLEAN` where that was measured.
        paired: whether all are of the same images.
    """
    clean = outcomes.get(CLEAN)
    values: dict[str, Scalar] = {
        "clean_error": None if clean is None else 100 * clean.errors[0],
        "corruptions": len(outcomes.keys() - {CLEAN}),
    }
    if outcomes.keys() >= set(CORRUPTIONS):
        errors = {name: outcomes[name].errors for name in CORRUPTIONS}
        images = [outcomes[name].by_image() if paired else None for name in CORRUPTIONS]
        plain = float(np.mean([np.mean(each) for each in errors.values()]))
        values |= _estimate(plain, images).percent().values("mean_error")
        if conditions.get("imagenet"):
            alexnet = [ALEXNET_ERRORS[name] for name in CORRUPTIONS]
            mce = _estimate(mean_corruption_error(errors), images, alexnet)
            values |= mce.scaled(100.0).values("mce")
    return Record("eval corruption summary", dict(conditions), values)


def _estimate(
    point: float,
    images: Sequence[Float[np.ndarray, " images"] | None],
    divisors: Sequence[float] = (1.0,) * len(CORRUPTIONS),
) -> Estimate:
    """A mean over corruptions, each divided by its divisor; its interval, where all are of the same
    images."""
    rows = [row / by for row, by in zip(images, divisors, strict=True) if row is not None]
    if len(rows) < len(images):
        return Estimate(point, NAN, NAN)
    found = estimates(np.mean(rows, axis=0)[:, None])[0]
    return Estimate(point, found.low, found.high)
