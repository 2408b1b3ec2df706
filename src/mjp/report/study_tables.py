"""The tables of a study: ours, with the paper's numbers in columns of their own."""

from collections.abc import Callable, Sequence

from mjp.report import paper
from mjp.report.leaks import words
from mjp.report.page import Column, DataTable, Row, fixed
from mjp.report.reading import MISSING, is_clear, signed
from mjp.report.study import SECONDS, Quantity, Study, StudyRun
from mjp.report.study_cells import (
    AnyColumn,
    Difference,
    Mean,
    Papers,
    Seeds,
    difference,
    mean,
    table_of,
)
from mjp.report.study_derived import Derived
from mjp.report.study_reading import levels

TOP1 = Quantity("top1")
HALF = paper.CONSISTENCY_RATIO
SAME = Quantity("consistency", HALF)
SAME_LESS = Quantity("consistency", paper.PRIVACY_RATIO)
SAME_LEAST = Quantity("consistency", paper.MAIN_RATIO)
MOVED = Quantity("diff_norm", HALF)
MEAN_ERROR = Quantity("mean_error")
PATCH_SOLVE, ADAPTIVE_SOLVE = Quantity("psnr patch_solve"), Quantity("psnr adaptive_solve")
GUESS = Quantity("psnr of a guess")
MAE = (Quantity("mae_1d"), Quantity("mae_2d"))

PAPERS_SETTING = (
    "The paper’s numbers are of ImageNet-1K: other data, size and length of training than here, so "
    "signs and sizes of differences can be compared, levels cannot. It does not state the share of "
    f"patches moved for its consistency; its script’s default is {HALF:g}."
)
READ = (
    "Means over seeds ± standard deviation. Differences with 95 % intervals, which tell what "
    "other seeds would give on the same images: each number is taken as effect of its run + "
    "effect of its seed + noise, fitted to all runs of a recipe. That these have the same noise "
    "is assumed, not tested; the interval of a run of a single seed hangs on it. Because effects "
    "of seeds are taken out, a difference need not be that of the two means. Where seeds are too "
    "few to tell of noise: †: over images, paired, of one seed; ‡: over images of one seed, not "
    "paired, so rather too wide; what another seed would give is in neither. §: of different "
    "seeds, so without an interval. Many differences are tested, each by itself: of twenty "
    "without any effect, one leaves 0 out by chance. A claim of several parts holds if all do. It "
    "holds in part if at least one gain or loss that it claims holds; that accuracy is kept does "
    "not count by itself. It does not hold if none does and one is refuted, however many are "
    "open. Barely: an interval that decides ends closer to the bound than a tenth of its "
    "half-width."
)
TITLES = {
    "ablation": "Ablation: what each part of MJP does",
    "gamma": "The ratio γ: how many patches training moves",
    "backbones": "Backbones",
    "robustness": "Robustness: corrupted images",
    "finetune": "Fine-tuning a trained model",
    "cost": "Cost: time of an epoch",
    "convergence": "Convergence: how soon an accuracy is reached",
    "repeat": "One seed trained twice",
}

Rows = Sequence[tuple[StudyRun, StudyRun | None]]
Look = Callable[[StudyRun], paper.Classification | None]


def title_of(table: str) -> str:
    """The heading of a table."""
    return TITLES.get(table, f"Table “{table}”")


def tables_of(view: Derived, table: str) -> list[DataTable]:
    """A table of the study: what to read first, then what is folded away."""
    study = view.study
    rows = [(run, study.baseline(table, run)) for run in study.rows(table)]
    if not rows:
        return []
    make = {
        "gamma": _gamma,
        "robustness": _robustness,
        "cost": _cost,
        "convergence": _convergence,
    }.get(table, _accuracy)
    folded = [_curve(view, rows, table), _seeds(study, rows), _errors(view, rows, table)]
    return [*make(view, rows, table), *(one for one in folded if one is not None)]


def _measured(than: str, look: Look | None) -> list[AnyColumn]:
    """Ours, and behind each kind of number the paper's."""
    more = f" − {than}" if than else ", difference"

    def papers(title: str, name: str, digits: int = 1) -> list[AnyColumn]:
        if look is None:
            return []
        return [Papers(f"Paper: {title}", lambda run: getattr(look(run), name, None), digits)]

    return [
        Mean("Top-1, %", TOP1),
        Difference(f"Top-1{more}", TOP1),
        *papers("top-1, %", "top1"),
        Mean(f"Consistency at {SAME_LESS.ratio:g}, %", SAME_LESS, 1),
        Mean(f"Consistency at {HALF:g}, %", SAME, 1),
        Difference(f"Consistency at {HALF:g}{more}", SAME, 1),
        *papers("consistency, %", "consistency"),
        Mean(f"Diff. Norm. at {HALF:g}", MOVED),
        Difference(f"Diff. Norm. at {HALF:g}{more}", MOVED),
        *papers("Diff. Norm.", "diff_norm", 2),
        Seeds("Seeds", TOP1),
    ]


def papers_row(table: str) -> Look | None:
    """Which of the paper's rows stands beside a run of a table."""
    looks: dict[str, Look] = {
        "ablation": lambda run: paper.ABLATION.get(run.variant),
        "gamma": lambda run: paper.RATIOS.get(run.gamma) if run.gamma else paper.ABLATION["D"],
        "backbones": lambda run: paper.backbone(run.architecture, run.gamma > 0),
    }
    return looks.get(table)


def _than(rows: Rows) -> str:
    """The one run that all rows of a table are compared with; empty where there are several."""
    found = dict.fromkeys(than.label for _, than in rows if than is not None)
    return next(iter(found)) if len(found) == 1 else ""


def _accuracy(view: Derived, rows: Rows, table: str) -> list[DataTable]:
    look = papers_row(table)
    columns = _measured(_than(rows), look)
    note = f"{READ} {PAPERS_SETTING}" if look else READ
    return [table_of(view, rows, columns, "Accuracy and jigsaws", note)]


def _gamma(view: Derived, rows: Rows, table: str) -> list[DataTable]:
    """Accuracy and jigsaws, and then positions and leaks."""

    def regression(place: int) -> Callable[[StudyRun], float | None]:
        def found(run: StudyRun) -> float | None:
            told = paper.REGRESSION.get(run.variant)
            if told is None or run.gamma not in (0.0, paper.MAIN_RATIO):
                return None
            return (told.one, told.two)[place][0]

        return found

    than = _than(rows)
    # The claims on position embeddings compare with runs that have no row over γ.
    others = (run for run in view.study.runs.values() if any(map(run.of, MAE)))
    known = {run.name for run, _ in rows}
    more = [(run, None) for run in others if run.name not in known]
    columns: list[AnyColumn] = [
        Mean("1-D MAE, patches", MAE[0], 3),
        Mean("2-D MAE, cells", MAE[1], 3),
        Mean("PSNR patch solve, dB", PATCH_SOLVE, 1),
        Difference(f"patch solve − {than or 'baseline'}, dB", PATCH_SOLVE, 1),
        Mean("PSNR adaptive solve, dB", ADAPTIVE_SOLVE, 1),
        Difference(f"adaptive solve − {than or 'baseline'}, dB", ADAPTIVE_SOLVE, 1),
        Mean("PSNR of a guess, dB", GUESS, 1),
        Papers("Paper: 1-D MAE", regression(0), 3),
        Papers("Paper: 2-D MAE", regression(1), 3),
    ]
    note = (
        "MAE: error of a linear regression from position embedding to place. PSNR: what an attack "
        "on a shared gradient brings back of a picture, under the jigsaw that the model was "
        "trained with; patch solve does not know of MJP, adaptive solve does. The guess is the "
        "data’s mean picture: what scores no more than it is no leak."
    )
    leaks = table_of(view, [*more, *rows], columns, "Position embeddings and leaks", note)
    found = _accuracy(view, rows, table)
    return [*found, leaks] if len(leaks.columns) > 3 else found


def _robustness(view: Derived, rows: Rows, table: str) -> list[DataTable]:
    def told(name: str) -> Callable[[StudyRun], float | None]:
        def found(run: StudyRun) -> float | None:
            with_mjp = run.variant == "J" and run.gamma == paper.MAIN_RATIO
            known = not run.start and (run.variant == "A" or with_mjp)
            return getattr(paper.ROBUSTNESS[with_mjp], name) if known else None

        return found

    columns: list[AnyColumn] = [
        Mean("Mean error, %", MEAN_ERROR),
        Difference("Mean error, difference", MEAN_ERROR),
        Mean("Clean error, %", Quantity("clean_error")),
        Mean("mCE", Quantity("mce")),
        Seeds("Seeds", MEAN_ERROR),
        Papers("Paper: mean error, %", told("printed_mean")),
        Papers("Paper: mCE", told("mce")),
    ]
    note = (
        f"{READ} Mean error is over all corruptions and severities. The paper’s mean with MJP is "
        "as printed; the ten errors that it prints beside it have a mean of 43.2."
    )
    return [table_of(view, rows, columns, "Error on corrupted images", note)]


def _cost(view: Derived, rows: Rows, table: str) -> list[DataTable]:
    def quoted(run: StudyRun) -> float | None:
        return paper.TIME_PERCENT if run.gamma else None

    columns: list[AnyColumn] = [
        Mean("Seconds of an epoch", SECONDS, 3),
        Difference("More time, %", SECONDS),
        Mean("Images per second", Quantity("images_per_second"), 0),
        Seeds("Repeats", SECONDS),
        Papers("Paper: more time, %", quoted, sign="+"),
    ]
    note = "Median over the epochs after warm-up, validation left out; nothing else ran beside it."
    shared = [run.label for run, _ in rows if not run.alone]
    if shared:
        note = f"Other runs ran beside {', '.join(shared)}, so that times cannot be compared."
    return [table_of(view, rows, columns, "Time of an epoch", note)]


def _convergence(view: Derived, rows: Rows, table: str) -> list[DataTable]:
    """A row for each accuracy and run."""
    lines = []
    for level in levels(view.study):
        for run, than in rows:
            cells, records = [run.label, f"{level} %"], []
            for name in ("epochs", "seconds"):
                quantity = Quantity(f"{name} to {level} %")
                own, pair = view.sum(run, quantity), view.pair(run, than, quantity)
                cells += [mean(own, 1, own.spread.count) if own else MISSING]
                cells += [difference(pair, 1) if pair else MISSING]
                records += [*(own.records if own else ()), *(pair.records if pair else ())]
            own = view.sum(run, Quantity(f"epochs to {level} %"))
            lines.append(Row([*cells, str(own.spread.count) if own else MISSING], records))
    titles = ("Accuracy", "Epochs", "Epochs, difference", "Seconds", "Seconds, difference", "Seeds")
    note = (
        f"{READ} Accuracies are shares of the lowest one that all runs ended with; between two "
        "epochs, accuracy is taken to rise in a straight line. Seconds are epochs times the time "
        "of an epoch in the cost table."
    )
    shape = [Column("Run", False), Column(titles[0], False), *map(Column, titles[1:])]
    return [DataTable("Epochs until an accuracy is reached", shape, lines, note)] if lines else []


def _curve(view: Derived, rows: Rows, table: str) -> DataTable | None:
    """Consistency over all shares of patches moved."""
    if table in ("cost", "convergence", "robustness"):
        return None
    ratios = [
        ratio
        for ratio in view.study.ratios
        if any(view.sum(run, Quantity("consistency", ratio)) for run, _ in rows)
    ]
    if not ratios:
        return None
    columns = [Mean(f"{ratio:g}", Quantity("consistency", ratio)) for ratio in ratios]
    found = table_of(view, rows, columns, "Consistency, %, by share of patches moved")
    return DataTable(found.caption, found.columns, found.rows, folded=True)


def _errors(view: Derived, rows: Rows, table: str) -> DataTable | None:
    """The error under each corruption."""
    if table != "robustness":
        return None
    names = dict.fromkeys(
        one for run, _ in rows for one in run.readings if one.value.startswith("error ")
    )
    lines = []
    for quantity in names:
        sums = [view.sum(run, quantity) for run, _ in rows]
        cells = [mean(one, 1, one.spread.count) if one else MISSING for one in sums]
        records = [record for one in sums if one for record in one.records]
        name = quantity.value.removeprefix("error ").replace("_", " ")
        lines.append(Row([name, *cells], records))
    heads = [Column("Corruption", False), *(Column(run.label) for run, _ in rows)]
    return DataTable("Error by corruption, %", heads, lines, folded=True) if lines else None


def _seeds(study: Study, rows: Rows) -> DataTable | None:
    """What the images of each seed say, as it was measured."""
    names = {"top1": "top-1, points", "consistency": "consistency, points"}
    names |= {"diff_norm": "Diff. Norm."}
    own = {(run.name, than.name) for run, than in rows if than is not None}
    lines = []
    for (run, than, seed, quantity, _), record in study.differences.items():
        shown = quantity in (TOP1, SAME, SAME_LESS, MOVED)
        if (run, than) in own and shown and run in study.runs and than in study.runs:
            cells = (
                f"{study.runs[run].label} − {study.runs[than].label}",
                seed or MISSING,
                names[quantity.value],
                fixed(quantity.ratio or 0.0, 2),
                signed(record.values, "difference"),
                "yes" if is_clear(record.values, "difference") else "no",
                words(record.conditions, "evaluation"),
            )
            lines.append(Row(cells, (record,)))
    columns = (
        Column("Runs", False),
        Column("Seed"),
        Column("Of what", False),
        Column("Share moved", False),
        Column("Difference [95 % over images]"),
        Column("0 outside", False),
        Column("Evaluation", False),
    )
    caption = "Differences seed by seed, paired over images"
    return DataTable(caption, columns, lines, folded=True) if lines else None
