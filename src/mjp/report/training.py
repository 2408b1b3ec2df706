"""What a page says of training runs: curves, what came out, and how their recipes differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mjp.core.records import Record
from mjp.report.leaks import number, words
from mjp.report.page import Column, DataTable, Renderer, Row, Section, drawn, embedded, fixed
from mjp.report.reading import clock
from mjp.report.runs import Run
from mjp.report.style import look, styled, write

CHAPTER = "Training"
PANELS = (
    ("classification", "classification loss on training images"),
    ("val_top1", "top-1 accuracy on validation images, %"),
    ("localization", "localization loss (DAL):\nerror in cells of the grid"),
)


def training_sections(runs: Sequence[Run], renderer: Renderer) -> list[Section]:
    """One section on all runs that trained; none where none did."""
    found = [run for run in runs if run.of("train start")]
    if not found:
        return []
    body = renderer.paragraphs(
        "Each line is one run. Where two differ in nothing but MJP, the difference is MJP’s, and "
        "that of one seed: it says that training works, not that one is better. Accuracies here "
        "are of the validation during training; evaluations elsewhere on this page may draw other "
        "images of the same set, and compute in another precision."
    )
    curves = {_short(run, found): run.of("train epoch") for run in found}
    with drawn(lambda out: draw_training(curves, out)) as paths:
        for path in paths:
            alt = "Curves of loss and validation accuracy over the epochs, a line for each run"
            caption = "Loss and accuracy after each epoch."
            body += renderer.figure(embedded(path, alt, caption))
    body += renderer.table(_outcomes(found))
    differing = _differing(found)
    if differing:
        body += renderer.table(differing)
    return [Section("training", "How training went", body, CHAPTER)]


def draw_training(runs: Mapping[str, Sequence[Record]], out: Path) -> list[Path]:
    """Losses and accuracy over the epochs, a line for each run; nothing without an epoch."""
    panels = [
        (name, title)
        for name, title in PANELS
        if any(number(one.values, name) for records in runs.values() for one in records)
    ]
    if not panels:
        return []
    with styled() as subplots:
        height = 4.2 + 0.24 * ((len(runs) + 1) // 2)
        figure, axes = subplots(1, len(panels), figsize=(4.5 * len(panels), height), squeeze=False)
        for axis, (name, title) in zip(axes[0], panels, strict=True):
            for place, (label, records) in enumerate(runs.items()):
                _draw_line(axis, name, label, records, place)
            axis.set_title(title)
            axis.set_xlabel("epoch")
            axis.grid(alpha=0.25)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        return write(figure, out, "training")


def _draw_line(axis: Any, name: str, label: str, records: Sequence[Record], place: int) -> None:
    points = [(number(one.conditions, "epoch"), number(one.values, name)) for one in records]
    known = [(epoch, value) for epoch, value in points if epoch is not None and value is not None]
    if name == "localization" and not any(value for _, value in known):
        known = []  # A run without the loss records zeros.
    every = max(1, len(known) // 10)
    style = look(place)
    axis.plot(*(zip(*known, strict=True) if known else ([], [])), label=label, markevery=every,
              markersize=5, linewidth=1.8, **style)  # fmt: skip


def _outcomes(runs: Sequence[Run]) -> DataTable:
    columns = ("Run", "Model", "Data", "MJP", "Epochs", "Last top-1, %", "Best top-1, %", "Time")
    rows = []
    for run in runs:
        start = run.of("train start")[-1]
        epochs = run.of("train epoch")
        end = next(iter(run.of("train end")[-1:]), None)
        times = [one for one in run.of("train timing") if number(one.values, "seconds")]
        total = next((one for one in reversed(times) if "epoch" not in one.conditions), None)
        last = end or next((one for one in reversed(epochs)), None)
        top1 = None if last is None else number(last.values, "last_top1" if end else "val_top1")
        told = start.conditions
        rows.append(
            Row(
                (
                    _short(run, runs),
                    f"{told.get('model.name')} {told.get('model.arguments') or ''}",
                    words(told, "data.root") or words(told, "data.source"),
                    _mjp(start),
                    f"{len(epochs)} of {told.get('run.epochs')}",
                    fixed(top1, 2),
                    fixed(None if end is None else number(end.values, "best_top1"), 2),
                    clock(None if total is None else number(total.values, "seconds")),
                ),
                (start, last, total),
            )
        )
    numeric = (False, False, False, False, True, True, True, True)
    shape = [Column(name, kind) for name, kind in zip(columns, numeric, strict=True)]
    return DataTable("What came out of training", shape, rows)


def _mjp(start: Record) -> str:
    """MJP's part of a recipe in words."""
    told = start.conditions
    ratio = number(told, "mjp.ratio")
    localization = words(told, "mjp.localization")
    if not ratio and not localization:
        return "none"
    parts = [f"γ = {ratio:g}" if ratio else "", localization and f"localization {localization}"]
    return ", ".join(part for part in parts if part)


def _differing(runs: Sequence[Run]) -> DataTable | None:
    """The settings that are not the same in all runs."""
    starts = [run.of("train start")[-1] for run in runs]
    names = list(dict.fromkeys(name for one in starts for name in one.conditions))
    rows = []
    for name in names:
        values = [str(one.conditions.get(name, "–")) for one in starts]
        if len(set(values)) > 1:
            rows.append(Row((name, *values), starts))
    if not rows or len(runs) < 2:
        return None
    columns = [Column("Setting", False), *(Column(_short(run, runs), False) for run in runs)]
    return DataTable("Settings in which the runs differ", columns, rows, folded=True)


def _short(run: Run, runs: Sequence[Run]) -> str:
    """The run's name without the folders that all have in common."""
    shared = len({one.name.rpartition("/")[2] for one in runs}) == len(runs)
    return run.name.rpartition("/")[2] if shared else run.name
