"""Figures of a study: over γ, over the share of patches moved, over epochs, and of differences."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mjp.report import paper
from mjp.report.study import Quantity, StudyRun
from mjp.report.study_derived import Derived
from mjp.report.study_tables import (
    ADAPTIVE_SOLVE,
    GUESS,
    MEAN_ERROR,
    PATCH_SOLVE,
    SAME,
    SAME_LESS,
    TOP1,
)
from mjp.report.style import look, shortened, styled, write

LEGEND: Mapping[str, Any] = {"frameon": False, "fontsize": 10}
DPI = 100
"""Of the PNG files, which stand in documents."""
LEAST_POINTS = 5.0
FAR = 2.0
"""Leaks without a jigsaw that are so many times those with one are told in words: drawn to scale,
they would leave no room for the others."""
FAR_LINE = 3.0
"""A line that reaches so many times as far as the usual one is cut off, for the same reason."""


class Point(NamedTuple):
    """Of a line with a band about it, half as wide as the band."""

    x: float
    value: float
    half: float


@dataclass(frozen=True)
class Drawing:
    """A figure in files: PNG, then SVG."""

    paths: tuple[Path, ...]
    alt: str
    caption: str


def draw_table(view: Derived, table: str, out: Path) -> list[Drawing]:
    """All figures on a table that there are numbers for."""
    makers: Mapping[str, Sequence[Callable[[Derived, str, Path], Drawing | None]]] = {
        "gamma": (draw_gamma,),
        "ablation": (draw_differences, draw_curves),
        "backbones": (draw_differences,),
        "finetune": (draw_differences,),
        "robustness": (draw_errors,),
        "convergence": (draw_epochs,),
    }
    found = [make(view, table, out) for make in makers.get(table, ())]
    return [one for one in found if one is not None]


def draw_gamma(view: Derived, table: str, out: Path) -> Drawing | None:
    """Accuracy, consistency and leaks against the ratio that was trained with."""
    rows = view.study.rows(table)
    panels = (
        ("top-1 accuracy, %", {"untouched pictures": TOP1}),
        (
            "consistency, %",
            {f"{one.ratio:g} of the patches moved": one for one in (SAME_LESS, SAME)},
        ),
        (
            "what an attack brings back: PSNR, dB",
            {
                "patch solve": PATCH_SOLVE,
                "adaptive solve, knows MJP": ADAPTIVE_SOLVE,
                "patch solve, no jigsaw": Quantity("undefended psnr patch_solve"),
                "a guess (mean picture)": GUESS,
            },
        ),
    )
    if not any(view.sum(run, one) for run in rows for _, own in panels for one in own.values()):
        return None
    with styled() as subplots:
        figure, axes = subplots(1, 3, figsize=(12.6, 4.3))
        for axis, (title, lines) in zip(axes, panels, strict=True):
            for place, (label, quantity) in enumerate(lines.items()):
                _draw_sums(axis, view, [(run.gamma, run, quantity) for run in rows], label, place)
            axis.set_title(title)
            axis.set_xlabel("γ in training")
            axis.grid(alpha=0.25)
            if axis.get_legend_handles_labels()[0] and len(lines) > 1:
                axis.legend(**LEGEND)
        _widen(axes[0])
        _cut(axes[2], view, rows, panels[2][1].values())
        paths = write(figure, out, f"study-{table}", dpi=DPI)
    return Drawing(
        tuple(paths),
        "Accuracy, consistency and what attacks bring back, over the ratio γ of training",
        "Over γ: accuracy, consistency, and what attacks on a shared gradient bring back. Bars: "
        "standard deviation over seeds, where there are several.",
    )


def _widen(axis: Any) -> None:
    """Shows some points of accuracy at least, so that chance does not look like a mountain."""
    low, high = axis.get_ylim()
    more = max(0.0, LEAST_POINTS - (high - low)) / 2
    axis.set_ylim(low - more, high + more)


def _cut(
    axis: Any, view: Derived, rows: Sequence[StudyRun], quantities: Iterable[Quantity]
) -> None:
    """Ends the axis above what is left under jigsaws, and says what lies beyond, at γ = 0."""
    found = [(run.gamma, view.sum(run, one)) for one in quantities for run in rows]
    known = [(gamma, one.spread.mean) for gamma, one in found if one is not None]
    without = max((mean for gamma, mean in known if not gamma), default=0.0)
    under = max((mean for gamma, mean in known if gamma), default=0.0)
    if not 0 < FAR * under < without:
        return
    axis.set_ylim(0, 1.4 * under)
    axis.annotate(
        f"{without:.0f} at γ = 0",
        xy=(0, 1),
        xytext=(14, -14),
        xycoords=axis.get_xaxis_transform(),
        textcoords="offset points",
        arrowprops={"arrowstyle": "->"},
        fontsize=10,
        verticalalignment="top",
    )


def _draw_sums(
    axis: Any,
    view: Derived,
    points: Sequence[tuple[float, StudyRun, Quantity]],
    label: str,
    place: int,
) -> None:
    """Means with bars of their standard deviations."""
    known = [(x, found.spread) for x, run, of in points if (found := view.sum(run, of))]
    if not known:
        return
    xs, spreads = zip(*known, strict=True)
    bars = [one.sd or 0.0 for one in spreads]
    axis.errorbar(
        xs,
        [one.mean for one in spreads],
        yerr=bars if any(bars) else None,
        label=label,
        capsize=3,
        markersize=6,
        linewidth=1.8,
        **look(place),
    )


def draw_curves(view: Derived, table: str, out: Path) -> Drawing | None:
    """Consistency over the share of patches moved, and what it is more than the baseline's."""
    rows = view.study.rows(table)
    curves = {run.label: points for run in rows if (points := _consistency(view, run))}
    if not curves:
        return None
    thans = {run.label: view.study.baseline(table, run) for run in rows}
    more = {run.label: _more_consistent(view, run, thans[run.label]) for run in rows}
    panels = 2 if any(more.values()) else 1
    with styled() as subplots:
        height = 4.6 + 0.24 * ((len(curves) + 1) // 2)
        figure, axes = subplots(1, panels, figsize=(8.6 if panels == 1 else 12.6, height),
                                squeeze=False)  # fmt: skip
        for place, (label, points) in enumerate(curves.items()):
            _draw_band(axes[0, 0], points, label, place)
            if more[label]:
                _draw_band(axes[0, -1], more[label], label, place, alpha=0.1)
        axes[0, 0].set_title("consistency: same class as without the jigsaw, %")
        axes[0, 0].set_ylim(top=101)
        if panels == 2:
            labels = {one.label for one in thans.values() if one is not None}
            than = labels.pop() if len(labels) == 1 else "the baseline"
            axes[0, 1].set_title(f"consistency − that of {shortened(than, 30)}, points")
            axes[0, 1].set_ylim(*without_far([points for points in more.values() if points]))
            axes[0, 1].axhline(0, color="0.4", linewidth=1)
        for axis in axes[0]:
            axis.set_xlabel("share of patches moved")
            axis.grid(alpha=0.25)
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=1 + panels, **LEGEND)
        paths = write(figure, out, f"study-{table}-curves", dpi=DPI)
    caption = (
        "Consistency over the share of patches that a jigsaw moves. Bands: standard deviation over "
        "seeds, where there are several."
    )
    if panels == 2:
        caption += (
            " Right: differences to the baseline, with 95 % intervals over seeds as bands; what "
            "lies far from the others is cut off."
        )
    return Drawing(
        tuple(paths), "Consistency over the share of patches moved, a line for each run", caption
    )


def _consistency(view: Derived, run: StudyRun) -> list[Point]:
    """Of a run, from no patch moved on."""
    found = [
        Point(ratio, own.spread.mean, own.spread.sd or 0.0)
        for ratio in view.study.ratios
        if (own := view.sum(run, Quantity("consistency", ratio)))
    ]
    return [Point(0.0, 100.0, 0.0), *found] if found else []


def _more_consistent(view: Derived, run: StudyRun, than: StudyRun | None) -> list[Point]:
    """What a run has more than its baseline, with half of each interval that is over seeds."""
    found = []
    for ratio in view.study.ratios:
        if pair := view.pair(run, than, Quantity("consistency", ratio)):
            own = pair.comparison
            high = own.high if own.over == "seeds" and own.high is not None else own.difference
            found.append(Point(ratio, own.difference, high - own.difference))
    return [Point(0.0, 0.0, 0.0), *found] if found else []


def without_far(lines: Sequence[Sequence[Point]]) -> tuple[float, float]:
    """Ends of an axis that shows all lines but those that would leave no room for the others."""
    reach = [max(abs(one.value) for one in own) for own in lines]
    usual = float(np.median(reach))
    near = [own for own, far in zip(lines, reach, strict=True) if far <= FAR_LINE * usual]
    ends = [one.value + side * one.half for own in near for one in own for side in (-1, 1)]
    room = 0.06 * ((max(ends) - min(ends)) or 1.0)
    return min(ends) - room, max(ends) + room


def _draw_band(
    axis: Any,
    points: Sequence[Point],
    label: str,
    place: int,
    every: int = 1,
    alpha: float = 0.18,
) -> None:
    style = look(place)
    xs, means, halves = (np.array(one) for one in zip(*points, strict=True))
    axis.plot(xs, means, label=shortened(label, 36), markersize=5, linewidth=1.7,
              markevery=(place * every // 5, every), **style)  # fmt: skip
    if halves.any():
        low, high = means - halves, means + halves
        axis.fill_between(xs, low, high, color=style["color"], alpha=alpha, linewidth=0)


def draw_epochs(view: Derived, table: str, out: Path) -> Drawing | None:
    """Top-1 over the epochs, mean over seeds; epochs that all seeds of a run have."""
    curves: dict[str, list[Point]] = {}
    for run in view.study.rows(table):
        own = list(run.epochs.values())
        common = sorted(set.intersection(*(set(one) for one in own))) if own else []
        for epoch in common:
            values = [one[epoch] for one in own]
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            curves.setdefault(run.label, []).append(Point(float(epoch), float(np.mean(values)), sd))
    if not curves:
        return None
    with styled() as subplots:
        figure, axis = subplots(1, 1, figsize=(8.6, 4.6))
        every = max(1, max(map(len, curves.values())) // 10)
        for place, (label, points) in enumerate(curves.items()):
            _draw_band(axis, points, label, place, every)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_title("top-1 accuracy on validation images, %")
        axis.grid(alpha=0.25)
        axis.legend(loc="lower right", **LEGEND)
        paths = write(figure, out, f"study-{table}", dpi=DPI)
    return Drawing(
        tuple(paths),
        "Top-1 accuracy over the epochs, a line for each run",
        "Accuracy after each epoch, mean over seeds. Bands: standard deviation over seeds.",
    )


def draw_differences(view: Derived, table: str, out: Path) -> Drawing | None:
    """What each row has more than its baseline in accuracy and in consistency."""
    panels = {
        "top-1 accuracy, points": TOP1,
        f"consistency at {paper.CONSISTENCY_RATIO:g}, points": SAME,
    }
    return _draw_forest(view, table, out, panels)


def draw_errors(view: Derived, table: str, out: Path) -> Drawing | None:
    """What each row errs more than its baseline on corrupted images."""
    return _draw_forest(view, table, out, {"mean error on corrupted images, points": MEAN_ERROR})


def _draw_forest(
    view: Derived, table: str, out: Path, panels: Mapping[str, Quantity]
) -> Drawing | None:
    study = view.study
    pairs = [(run, than) for run in study.rows(table) if (than := study.baseline(table, run))]
    pairs = [one for one in pairs if any(view.pair(*one, of) for of in panels.values())]
    if not pairs:
        return None
    thans = {than.label for _, than in pairs}
    one_baseline = f" against {next(iter(thans))}" if len(thans) == 1 else ""
    with styled() as subplots:
        size = (4.2 + 4.2 * len(panels), 1.5 + 0.4 * len(pairs))
        figure, axes = subplots(1, len(panels), figsize=size, squeeze=False, sharey=True)
        for axis, (title, quantity) in zip(axes[0], panels.items(), strict=True):
            for place, (run, than) in enumerate(pairs):
                _draw_difference(axis, view, run, than, quantity, place)
            axis.axvline(0, color="0.4", linewidth=1)
            axis.set_xlabel(title)
            axis.grid(alpha=0.25, axis="x")
        axes[0, 0].set_yticks(range(len(pairs)), [shortened(run.label, 40) for run, _ in pairs])
        axes[0, 0].set_ylim(len(pairs) - 0.5, -0.5)
        figure.suptitle(f"difference{one_baseline or ' against its baseline'}", fontsize=13)
        paths = write(figure, out, f"study-{table}", dpi=DPI)
    return Drawing(
        tuple(paths),
        "Differences to the baseline with their intervals, a line for each run",
        "Differences to the baseline with 95 % intervals. Full marks: 0 is outside. Dots: over "
        "seeds; squares: over images, of one seed; crosses: no interval.",
    )


def _draw_difference(
    axis: Any, view: Derived, run: StudyRun, than: StudyRun, quantity: Quantity, place: int
) -> None:
    found = view.pair(run, than, quantity)
    if found is None:
        return
    own = found.comparison
    seeds = own.over == "seeds"
    color = look(0 if seeds else 1)["color"]
    if own.low is None or own.high is None:
        axis.plot([own.difference], [place], marker="x", color="0.3", markersize=7)
        return
    ends = [[own.difference - own.low], [own.high - own.difference]]
    axis.errorbar(
        [own.difference],
        [place],
        xerr=np.abs(ends),
        marker="o" if seeds else "s",
        color=color,
        markerfacecolor=color if own.clear else "white",
        markersize=7,
        capsize=4,
        linewidth=1.8,
    )
