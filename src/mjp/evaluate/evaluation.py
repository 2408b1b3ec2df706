"""What evaluations have in common: models and images, rows of numbers for every image, results."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mjp.core.display import results
from mjp.core.errors import DataError
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.core.seeds import generator_for
from mjp.core.team import Team, float32_precision
from mjp.data.decoding import Block, Decoder, Reader, View
from mjp.data.feed import worker_count
from mjp.data.opening import open_images
from mjp.data.source import Source, drawn
from mjp.evaluate.config import EvaluationOptions
from mjp.models.config import ModelOptions
from mjp.models.opening import open_models
from mjp.models.subject import Subject, by_view
from mjp.report.table import Section, to_terminal

UNREADABLE = "unreadable.txt"
"""Lists the images that were left out, a line each."""
Progress = Callable[[int], None]
"""Takes on how many images a model has run since."""


@runtime_checkable
class Scorer(Protocol):
    """Runs a model on images and gives each of them a row of numbers."""

    @property
    def columns(self) -> int:
        """How many numbers are in a row."""

    def score(self, block: Block, advance: Progress) -> Float[Tensor, "batch columns"]:
        """The rows of a block of images; on the device, without waiting for it."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What came out for every image, in the order of the data."""

    readable: Bool[np.ndarray, " images"]
    values: Float[np.ndarray, "images columns"]

    def read(self) -> Float[np.ndarray, "read columns"]:
        """The rows of the images that could be read."""
        if not self.readable.any():
            raise DataError("not one of the images could be read")
        return self.values[self.readable].astype(np.float64)

    @property
    def unreadable(self) -> int:
        return int((~self.readable).sum())


@torch.inference_mode()
def gather(
    scorers: Sequence[Scorer], blocks: Iterable[Block], images: int, team: Team, advance: Progress
) -> list[Rows]:
    """Shows every block to every scorer; the rows of each, for all images of all processes."""
    # An image is scored by one process, so that the sum over all is exact.
    dtype = torch.float32 if team.device.type == "mps" else torch.float64
    tables = [
        torch.zeros(images, 1 + scorer.columns, dtype=dtype, device=team.device)
        for scorer in scorers
    ]
    for block in blocks:
        first = int(block.indices[0])
        for scorer, table in zip(scorers, tables, strict=True):
            rows = scorer.score(block, advance)
            table[first : first + len(rows), 0] = block.readable.to(dtype)
            table[first : first + len(rows), 1:] = rows.to(dtype)
    found = [team.total(table).cpu().numpy() for table in tables]
    return [Rows(table[:, 0] > 0, table[:, 1:]) for table in found]


Options = TypeVar("Options", bound=EvaluationOptions)


@dataclass(frozen=True, eq=False)
class Evaluation(Generic[Options]):
    """Models that are shown images, and the folder that their numbers go to."""

    run: Run
    subjects: list[Subject]
    options: Options

    @classmethod
    @contextmanager
    def open(cls, options: Options, **more: Any) -> Iterator["Evaluation[Options]"]:
        """Claims the folder for results, then opens the models."""
        more = {"size": options.size, "crop": options.crop, "precision": options.precision, **more}
        with Run.open(options.out, device=options.device, seed=options.seed) as run:
            if run.leads:
                (run.out / UNREADABLE).unlink(missing_ok=True)
            models = open_models(options.model, options.size)
            subjects = [Subject.of(label, model, **more) for label, model in models.items()]
            subjects = [subject.on(run.device, compiled=options.compile) for subject in subjects]
            yield cls(run, subjects, options)

    def open_source(self) -> Source:
        """The images asked for, as many as were asked for."""
        options = self.options
        return self.some_of(open_images(options.data, options.source, options.split))

    def some_of(self, source: Source) -> Source:
        """As many of the source's images as were asked for."""
        return drawn(source, self.options.images, generator_for(self.options.seed, "images"))

    def conditions(self, data: str, **more: Scalar) -> dict[str, dict[str, Scalar]]:
        """What decides each model's numbers on this data, by its label."""
        asked = {"data": data, "images_asked": self.options.images, "seed": self.options.seed}
        return {subject.label: {**asked, **subject.facts(), **more} for subject in self.subjects}

    def measure(
        self,
        source: Source,
        what: str,
        scorer: Callable[[Subject, int], Scorer],
        decoder: Callable[[View], Decoder] | None = None,
        subjects: Sequence[Subject] | None = None,
        passes: int = 1,
    ) -> Iterator[tuple[Subject, Rows]]:
        """Shows images to models; yields what came out as soon as a model has seen everything.

        Args:
            scorer: makes the scorer of a model; its second argument is the most images in a
                forward pass.
            decoder: makes what is shown of a picture; by default the picture itself.
            passes: how often a model runs on each image.
        """
        run, options = self.run, self.options
        batch = options.batch or (256 if run.device.type == "cuda" else 32)
        subjects = self.subjects if subjects is None else subjects
        scorers = {subject.label: scorer(subject, batch) for subject in subjects}
        decode = decoder or (lambda view: Decoder(source, view.transform()))
        workers, skip = worker_count(options.workers), options.skip_corrupt
        for view, group in by_view(subjects).items():
            chosen = [scorers[subject.label] for subject in group]
            blocks = Reader(decode(view), run.team, workers, skip_corrupt=skip)
            total = blocks.num_images * passes * len(chosen)
            with float32_precision(options.precision), run.progress(what, total) as advance:
                rows = gather(chosen, blocks, len(source), run.team, advance)
            problems = run.team.gathered(list(blocks.problems))
            if run.leads and problems:
                file = run.out / UNREADABLE
                known = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
                lines = dict.fromkeys([*known, *problems])
                file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            yield from zip(group, rows, strict=True)


def finish(
    run: Run,
    options: ModelOptions,
    records: Sequence[Record],
    section: Section,
    notes: Sequence[str] = (),
    draw: Callable[[], list[Path]] = list,
) -> None:
    """Prints the tables, or for `--json` the records; last draws the figures: the section's, and
    with `draw` those that take more than records."""
    if not run.leads:
        return
    if (unreadable := run.out / UNREADABLE).is_file():
        count = unreadable.read_bytes().count(b"\n")
        notes = [*notes, f"{count} images could not be read and were left out: {unreadable}"]
    for record in records if options.json else ():
        print(record.to_json(), flush=True)
    for table in () if options.json else section.tables:
        if (filled := table.fill(records)) is not None:
            results().print(to_terminal(filled))
    for note in notes:
        print(note, file=sys.stderr if options.json else sys.stdout, flush=True)
    paths = [path for figure in section.figures for path in figure.draw(records, run.out)]
    paths += draw()
    if not options.json:
        print(*(f"figure: {path}" for path in paths), f"records: {run.records_file}", sep="\n")
