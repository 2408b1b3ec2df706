"""`mjp eval imagenet-o`: how well low confidence finds images of no known class."""

from functools import partial

from rich.table import Table

from mjp.commands.eval_natural import confidences
from mjp.commands.evaluating import (
    evaluation,
    finish,
    label_of,
    numbers,
    unreadable,
)
from mjp.commands.options import EvalOutliersOptions
from mjp.core.records import Record
from mjp.data.opening import open_images
from mjp.data.source import of_classes
from mjp.evaluate.confidence import outlier_values, subset_classes
from mjp.models.facts import imagenet_synsets
from mjp.report import paper
from mjp.report.confidence import draw_outliers
from mjp.report.reading import with_interval


def run(options: EvalOutliersOptions) -> None:
    """Measures, prints, draws."""
    with evaluation(options, options.out) as work:
        outliers = work.open()
        known = of_classes(
            open_images(options.inliers, options.inliers_source, options.split),
            subset_classes("imagenet_o"),
            in_order=imagenet_synsets(),
        )
        inliers = work.chosen(known)
        odd = confidences(work, outliers, "imagenet_o", "ImageNet-O", labelled=False)
        usual = confidences(work, inliers, "imagenet_o", "ImageNet, same classes")
        if not work.team.leads:
            return
    found = {label: (odd[label][0], usual[label][0]) for label in odd}
    records = [
        Record(
            "eval imagenet-o",
            {**work.facts(subject, outliers.name), "inliers": inliers.name},
            {
                **outlier_values(*found[subject.label], options.seed),
                "inlier_accuracy": 100 * float(usual[subject.label][1].mean()),
                "unreadable": len(work.problems),
            },
        )
        for subject in work.subjects
    ]
    notes = unreadable(work.problems, options.out)
    draw = partial(draw_outliers, found, options.out)
    finish(options, records, [_table(records)], draw, notes)


def _table(records: list[Record]) -> Table:
    beside = any(paper.robustness(record.conditions) for record in records)
    values = records[0].values
    table = Table(
        title=f"{values['outliers']} outliers among {values['inliers']} inliers; score: minus the "
        "largest softmax over 200 classes; 95 % intervals"
    )
    table.add_column("model")
    numbers(table, "AUPR, %", "AUROC, %", "FPR95, %", "accuracy on inliers, %")
    if beside:
        numbers(table, "paper: AUPR")
    for record in records:
        told = paper.robustness(record.conditions)
        table.add_row(
            label_of(record),
            *(with_interval(record.values, name) for name in ("aupr", "auroc", "fpr95")),
            with_interval(record.values, "inlier_accuracy"),
            *([f"{told.aupr:.1f}" if told else ""] if beside else []),
        )
    return table
