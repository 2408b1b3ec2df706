"""What the verbs that evaluate have in common: models, data, conditions, where results go."""

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from mjp import __version__
from mjp.commands.options import EvaluationOptions
from mjp.commands.terminal import choose_device, hardware, results
from mjp.core.errors import ConfigError
from mjp.core.ranges import check_count, check_ratio
from mjp.core.records import Record, Scalar, append_records
from mjp.core.seeds import generator_for
from mjp.core.team import Team, joined
from mjp.data.feed import worker_count
from mjp.data.opening import open_images
from mjp.data.source import Source
from mjp.data.subset import drawn
from mjp.data.viewing import Reader
from mjp.evaluate.classes import IMAGENET_CLASSES, class_outputs
from mjp.evaluate.subject import Subject, float32_precision
from mjp.models.opening import open_models


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluation that is set up: the models on their device, and who takes part."""

    subjects: list[Subject]
    team: Team
    options: EvaluationOptions

    @property
    def workers(self) -> int:
        """Processes that decode, for this process."""
        return worker_count(self.options.workers)

    def open(self, where: str | None = None) -> Source:
        """The images asked for, as many as were asked for."""
        options = self.options
        source = open_images(
            options.data if where is None else where, options.source, options.split
        )
        return self.chosen(source)

    def chosen(self, source: Source) -> Source:
        """As many of the source's images as were asked for."""
        return drawn(source, self.options.images, generator_for(self.options.seed, "images"))

    def outputs(self, source: Source) -> dict[str, torch.Tensor]:
        """For each model, its output for each class of the data."""
        return {
            subject.label: class_outputs(subject.model, source.classes, source.name)
            for subject in self.subjects
        }

    def conditions(self, source: Source) -> dict[str, Scalar]:
        """What else decides the numbers, for records."""
        return {
            "data": source.name,
            "images_asked": self.options.images,
            "seed": self.options.seed,
            "processes": self.team.size,
            "hardware": hardware(self.team.device),
            "mjp": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }

    def facts(self, subject: Subject, source: Source) -> dict[str, Scalar]:
        """All conditions of one model's numbers on this data."""
        return {**self.conditions(source), **subject.facts(), "imagenet": is_imagenet(subject)}


def is_imagenet(subject: Subject) -> bool:
    """Whether a model tells ImageNet's thousand classes apart."""
    known = (getattr(subject.model, "pretrained_cfg", None) or {}).get("label_names")
    return int(subject.model.num_classes) == IMAGENET_CLASSES and not known


@contextmanager
def evaluation(options: EvaluationOptions, out: Path, **told: Any) -> Iterator[Evaluation]:
    """Opens the models and joins the processes that share the work.

    Args:
        out: the folder for results, which is made before any work is done.
        told: more of what a subject is told.
    """
    check_count("batch", options.batch)
    if options.workers is not None:
        check_count("workers", options.workers, 0)
    if options.images is not None:
        check_count("images", options.images)
    if options.crop is not None:
        check_ratio("crop", options.crop)
        if options.crop < 0.1:
            raise ConfigError(f"crop is between 0.1 and 1, got {options.crop:g}")
    claim(out)
    device = choose_device(options.device)
    with joined(device) as team, float32_precision(options.precision):
        models = open_models(options.model, options.size)
        subjects = [
            Subject.of(
                label,
                model,
                size=options.size,
                crop=options.crop,
                precision=options.precision,
                **told,
            ).on(team.device, compiled=options.compile)
            for label, model in models.items()
        ]
        yield Evaluation(subjects, team, options)


def claim(out: Path) -> None:
    """Makes sure that results can be written, before there are any."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "records.jsonl").open("a").close()
    except OSError as error:
        raise ConfigError(f"results cannot be written to {out}: {error.strerror}") from error


def finish(
    options: Any,
    records: list[Record],
    tables: list[Table],
    paths: list[Path],
    notes: tuple[str, ...] = (),
    *,
    written: bool = False,
) -> None:
    """Prints tables, or records for `--json`, and says where everything is.

    Args:
        written: whether the records are in their file already.
    """
    file = options.out / "records.jsonl"
    if not written:
        append_records(file, records)
    if options.json:
        for record in records:
            print(record.to_json())
        return
    console = results()
    for table in tables:
        console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)
    for path in paths:
        console.print(f"figure: {path}", markup=False, highlight=False)
    console.print(f"records: {file}", markup=False, highlight=False)


def unreadable(readers: list[Reader], out: Path) -> tuple[str, ...]:
    """A note on images that were left out, each listed in a file."""
    problems = {problem: None for reader in readers for problem in reader.problems}
    if not problems:
        return ()
    listed = out / "unreadable.txt"
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text("\n".join(problems) + "\n", encoding="utf-8")
    return (f"{len(problems)} images could not be read and were left out: {listed}",)


def with_interval(values: Mapping[str, Scalar], name: str, digits: int = 1) -> str:
    """A value with its interval, as `71.05 [69.1–73.0]`: two words, for narrow terminals.

    Args:
        digits: of the interval's ends.
    """
    value, low, high = (values.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if not isinstance(value, (int, float)):
        return "–"
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)) or low != low:
        return f"{value:.2f}"
    return f"{value:.2f} [{low:.{digits}f}–{high:.{digits}f}]"


def numbers(table: Table, *names: str) -> None:
    """Adds columns of numbers."""
    for name in names:
        table.add_column(name, justify="right")
