"""What the verbs that evaluate have in common: models, data, conditions, where results go."""

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.markup import escape
from rich.table import Table

from mjp import __version__
from mjp.commands.options import EvaluationOptions
from mjp.commands.terminal import choose_device, hardware, meter, results
from mjp.core.errors import ConfigError
from mjp.core.precision import float32_precision
from mjp.core.ranges import check_count, check_ratio
from mjp.core.records import Record, Scalar, append_records
from mjp.core.seeds import generator_for
from mjp.core.team import Team, joined
from mjp.data.decoding import Decoder, Reader, View
from mjp.data.feed import worker_count
from mjp.data.opening import open_images
from mjp.data.source import Source, drawn
from mjp.evaluate.showing import Scorer, show
from mjp.models.facts import class_outputs
from mjp.models.opening import open_models
from mjp.models.subject import Subject, by_view

SomeScorer = TypeVar("SomeScorer", bound=Scorer)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluation that is set up: the models on their device, and who takes part.

    Args:
        batch: most images in a forward pass.
        problems: what could not be read so far, by any process, each once.
    """

    subjects: list[Subject]
    team: Team
    options: EvaluationOptions
    batch: int
    problems: dict[str, None] = field(default_factory=dict)

    def open(self) -> Source:
        """The images asked for, as many as were asked for."""
        options = self.options
        return self.chosen(open_images(options.data, options.source, options.split))

    def chosen(self, source: Source) -> Source:
        """As many of the source's images as were asked for."""
        return drawn(source, self.options.images, generator_for(self.options.seed, "images"))

    def outputs(self, source: Source) -> dict[str, torch.Tensor]:
        """For each model, its output for each class of the data."""
        return {
            subject.label: class_outputs(subject.model, source.classes, source.name)
            for subject in self.subjects
        }

    def shown(
        self,
        source: Source,
        what: str,
        scorer: Callable[[Subject], SomeScorer],
        decoder: Callable[[View], Decoder] | None = None,
    ) -> Iterator[list[SomeScorer]]:
        """Shows all images to all models; yields the scorers of those that share a view, as soon as
        they have seen everything.

        Args:
            what: what is going on, in words.
            decoder: makes what is shown of a picture; by default the picture itself.
        """
        options = self.options
        for view, subjects in by_view(self.subjects).items():
            scorers = [scorer(subject) for subject in subjects]
            make = decoder or (lambda one: Decoder(source, one.transform(), 0, replace=False))
            blocks = Reader(
                source,
                make(view),
                self.team,
                worker_count(options.workers),
                skip_corrupt=options.skip_corrupt,
            )
            total = blocks.own_images * sum(one.passes for one in scorers)
            with meter(what, total, shown=self.team.leads) as tell:
                show(scorers, blocks, tell)
            found = self.team.gathered(list(blocks.problems))
            self.problems.update(dict.fromkeys(found))
            yield scorers

    def facts(self, subject: Subject, data: str) -> dict[str, Scalar]:
        """All conditions of one model's numbers on this data."""
        return {
            "data": data,
            "images_asked": self.options.images,
            "seed": self.options.seed,
            **subject.facts(),
            "processes": self.team.size,
            "hardware": hardware(self.team.device),
            "mjp": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }


@contextmanager
def evaluation(options: EvaluationOptions, out: Path, **told: Any) -> Iterator[Evaluation]:
    """Opens the models and joins the processes that share the work.

    Args:
        out: the folder for results, which is made before any work is done.
        told: more of what a subject is told.
    """
    if options.batch is not None:
        check_count("batch", options.batch)
    if options.workers is not None:
        check_count("workers", options.workers, 0)
    if options.images is not None:
        check_count("images", options.images)
    check_crop(options.crop)
    claim(out)
    device = choose_device(options.device)
    with joined(device) as team, float32_precision(options.precision):
        subjects = [
            Subject.of(
                label,
                model,
                size=options.size,
                crop=options.crop,
                precision=options.precision,
                **told,
            ).on(team.device, compiled=options.compile)
            for label, model in open_models(options.model, options.size).items()
        ]
        batch = options.batch or (256 if device.type == "cuda" else 32)
        yield Evaluation(subjects, team, options, batch)


def check_crop(crop: float | None) -> None:
    """Raises unless this is a share of an image that a crop can keep."""
    if crop is not None:
        check_ratio("crop", crop)
        if crop < 0.1:
            raise ConfigError(f"crop is between 0.1 and 1, got {crop:g}")


def claim(out: Path) -> None:
    """Makes sure that results can be written, before there are any."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"results cannot be written to {out}: it is a file; name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "records.jsonl").open("a").close()
    except OSError as error:
        raise ConfigError(f"results cannot be written to {out}: {error.strerror}") from error


def finish(
    options: Any,
    records: list[Record],
    tables: list[Table],
    draw: Callable[[], list[Path]],
    notes: tuple[str, ...] = (),
    *,
    unwritten: list[Record] | None = None,
) -> None:
    """Prints tables, or records for `--json`; then writes records and, last, figures.

    Args:
        unwritten: those of the records that are not in their file yet; by default all.
    """
    console = results()
    if options.json:
        for record in records:
            print(record.to_json(), flush=True)
    for table in () if options.json else tables:
        console.print(table)
    for note in notes:
        print(note, file=sys.stderr if options.json else sys.stdout, flush=True)
    file = options.out / "records.jsonl"
    append_records(file, records if unwritten is None else unwritten)
    for path in draw():
        if not options.json:
            print(f"figure: {path}")
    if not options.json:
        print(f"records: {file}")


def unreadable(problems: Mapping[str, None], out: Path) -> tuple[str, ...]:
    """A note on images that were left out, each listed in a file."""
    listed = out / "unreadable.txt"
    listed.unlink(missing_ok=True)
    if not problems:
        return ()
    listed.write_text("\n".join(problems) + "\n", encoding="utf-8")
    return (f"{len(problems)} images could not be read and were left out: {listed}",)


def label_of(record: Record) -> str:
    """What a record's model is called, for a table: nothing in it is markup."""
    return escape(str(record.conditions["model"]))


def numbers(table: Table, *names: str) -> None:
    """Adds columns of numbers."""
    for name in names:
        table.add_column(name, justify="right")
