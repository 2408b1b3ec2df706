"""`mjp eval`: accuracy and the effect of jigsaws, of one model or several side by side."""

from rich.table import Table

from mjp.commands.evaluating import (
    Evaluation,
    evaluation,
    finish,
    numbers,
    unreadable,
    with_interval,
)
from mjp.commands.options import EvalAccuracyOptions
from mjp.commands.terminal import meter
from mjp.core.records import Record
from mjp.data.source import Source
from mjp.data.viewing import Reader, reader
from mjp.evaluate.jigsaw import JigsawScorer, JigsawSettings, Scores, difference, to_records
from mjp.evaluate.showing import show
from mjp.evaluate.subject import by_view
from mjp.report import paper
from mjp.report.jigsaw import draw_curves


def run(options: EvalAccuracyOptions) -> None:
    """Measures, prints, draws."""
    settings = JigsawSettings(options.ratios, options.draws, options.seed)
    with evaluation(options, options.out, patch=options.patch, jigsaw=options.jigsaw) as work:
        source = work.open()
        scores, readers = measure(work, source, settings, among_data=options.among == "data")
        if not work.team.leads:
            return
    records = []
    for subject in work.subjects:
        facts = {**work.facts(subject, source), "among": options.among}
        records += to_records(subject, scores[subject.label], settings, facts)
    records += _differences(work, scores, settings)
    paths = draw_curves(records, options.out)
    tables = [accuracy_table(records, source, len(options.ratios) * options.draws)]
    if options.ratios:
        tables.append(jigsaw_table(records))
    if len(work.subjects) > 1:
        tables.append(difference_table(records))
    finish(options, records, tables, paths, _notes(records) + unreadable(readers, options.out))


def measure(
    work: Evaluation, source: Source, settings: JigsawSettings, *, among_data: bool
) -> tuple[dict[str, Scores], list[Reader]]:
    """The scores of every model; pictures are decoded once for all that see the same cut."""
    outputs = work.outputs(source)
    scores: dict[str, Scores] = {}
    readers = []
    for view, subjects in by_view(work.subjects).items():
        scorers = [
            JigsawScorer(
                subject,
                settings,
                len(source),
                outputs[subject.label],
                work.team,
                among_data=among_data,
                batch=work.options.batch,
            )
            for subject in subjects
        ]
        blocks = reader(
            source, view, work.team, work.workers, skip_corrupt=work.options.skip_corrupt
        )
        readers.append(blocks)
        own = -(-len(source) // work.team.size)
        what = ", ".join(subject.label for subject in subjects)
        with meter(f"evaluating {what}", own, shown=work.team.leads) as tell:
            show(scorers, blocks, tell)
        scores |= {scorer.subject.label: scorer.scores() for scorer in scorers}
    return {subject.label: scores[subject.label] for subject in work.subjects}, readers


def _differences(
    work: Evaluation, scores: dict[str, Scores], settings: JigsawSettings
) -> list[Record]:
    first, *others = scores
    records = []
    for other in others:
        for (name, ratio), found in difference(scores[first], scores[other], settings).items():
            conditions = {"model": other, "than": first, "value": name, "ratio": ratio}
            records.append(Record("eval difference", conditions, found.values("difference")))
    return records


def accuracy_table(records: list[Record], source: Source, jigsaws: int) -> Table:
    """A row for each model."""
    found = [record for record in records if record.kind == "eval accuracy"]
    count = found[0].values["images"]
    table = Table(title=f"{source.name}: {count} images, {jigsaws} jigsaws of each; 95 % intervals")
    beside = any(paper.classification(record.conditions) for record in found)
    table.add_column("model")
    numbers(table, "parameters", "top-1, %", "top-5, %", *(["paper: top-1"] if beside else []))
    for record in found:
        row = paper.classification(record.conditions)
        told = [f"{row.top1:.1f}" if row else ""] if beside else []
        table.add_row(
            str(record.conditions["model"]),
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
    table.add_column("model, jigsaw in", overflow="fold")
    numbers(table, "ratio", "accuracy, %", "consistency, %", "Diff. Norm.")
    if beside:
        table.add_column("paper: consistency, Diff. Norm.", justify="right")
    before, row_of_model = None, 0
    for record in found:
        label = str(record.conditions["model"])
        if before not in (None, label):
            table.add_section()
        row = paper.classification(record.conditions)
        at_papers_ratio = record.conditions["ratio"] == paper.CONSISTENCY_RATIO
        told = [f"{row.consistency:.1f}, {row.diff_norm:.2f}" if row and at_papers_ratio else ""]
        row_of_model = row_of_model + 1 if label == before else 0
        heads = (label, f"  {record.conditions['jigsaw']}")
        table.add_row(
            heads[row_of_model] if row_of_model < len(heads) else "",
            f"{record.conditions['ratio']:g}",
            with_interval(record.values, "accuracy"),
            with_interval(record.values, "consistency"),
            with_interval(record.values, "diff_norm", digits=2),
            *(told if beside else []),
        )
        before = label
    return table


def difference_table(records: list[Record]) -> Table:
    """What each model has more or less than the first, on the same images and jigsaws."""
    found = [record for record in records if record.kind == "eval difference"]
    first = found[0].conditions["than"]
    table = Table(title=f"difference from {first}, paired over images; bold where 0 is outside")
    table.add_column("model")
    numbers(table, "ratio", "accuracy, points", "consistency, points", "Diff. Norm.")
    rows: dict[tuple[str, float | None], dict[str, str]] = {}
    for record in found:
        ratio = record.conditions["ratio"]
        key = str(record.conditions["model"]), None if ratio is None else float(str(ratio))
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
