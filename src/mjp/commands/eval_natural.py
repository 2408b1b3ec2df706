"""`mjp eval imagenet-a`: accuracy over 200 classes, AURRA, calibration."""

import numpy as np
import torch
from rich.table import Table

from mjp.commands.evaluating import (
    Evaluation,
    evaluation,
    finish,
    numbers,
    unreadable,
    with_interval,
)
from mjp.commands.options import EvalNaturalOptions
from mjp.commands.terminal import meter
from mjp.core.errors import DataError
from mjp.core.records import Record
from mjp.data.source import Source
from mjp.data.viewing import Reader, reader
from mjp.evaluate.classes import class_outputs
from mjp.evaluate.confidence import (
    ConfidenceScorer,
    Subset,
    natural_values,
    places_among,
    subset_classes,
)
from mjp.evaluate.showing import show
from mjp.evaluate.subject import by_view
from mjp.report import paper
from mjp.report.confidence import draw_response_rates

Answers = tuple[np.ndarray, np.ndarray]
"""Confidence and correctness of each image."""


def run(options: EvalNaturalOptions) -> None:
    """Measures, prints, draws."""
    with evaluation(options, options.out) as work:
        source = work.open()
        strange = [name for name in source.classes if name not in subset_classes("imagenet_a")]
        if strange:
            raise DataError(
                f"{source.name} has classes that are none of ImageNet-A's 200: "
                f"{', '.join(strange[:5])}; its folders are named by WordNet numbers"
            )
        found, readers = confidences(work, source, "imagenet_a", "ImageNet-A")
        if not work.team.leads:
            return
    records = [
        Record(
            "eval imagenet-a",
            work.facts(subject, source),
            natural_values(*found[subject.label], options.seed),
        )
        for subject in work.subjects
    ]
    paths = draw_response_rates(found, options.out)
    notes = unreadable(readers, options.out)
    finish(options, records, [_table(records, source)], paths, notes)


def confidences(
    work: Evaluation, source: Source, subset: Subset, what: str, *, labelled: bool = True
) -> tuple[dict[str, Answers], list[Reader]]:
    """Confidence and correctness on every image, among the 200 classes of a subset, by model.

    Args:
        labelled: False where the images' labels mean nothing.
    """
    competing = {
        subject.label: class_outputs(subject.model, subset_classes(subset), f"{what}'s list")
        for subject in work.subjects
    }
    nowhere = torch.full((len(source.classes),), -1)
    found: dict[str, Answers] = {}
    readers = []
    for view, subjects in by_view(work.subjects).items():
        scorers = []
        for subject in subjects:
            outputs = competing[subject.label]
            places = nowhere
            if labelled:
                own = class_outputs(subject.model, source.classes, source.name)
                places = places_among(own, outputs)
            scorers.append(
                ConfidenceScorer(
                    subject, len(source), outputs, places, work.team, work.options.batch
                )
            )
        blocks = reader(
            source, view, work.team, work.workers, skip_corrupt=work.options.skip_corrupt
        )
        readers.append(blocks)
        with meter(what, -(-len(source) // work.team.size), shown=work.team.leads) as tell:
            show(scorers, blocks, tell)
        found |= {scorer.subject.label: scorer.results() for scorer in scorers}
    return {subject.label: found[subject.label] for subject in work.subjects}, readers


def _table(records: list[Record], source: Source) -> Table:
    beside = any(paper.robustness(record.conditions) for record in records)
    table = Table(title=f"{source.name}: {records[0].values['images']} images; 95 % intervals")
    table.add_column("model")
    numbers(table, "accuracy, %", "AURRA, %", "RMS calibration error, %")
    if beside:
        numbers(table, "paper: accuracy, AURRA")
    for record in records:
        told = paper.robustness(record.conditions)
        more = [f"{told.imagenet_a:.1f}, {told.aurra:.1f}" if told else ""] if beside else []
        table.add_row(
            str(record.conditions["model"]),
            *(with_interval(record.values, n) for n in ("accuracy", "aurra", "calibration_error")),
            *more,
        )
    return table
