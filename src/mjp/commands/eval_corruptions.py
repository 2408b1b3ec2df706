"""`mjp eval corruptions`: errors on ImageNet-C, from its files or made of clean images."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from rich.table import Table

from mjp.commands.evaluating import (
    Evaluation,
    evaluation,
    finish,
    label_of,
    numbers,
    unreadable,
)
from mjp.commands.keeping import Outcome, keep, kept
from mjp.commands.options import EvalCorruptionsOptions
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
from mjp.data.decoding import View
from mjp.data.source import FolderSource, Source
from mjp.evaluate.corruption import (
    CorruptionErrors,
    ErrorCounter,
    corruption_record,
    summary_record,
)
from mjp.models.subject import Subject, by_view
from mjp.report import paper
from mjp.report.corruptions import draw_corruptions
from mjp.report.reading import with_interval

CLEAN = "clean"


def run(options: EvalCorruptionsOptions) -> None:
    """Measures one corruption after another, and writes each down as soon as it is measured."""
    names = _names(options)
    prepared = find_prepared(Path(options.data).expanduser())
    if prepared and options.crop is None:
        options = replace(options, crop=1.0)  # Its files are cropped already.
    with evaluation(options, options.out) as work:
        task: _Task = _Prepared(work, options, prepared) if prepared else _Made(work, options)
        task.check(names)
        clean: dict[str, Outcome] = {}
        if task.paired:
            clean, _ = _measured(CLEAN, task, work, options)
        records: list[Record] = []
        errors: dict[str, dict[str, CorruptionErrors]] = {s.label: {} for s in work.subjects}
        for name in names:
            outcomes, fresh = _measured(name, task, work, options)
            for subject in work.subjects if work.team.leads else ():
                outcome = outcomes[subject.label]
                found = CorruptionErrors.of(
                    outcome.wrong, options.seed, paired=task.paired, unreadable=outcome.unreadable
                )
                errors[subject.label][name] = found
                record = corruption_record(name, found, task.facts(subject))
                records.append(record)
                if subject.label in fresh:
                    append_records(options.out / "records.jsonl", [record])
        if not work.team.leads:
            return
    summaries = [
        summary_record(
            errors[subject.label],
            float(clean[subject.label].wrong[0].mean()) if clean else None,
            task.facts(subject),
            options.seed,
        )
        for subject in work.subjects
    ]
    records += summaries
    notes = _notes(records) + unreadable(work.problems, options.out)
    draw = partial(draw_corruptions, records, options.out)
    finish(options, records, [corruption_table(records)], draw, notes, unwritten=summaries)


def _names(options: EvalCorruptionsOptions) -> tuple[str, ...]:
    check_count("jpeg", options.jpeg, 0)
    if options.jpeg > 95:
        raise ConfigError(f"jpeg is a quality of at most 95, or 0 for none; got {options.jpeg}")
    if options.keep is not None:
        if options.skip_corrupt or options.resume or not options.jpeg:
            raise ConfigError(
                "--keep writes whole sets of JPEG files; leave out --skip-corrupt, --resume and "
                "--jpeg 0"
            )
        if options.keep.exists() and (not options.keep.is_dir() or any(options.keep.iterdir())):
            raise ConfigError(f"--keep {options.keep} is not an empty folder; name a new one")
    names = options.corruptions or CORRUPTIONS
    for name in names:
        check_corruption(name)
    return tuple(dict.fromkeys((*names, *(EXTRA_CORRUPTIONS if options.extra else ()))))


def _measured(
    name: str, task: "_Task", work: Evaluation, options: EvalCorruptionsOptions
) -> tuple[dict[str, Outcome], set[str]]:
    """One corruption's outcome for each model, and which of them were measured now.

    With `--resume`, what an earlier run found for the same weights under the same conditions is
    taken. The leading process decides, so that all measure the same; the others get no outcomes.
    """
    folder = options.out / "corruptions"
    outcomes: dict[str, Outcome] = {}
    for subject in work.subjects if options.resume and work.team.leads else ():
        known = kept(folder, name, task.facts(subject))
        if known is not None:
            outcomes[subject.label] = known
    flags = [float(subject.label in outcomes) for subject in work.subjects]
    taken = work.team.total(torch.tensor(flags, device=work.team.device)).tolist()
    missing = [subject for subject, flag in zip(work.subjects, taken, strict=True) if not flag]
    if missing:
        for label, outcome in task.measure(name, replace(work, subjects=missing)).items():
            outcomes[label] = outcome
    fresh = {subject.label for subject in missing}
    for subject in missing if work.team.leads else ():
        keep(folder, name, task.facts(subject), outcomes[subject.label])
    return outcomes, fresh


class _Task(Protocol):
    """Where corrupted images come from.

    `paired` says whether all corruptions are of the same images.
    """

    paired: bool

    def check(self, names: tuple[str, ...]) -> None:
        """Raises where a corruption cannot be had."""

    def measure(self, name: str, work: Evaluation) -> dict[str, Outcome]:
        """Runs the models under one corruption, or on clean images."""

    def facts(self, subject: Subject) -> dict[str, Scalar]:
        """The conditions of one model's numbers."""


class _Made:
    """Corruptions made of a clean set, on the way to the models."""

    paired = True

    def __init__(self, work: Evaluation, options: EvalCorruptionsOptions) -> None:
        self._source = work.open()
        self._work = work
        self._options = options
        self._outputs = work.outputs(self._source)

    def check(self, names: tuple[str, ...]) -> None:
        if self._options.keep is not None and len(by_view(self._work.subjects)) > 1:
            raise ConfigError("--keep writes images of one size; evaluate models of one size")
        for view in by_view(self._work.subjects):
            self._decoder(names[0], view)  # Raises where the images are too small.

    def _decoder(self, name: str, view: View) -> CorruptingDecoder:
        return CorruptingDecoder(
            self._source,
            view,
            name,
            self._options.seed,
            quality=self._options.jpeg or None,
            keep=self._options.keep,
        )

    def measure(self, name: str, work: Evaluation) -> dict[str, Outcome]:
        among_data = self._options.among == "data"
        count = partial(_count, work, self._source, among_data=among_data)
        if name == CLEAN:
            return count("clean images", self._outputs)
        decoder = partial(self._decoder, name)
        return count(name.replace("_", " "), self._outputs, len(SEVERITIES), decoder)

    def facts(self, subject: Subject) -> dict[str, Scalar]:
        facts = self._work.facts(subject, self._source.name)
        return {
            **facts,
            "images": len(self._source),
            **_among(facts, self._options),
            "skip_corrupt": self._options.skip_corrupt,
            "corrupted": "made here",
            "jpeg_quality": self._options.jpeg or None,
        }


class _Prepared:
    """A copy of ImageNet-C on disk."""

    paired = False

    def __init__(
        self, work: Evaluation, options: EvalCorruptionsOptions, folders: dict[str, list[Path]]
    ) -> None:
        if options.keep is not None:
            raise ConfigError(f"{options.data} holds corrupted images already; leave out --keep")
        self._work = work
        self._options = options
        self._folders = folders

    def check(self, names: tuple[str, ...]) -> None:
        missing = [name for name in names if name not in self._folders]
        if missing:
            raise DataError(
                f"{self._options.data} lacks {', '.join(missing)}; choose among what is there with "
                f"--corruptions {' '.join(self._folders)}"
            )

    def measure(self, name: str, work: Evaluation) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        for folder in self._folders[name]:
            source = work.chosen(FolderSource(folder))
            what = f"{name.replace('_', ' ')}, severity {folder.name}"
            among_data = self._options.among == "data"
            counted = _count(work, source, what, work.outputs(source), among_data=among_data)
            for label, one in counted.items():
                found[label] = found[label].with_more(one) if label in found else one
        return found

    def facts(self, subject: Subject) -> dict[str, Scalar]:
        facts = self._work.facts(subject, self._options.data)
        return {
            **facts,
            **_among(facts, self._options),
            "skip_corrupt": self._options.skip_corrupt,
            "corrupted": "from files",
        }


def _among(facts: dict[str, Scalar], options: EvalCorruptionsOptions) -> dict[str, Scalar]:
    """Which classes compete; among fewer than ImageNet's, AlexNet's errors are no measure."""
    return {
        "among": options.among,
        "imagenet": bool(facts["imagenet"]) and options.among == "all",
    }


def _count(
    work: Evaluation,
    source: Source,
    what: str,
    outputs: dict[str, torch.Tensor],
    versions: int = 1,
    decoder: partial[CorruptingDecoder] | None = None,
    *,
    among_data: bool,
) -> dict[str, Outcome]:
    def counter(subject: Subject) -> ErrorCounter:
        mapped = outputs[subject.label]
        return ErrorCounter(
            subject, len(source), versions, mapped, work.team, work.batch, among_data=among_data
        )

    found = {}
    for counters in work.shown(source, what, counter, decoder):
        for one in counters:
            errors = one.errors()
            found[one.subject.label] = Outcome(list(errors.T), len(source) - len(errors))
    return found


def corruption_table(records: list[Record]) -> Table:
    """A row for each corruption; for each model its error and, on ImageNet, over AlexNet's."""
    labels = list(dict.fromkeys(label_of(record) for record in records))
    cells: dict[str, dict[str, Record]] = {}
    summaries: dict[str, Record] = {}
    for record in records:
        label = label_of(record)
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
        value = summaries[label].values["clean_error"]
        line += [f"{value:.2f}" if isinstance(value, float) else "–", ""]
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
