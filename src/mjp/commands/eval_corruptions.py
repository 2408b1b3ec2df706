"""`mjp eval corruptions`: errors on ImageNet-C, from its files or made of clean images."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
from rich.table import Table
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from mjp.commands.evaluating import (
    Evaluation,
    evaluation,
    finish,
    is_imagenet,
    numbers,
    unreadable,
    with_interval,
)
from mjp.commands.options import EvalCorruptionsOptions
from mjp.commands.terminal import meter
from mjp.core.errors import ConfigError, DataError
from mjp.core.ranges import check_count
from mjp.core.records import Record, Scalar, append_records
from mjp.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    CorruptingDecoder,
    check_corruption,
    find_prepared,
)
from mjp.data.folder import FolderSource
from mjp.data.source import Source
from mjp.data.viewing import Reader, reader
from mjp.evaluate.corruption import (
    CorruptionErrors,
    ErrorCounter,
    corruption_record,
    summary_record,
)
from mjp.evaluate.showing import show
from mjp.evaluate.subject import Subject, by_view
from mjp.report import paper
from mjp.report.corruptions import draw_corruptions

Wrong = dict[str, list[np.ndarray]]
"""For each model, at each severity, 1 for every image it got wrong and 0 for the others."""


def run(options: EvalCorruptionsOptions) -> None:
    """Measures one corruption after another, and writes each down as soon as it is measured."""
    names = _names(options)
    prepared = find_prepared(Path(options.data).expanduser())
    if prepared and options.crop is None:
        options = replace(options, crop=1.0)  # Its files are cropped already.
    with evaluation(options, options.out) as work:
        task: _Task = _Prepared(work, options, prepared) if prepared else _Made(work, options)
        task.check(names)
        clean = task.clean()
        errors: dict[str, dict[str, CorruptionErrors]] = {s.label: {} for s in work.subjects}
        records: list[Record] = []
        for name in names:
            wrong = _measured(name, task, work, options)
            for subject in work.subjects:
                found = CorruptionErrors.of(
                    wrong[subject.label], options.seed, paired=task.source is not None
                )
                errors[subject.label][name] = found
                facts, imagenet = task.facts(subject), is_imagenet(subject)
                records.append(corruption_record(name, found, facts, imagenet=imagenet))
                if work.team.leads:
                    append_records(options.out / "records.jsonl", records[-1:])
        if not work.team.leads:
            return
    summaries = [
        summary_record(
            errors[subject.label],
            clean.get(subject.label),
            task.facts(subject),
            options.seed,
            imagenet=is_imagenet(subject),
        )
        for subject in work.subjects
    ]
    append_records(options.out / "records.jsonl", summaries)
    records += summaries
    paths = draw_corruptions(records, options.out)
    notes = _notes(records) + unreadable(task.readers, options.out)
    finish(options, records, [corruption_table(records)], paths, notes, written=True)


def _names(options: EvalCorruptionsOptions) -> tuple[str, ...]:
    check_count("jpeg", options.jpeg, 0)
    if options.jpeg > 95:
        raise ConfigError(f"jpeg is a quality of at most 95, or 0 for none; got {options.jpeg}")
    if options.keep is not None and (options.skip_corrupt or not options.jpeg):
        raise ConfigError(
            "--keep writes whole sets of JPEG files; leave out --skip-corrupt, --jpeg 0"
        )
    names = options.corruptions or CORRUPTIONS
    for name in names:
        check_corruption(name)
    return tuple(dict.fromkeys((*names, *(EXTRA_CORRUPTIONS if options.extra else ()))))


class _Task(Protocol):
    """Where corrupted images come from.

    `source` is the clean set that all of them are made of, where there is one.
    """

    source: Source | None
    readers: list[Reader]

    def check(self, names: tuple[str, ...]) -> None:
        """Raises where a corruption cannot be had."""

    def clean(self) -> dict[str, float]:
        """The error of each model without corruption, where it can be measured."""

    def measure(self, name: str) -> Wrong:
        """Runs all models under one corruption."""

    def facts(self, subject: Subject) -> dict[str, Scalar]:
        """The conditions of one model's numbers."""


class _Made:
    """Corruptions made of a clean set, on the way to the models."""

    def __init__(self, work: Evaluation, options: EvalCorruptionsOptions) -> None:
        self.source: Source | None = work.open()
        self._clean = self.source
        self._work = work
        self._options = options
        self._outputs = work.outputs(self._clean)
        self.readers: list[Reader] = []

    def check(self, names: tuple[str, ...]) -> None:
        if self._options.keep is not None and len(by_view(self._work.subjects)) > 1:
            raise ConfigError("--keep writes images of one size; evaluate models of one size")

    def clean(self) -> dict[str, float]:
        wrong = self._run("clean images", None)
        return {label: float(one[0].mean()) for label, one in wrong.items()}

    def measure(self, name: str) -> Wrong:
        return self._run(name.replace("_", " "), name)

    def _run(self, what: str, name: str | None) -> Wrong:
        work, options, source = self._work, self._options, self._clean
        wrong: Wrong = {}
        for view, subjects in by_view(work.subjects).items():
            if name is None:
                blocks = reader(
                    source, view, work.team, work.workers, skip_corrupt=options.skip_corrupt
                )
            else:
                decoder = CorruptingDecoder(
                    source,
                    view,
                    name,
                    options.seed,
                    quality=options.jpeg or None,
                    keep=options.keep,
                )
                blocks = Reader(
                    source, decoder, work.team, work.workers, skip_corrupt=options.skip_corrupt
                )
            self.readers.append(blocks)
            versions = 1 if name is None else len(SEVERITIES)
            wrong |= _count(work, subjects, blocks, versions, self._outputs, what)
        return wrong

    def facts(self, subject: Subject) -> dict[str, Scalar]:
        facts = self._work.facts(subject, self._clean)
        return {**facts, "corrupted": "made here", "jpeg_quality": self._options.jpeg or None}


class _Prepared:
    """A copy of ImageNet-C on disk."""

    source: Source | None = None

    def __init__(
        self, work: Evaluation, options: EvalCorruptionsOptions, folders: dict[str, list[Path]]
    ) -> None:
        if options.keep is not None:
            raise ConfigError(f"{options.data} holds corrupted images already; leave out --keep")
        self._work = work
        self._options = options
        self._folders = folders
        self.readers: list[Reader] = []

    def check(self, names: tuple[str, ...]) -> None:
        missing = [name for name in names if name not in self._folders]
        if missing:
            raise DataError(
                f"{self._options.data} lacks {', '.join(missing)}; choose among what is there with "
                f"--corruptions {' '.join(self._folders)}"
            )

    def clean(self) -> dict[str, float]:
        return {}

    def measure(self, name: str) -> Wrong:
        wrong: Wrong = {subject.label: [] for subject in self._work.subjects}
        for folder in self._folders[name]:
            source = self._work.chosen(FolderSource(folder))
            outputs = self._work.outputs(source)
            what = f"{name.replace('_', ' ')}, severity {folder.name}"
            for view, subjects in by_view(self._work.subjects).items():
                blocks = reader(
                    source,
                    view,
                    self._work.team,
                    self._work.workers,
                    skip_corrupt=self._options.skip_corrupt,
                )
                self.readers.append(blocks)
                found = _count(self._work, subjects, blocks, 1, outputs, what)
                for label, one in found.items():
                    wrong[label] += one
        return wrong

    def facts(self, subject: Subject) -> dict[str, Scalar]:
        folder = next(iter(self._folders.values()))[0]
        facts = self._work.facts(subject, FolderSource(folder))
        return {**facts, "data": self._options.data, "corrupted": "from files"}


def _count(
    work: Evaluation,
    subjects: list[Subject],
    blocks: Reader,
    versions: int,
    outputs: dict[str, Tensor],
    what: str,
) -> Wrong:
    images = len(blocks.source)
    counters = [
        ErrorCounter(
            subject,
            images,
            versions,
            outputs[subject.label],
            work.team,
            work.options.batch,
        )
        for subject in subjects
    ]
    with meter(what, -(-images // work.team.size), shown=work.team.leads) as tell:
        show(counters, blocks, tell)
    return {counter.subject.label: list(counter.errors().T) for counter in counters}


def _measured(name: str, task: _Task, work: Evaluation, options: EvalCorruptionsOptions) -> Wrong:
    """One corruption's outcome: from an earlier run where that is wanted and fits, else measured.

    What every model got wrong is kept in a file for each corruption.
    """
    file = options.out / "corruptions" / f"{name}.safetensors"
    facts = {subject.label: task.facts(subject) for subject in work.subjects}
    conditions = json.dumps(facts, sort_keys=True)
    if options.resume:
        known = _read(file, conditions, list(facts))
        if known is not None:
            return known
    wrong = task.measure(name)
    if work.team.leads:
        file.parent.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{place}/{severity}": one.astype(np.uint8)
            for place, label in enumerate(facts)
            for severity, one in zip(SEVERITIES, wrong[label], strict=True)
        }
        save_file(tensors, file, metadata={"conditions": conditions})
    return wrong


def _read(file: Path, conditions: str, labels: list[str]) -> Wrong | None:
    """What an earlier run found under the same conditions; None where there is no such."""
    try:
        with safe_open(file, framework="numpy") as content:
            if (content.metadata() or {}).get("conditions") != conditions:
                return None
            return {
                label: [content.get_tensor(f"{place}/{s}").astype(float) for s in SEVERITIES]
                for place, label in enumerate(labels)
            }
    except (OSError, SafetensorError):
        return None


def corruption_table(records: list[Record]) -> Table:
    """A row for each corruption; for each model its error and, on ImageNet, over AlexNet's."""
    labels = list(dict.fromkeys(str(record.conditions["model"]) for record in records))
    cells: dict[str, dict[str, Record]] = {}
    summaries: dict[str, Record] = {}
    for record in records:
        label = str(record.conditions["model"])
        if record.kind == "eval corruption":
            cells.setdefault(str(record.conditions["corruption"]), {})[label] = record
        else:
            summaries[label] = record
    beside = {label: paper.robustness(summaries[label].conditions) for label in labels}
    table = Table(title="top-1 error, %, mean over five severities; 95 % intervals")
    table.add_column("corruption", no_wrap=True)
    for label in labels:
        numbers(table, label, "÷ AlexNet's")
        if beside[label]:
            numbers(table, "paper")
    for name, row in cells.items():
        line = []
        for label in labels:
            values, told = row[label].values, beside[label]
            relative = values["relative_to_alexnet"]
            line += [with_interval(values, "error")]
            line += [f"{relative:.1f}" if isinstance(relative, float) else "–"]
            if told:
                line += [f"{told.errors[name]:.1f}" if name in told.errors else ""]
        table.add_row(name.replace("_", " "), *line)
    table.add_section()
    line = []
    for label in labels:
        values, told = summaries[label].values, beside[label]
        line += [with_interval(values, "mean_error"), with_interval(values, "mce")]
        if told:
            line += [f"{told.printed_mean:.1f}; mCE {told.mce:.1f}"]
    table.add_row("all fifteen: mean, mCE", *line)
    line = []
    for label in labels:
        line += [f"{value:.2f}" if (value := summaries[label].values["clean_error"]) else "–", ""]
        line += [""] if beside[label] else []
    table.add_row("clean", *line)
    return table


def _notes(records: list[Record]) -> tuple[str, ...]:
    notes = []
    if any(paper.robustness(record.conditions) for record in records):
        notes.append(
            "note: the paper prints ten of the fifteen corruptions; for DeiT-S with MJP their mean "
            "is 43.2, not the 41.5 printed"
        )
    if any(r.values.get("relative_to_alexnet", 0) is None for r in records):
        notes.append(
            "note: AlexNet's errors are those on ImageNet's classes and the fifteen corruptions; "
            "elsewhere there is no normalised error"
        )
    return tuple(notes)
