"""`mjp eval imagenet-a`: accuracy over 200 classes, AURRA, calibration."""

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table

from mjp.commands.evaluating import (
    Evaluation,
    evaluation,
    finish,
    label_of,
    numbers,
    unreadable,
)
from mjp.commands.options import EvalNaturalOptions
from mjp.core.errors import DataError
from mjp.core.records import Record
from mjp.data.source import Source
from mjp.evaluate.confidence import (
    ConfidenceScorer,
    Subset,
    natural_values,
    places_among,
    subset_classes,
)
from mjp.models.facts import class_outputs
from mjp.models.subject import Subject
from mjp.report import paper
from mjp.report.confidence import draw_response_rates
from mjp.report.reading import with_interval

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
        found = confidences(work, source, "imagenet_a", "ImageNet-A")
        if not work.team.leads:
            return
    records = [
        Record(
            "eval imagenet-a",
            work.facts(subject, source.name),
            {
                **natural_values(*found[subject.label], options.seed),
                "unreadable": len(work.problems),
            },
        )
        for subject in work.subjects
    ]
    notes = unreadable(work.problems, options.out)
    finish(
        options,
        records,
        [_table(records, source)],
        lambda: draw_response_rates(found, options.out),
        notes,
    )


def confidences(
    work: Evaluation, source: Source, subset: Subset, what: str, *, labelled: bool = True
) -> dict[str, Answers]:
    """Confidence and correctness on every image, among the 200 classes of a subset, by model.

    Args:
        labelled: False where the images' labels mean nothing.
    """
    nowhere = torch.full((len(source.classes),), -1)

    def scorer(subject: Subject) -> ConfidenceScorer:
        competing = class_outputs(subject.model, subset_classes(subset), f"{what}'s list")
        places = nowhere
        if labelled:
            own = class_outputs(subject.model, source.classes, source.name)
            places = places_among(own, competing)
        return ConfidenceScorer(subject, len(source), competing, places, work.team, work.batch)

    found = {
        one.subject.label: one.results()
        for scorers in work.shown(source, what, scorer)
        for one in scorers
    }
    return {subject.label: found[subject.label] for subject in work.subjects}


def _table(records: list[Record], source: Source) -> Table:
    beside = any(paper.robustness(record.conditions) for record in records)
    table = Table(
        title=f"{escape(source.name)}: {records[0].values['images']} images; 95 % intervals"
    )
    table.add_column("model")
    numbers(table, "accuracy, %", "AURRA, %", "RMS calibration error, %")
    if beside:
        numbers(table, "paper: accuracy, AURRA")
    for record in records:
        told = paper.robustness(record.conditions)
        more = [f"{told.imagenet_a:.1f}, {told.aurra:.1f}" if told else ""] if beside else []
        table.add_row(
            label_of(record),
            *(with_interval(record.values, n) for n in ("accuracy", "aurra", "calibration_error")),
            *more,
        )
    return table
