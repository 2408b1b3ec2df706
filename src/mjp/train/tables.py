"""What trainings look like: columns, figures and fixed texts. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from mjp.core.display import clock
from mjp.core.records import Record, Scalar
from mjp.report.table import (
    Column,
    Figure,
    Joined,
    Section,
    Table,
    differences,
    number,
    split,
    text_of,
)


def _last(records: Sequence[Record], kind: str) -> list[Record]:
    """The last record of a kind, if there is one."""
    return [record for record in records if record.kind == kind][-1:]


def _outcomes(records: Sequence[Record]) -> Joined:
    """For each folder that was trained in: its recipe, and what came out."""
    for some in split(records, "folder"):
        for start in _last(some, "train start"):
            values: dict[str, Scalar] = {"epochs": sum(r.kind == "train epoch" for r in some)}
            epoch, end = _last(some, "train epoch"), _last(some, "train end")
            whole = _last([r for r in some if "epoch" not in r.conditions], "train timing")
            names = [name for record in epoch for name in record.values]
            for metric in [name for name in names if name.startswith("val_")][:1]:
                values[metric.replace("val_", "last_", 1)] = epoch[0].values[metric]
            for record in (*end, *whole):
                values |= record.values
            sources = (start, *epoch, *end, *whole)
            yield Record("train start", start.conditions, values), sources


def _settings(records: Sequence[Record]) -> Joined:
    """For each folder, the settings that are not the same in all."""
    known = [start for some in split(records, "folder") for start in _last(some, "train start")]
    for start, text in zip(known, differences(known, besides=("folder",)), strict=True):
        if text:
            yield Record("train start", {**start.conditions, "settings": text}, {}), (start,)


def _model(record: Record) -> Scalar:
    return " ".join(text_of(record.conditions, f"model.{name}") for name in ("name", "arguments"))


def _data(record: Record) -> Scalar:
    return text_of(record.conditions, "data.root") or record.conditions.get("data.source")


def _mjp(record: Record) -> Scalar:
    ratio = number(record.conditions, "mjp.ratio")
    localization = text_of(record.conditions, "mjp.localization")
    parts = [f"γ = {ratio:g}" if ratio else "", localization and f"localization {localization}"]
    return ", ".join(filter(None, parts)) or "none"


def _epochs(record: Record) -> Scalar:
    return f"{record.values['epochs']} of {text_of(record.conditions, 'run.epochs') or '?'}"


def _best(record: Record) -> Scalar:
    """What a task other than classification chooses its best model by."""
    for name in record.values:
        what, value = name.removeprefix("best_"), number(record.values, name)
        if what not in (name, "epoch", "top1") and value:
            return f"{what} {value:.4g}"
    return ""


RUN = Column("Run", "folder", numeric=False)
OUTCOMES = Table(
    "train start",
    "What came out of training",
    (
        RUN,
        Column("Model", _model, numeric=False),
        Column("Data", _data, numeric=False),
        Column("MJP", _mjp, numeric=False),
        Column("Epochs", _epochs),
        Column("Last top-1, %", "last_top1", optional=True),
        Column("Best top-1, %", "best_top1", optional=True),
        Column("Best", _best, optional=True),
        Column("Time", lambda record: clock(number(record.values, "seconds"))),
    ),
    join=_outcomes,
)
SETTINGS = Table(
    "train start",
    "Settings in which the runs differ",
    (RUN, Column("Settings", "settings", numeric=False, look="wide")),
    folded_from=1,
    join=_settings,
)


def _draw(records: Sequence[Record], out: Path) -> list[Path]:
    from mjp.report.figures import draw_training

    return draw_training(records, out)


def _unfinished(records: Sequence[Record]) -> str:
    """What to do about a training that did not come to its end."""
    start, done = _last(records, "train start"), sum(r.kind == "train epoch" for r in records)
    if not start or _last(records, "train end"):
        return ""
    return (
        f"training is not finished, {done} of {start[0].conditions.get('run.epochs')} epochs are "
        "written down; go on with mjp train --resume --out {path}."
    )


SECTIONS = (
    Section(
        "training",
        "Training",
        "How training went",
        (OUTCOMES, SETTINGS),
        (
            Figure(
                _draw,
                "Curves of loss and validation accuracy over the epochs, a line for each run",
                "Loss and accuracy after each epoch.",
            ),
        ),
        intro="Each line is one run. Where two differ in nothing but MJP, the difference is MJP’s, "
        "and that of one seed: it says that training works, not that one is better. Accuracies "
        "here are of the validation during training; evaluations elsewhere on this page may draw "
        "other images of the same set, and compute in another precision.",
        also=frozenset({"train epoch", "train end", "train timing", "train step"}),
        figures_first=True,
        check=_unfinished,
    ),
)
