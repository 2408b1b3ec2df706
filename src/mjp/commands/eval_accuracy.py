"""`mjp eval`: accuracy and the effect of jigsaws, of one model or several side by side."""

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
from mjp.commands.options import EvalAccuracyOptions
from mjp.core.records import Record, append_records
from mjp.data.source import Source
from mjp.evaluate.jigsaw import (
    JigsawScorer,
    JigsawSettings,
    Scores,
    difference,
    images_shown,
    to_records,
)
from mjp.models.subject import Subject
from mjp.report import paper
from mjp.report.jigsaw import draw_curves
from mjp.report.reading import with_interval


def run(options: EvalAccuracyOptions) -> None:
    """Measures, prints, draws."""
    carry_out(options)


def carry_out(options: EvalAccuracyOptions) -> dict[str, Scores]:
    """Measures, prints, draws; gives the scores of every model, image by image."""
    settings = JigsawSettings(options.ratios, options.draws, options.seed)
    with evaluation(options, options.out, patch=options.patch, jigsaw=options.jigsaw) as work:
        source = work.open()
        scores, found = measure(work, source, settings, options)
        if not work.team.leads:
            return scores
    records = [record for subject in work.subjects for record in found[subject.label]]
    differences = _differences(work, source, scores, settings)
    tables = [accuracy_table(records, source, images_shown(settings) - 1)]
    if options.ratios:
        tables.append(jigsaw_table(records))
    if differences:
        tables.append(difference_table(differences))
    records += differences
    notes = _notes(records) + unreadable(work.problems, options.out)
    finish(
        options,
        records,
        tables,
        lambda: draw_curves(records, options.out),
        notes,
        unwritten=differences,
    )
    return scores


def measure(
    work: Evaluation, source: Source, settings: JigsawSettings, options: EvalAccuracyOptions
) -> tuple[dict[str, Scores], dict[str, list[Record]]]:
    """The scores and records of every model; written down as soon as a model has seen all."""
    outputs = work.outputs(source)
    scores: dict[str, Scores] = {}
    records: dict[str, list[Record]] = {}

    def scorer(subject: Subject) -> JigsawScorer:
        return JigsawScorer(
            subject,
            settings,
            len(source),
            outputs[subject.label],
            work.team,
            among_data=options.among == "data",
            batch=work.batch,
        )

    what = f"evaluating, {images_shown(settings)} passes an image"
    for scorers in work.shown(source, what, scorer):
        for one in scorers:
            subject = one.subject
            label = subject.label
            scores[label] = one.scores()
            if work.team.leads:
                facts = {**work.facts(subject, source.name), "among": options.among}
                records[label] = to_records(subject.grid, scores[label], settings, facts)
                append_records(options.out / "records.jsonl", records[label])
    return {subject.label: scores[subject.label] for subject in work.subjects}, records


def _differences(
    work: Evaluation, source: Source, scores: dict[str, Scores], settings: JigsawSettings
) -> list[Record]:
    first, *others = scores
    records = []
    for other in others:
        for (name, ratio), found in difference(scores[first], scores[other], settings).items():
            conditions = {
                "model": other,
                "than": first,
                "value": name,
                "ratio": ratio,
                "draws": settings.draws,
                "seed": settings.seed,
                "data": source.name,
                "images": len(source),
                "precision": work.options.precision,
            }
            records.append(Record("eval difference", conditions, found.values("difference")))
    return records


def accuracy_table(records: list[Record], source: Source, jigsaws: int) -> Table:
    """A row for each model."""
    found = [record for record in records if record.kind == "eval accuracy"]
    count = found[0].values["images"]
    name = escape(source.name)
    table = Table(title=f"{name}: {count} images, {jigsaws} jigsaws of each; 95 % intervals")
    beside = any(paper.classification(record.conditions) for record in found)
    table.add_column("model")
    numbers(table, "parameters", "top-1, %", "top-5, %", *(["paper: top-1"] if beside else []))
    for record in found:
        row = paper.classification(record.conditions)
        told = [f"{row.top1:.1f}" if row else ""] if beside else []
        table.add_row(
            label_of(record),
            f"{record.conditions['parameters']:,}",
            with_interval(record.values, "top1"),
            with_interval(record.values, "top5"),
            *told,
        )
    return table


def jigsaw_table(records: list[Record]) -> Table:
    """A row for each ratio and model."""
    found = [record for record in records if record.kind == "eval jigsaw"]
    beside = any(paper.classification(record.conditions) for record in found)
    table = Table(title="under a jigsaw of so many patches")
    table.add_column("model (jigsaw in)", overflow="fold")
    numbers(table, "ratio", "accuracy, %", "consistency, %", "Diff. Norm.")
    if beside:
        numbers(table, "paper: consistency, Diff. Norm.")
    before = None
    for record in found:
        label = f"{label_of(record)} ({record.conditions['jigsaw']})"
        if before not in (None, label):
            table.add_section()
        row = paper.classification(record.conditions)
        at_papers_ratio = record.conditions["ratio"] == paper.CONSISTENCY_RATIO
        table.add_row(
            label if label != before else "",
            f"{record.conditions['ratio']:g}",
            with_interval(record.values, "accuracy"),
            with_interval(record.values, "consistency"),
            with_interval(record.values, "diff_norm", ends=2),
            *([_papers(row) if row and at_papers_ratio else ""] if beside else []),
        )
        before = label
    return table


def _papers(row: paper.Classification) -> str:
    norm = "" if row.diff_norm is None else f", {row.diff_norm:.2f}"
    return f"{row.consistency:.1f}{norm}"


def difference_table(records: list[Record]) -> Table:
    """What each model has more or less than the first, on the same images and jigsaws."""
    found = [record for record in records if record.kind == "eval difference"]
    first = escape(str(found[0].conditions["than"]))
    table = Table(title=f"difference from {first}, paired over images; bold where 0 is outside")
    table.add_column("model")
    numbers(table, "ratio", "accuracy, points", "consistency, points", "Diff. Norm.")
    rows: dict[tuple[str, float | None], dict[str, str]] = {}
    for record in found:
        ratio = record.conditions["ratio"]
        key = label_of(record), None if ratio is None else float(str(ratio))
        low, high = (float(str(record.values[f"difference_{end}"])) for end in ("low", "high"))
        text = f"{record.values['difference']:+.2f} \\[{low:+.2f}…{high:+.2f}]"
        clear = low > 0 or high < 0
        name = str(record.conditions["value"])
        rows.setdefault(key, {})[name] = f"[bold]{text}[/bold]" if clear else text
    for (label, ratio), values in rows.items():
        accuracy = values.get("accuracy", values.get("top1", ""))
        where = "0" if ratio is None else f"{ratio:g}"
        more = (values.get("consistency", ""), values.get("diff_norm", ""))
        table.add_row(label, where, accuracy, *more)
    return table


def _notes(records: list[Record]) -> tuple[str, ...]:
    notes = []
    found = [record for record in records if record.kind == "eval jigsaw"]
    still = sorted(
        {
            (str(r.conditions["model"]), float(str(r.conditions["ratio"])))
            for r in found
            if not r.values["patches_moved"] and r.conditions["ratio"]
        }
    )
    if still:
        label, ratio = still[0]
        notes.append(
            f"note: at a ratio of {ratio:g} no patch of {label} moves: its grid is too coarse"
        )
    if any(paper.classification(record.conditions) for record in found):
        notes.append(
            "note: the paper does not state the ratio of its consistency; its numbers stand beside "
            f"ours at {paper.CONSISTENCY_RATIO:g}, the default of its script"
        )
    return tuple(notes)
