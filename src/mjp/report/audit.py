"""Figures of an audit: what attacks recovered, as points, curves, bars, and pictures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from mjp.core.records import Record
from mjp.report.audit_grid import GridRow, Panel, draw_grid
from mjp.report.leaks import CEILING, LEVELS, NONE, Audit, Cell, is_measured, mjp_ratio, number
from mjp.report.style import LINES, look, shortened, styled, write

__all__ = [
    "GridRow",
    "Panel",
    "draw_defences",
    "draw_grid",
    "draw_ratio_curve",
    "draw_tradeoff",
]

LEVEL_COLORS = dict(
    zip(LEVELS, ("#d55e00", "#e69f00", "#0072b2", "#777777", "#777777"), strict=True)
)


def draw_tradeoff(records: Iterable[Record], out: Path) -> list[Path]:
    """What the strongest attack on each defence recovers, against the accuracy that is left."""
    audit = Audit.of(records)
    panels = {model: _points(audit, model) for model in audit.models}
    panels = {model: points for model, points in panels.items() if points}
    if not panels:
        return []
    most = max(len(points) for points in panels.values())
    with styled() as subplots:
        figure, axes = subplots(
            len(panels), 1, figsize=(9.5, len(panels) * max(5.2, 1.8 + 0.27 * most)), squeeze=False
        )
        for axis, (model, points) in zip(axes[:, 0], panels.items(), strict=True):
            _draw_points(axis, points)
            _draw_baseline(axis, max(audit.baselines(model).values(), default=None))
            axis.set_title(shortened(model, 60), loc="left")
        figure.legend(
            handles=_tradeoff_legend(), loc="outside lower center", ncols=2, frameon=False
        )
        return write(figure, out, "tradeoff")


@dataclass(frozen=True, eq=False)
class _Point:
    """A defence: what leaks, and the accuracy with its interval."""

    cell: Cell
    accuracy: tuple[float, float, float]
    measured: bool


def _points(audit: Audit, model: str) -> list[_Point]:
    """One for each defence; where its accuracy is unknown, at that of the undefended model."""
    points = []
    for defence in audit.defences(model):
        cell = audit.highest(model, defence)
        own = audit.accuracies.get((model, defence))
        known = own is not None and number(own.values, "top1") is not None
        found = own if known else audit.accuracies.get((model, NONE))
        top1 = None if found is None else number(found.values, "top1")
        if cell is None or found is None or top1 is None:
            continue
        low, high = (number(found.values, f"top1_{end}") for end in ("low", "high"))
        three = (top1, top1 if low is None else low, top1 if high is None else high)
        points.append(_Point(cell, three, known and is_measured(found)))
    return points


def _draw_points(axis: Any, points: Sequence[_Point]) -> None:
    heights = [_capped(point.cell.number("psnr")) for point in points]
    for point, height in zip(points, heights, strict=True):
        (x, left, right), color = point.accuracy, LEVEL_COLORS[point.cell.level]
        low, high = (_capped(point.cell.number(f"psnr_{end}"), height) for end in ("low", "high"))
        axis.errorbar(
            x,
            height,
            xerr=[[max(0, x - left)], [max(0, right - x)]] if point.measured else None,
            yerr=[[max(0, height - low)], [max(0, high - height)]],
            color=color,
            marker="D" if point.cell.mark == "elsewhere" else "o",
            markersize=9,
            markerfacecolor=color if point.measured else "white",
            markeredgewidth=1.8,
            elinewidth=1.2,
            capsize=3,
            zorder=3,
        )
    lowest = min(one for point in points for one in point.accuracy)
    highest = max(one for point in points for one in point.accuracy)
    margin = max(1.0, 0.12 * (highest - lowest))
    axis.set_xlim(lowest - margin, highest + margin)
    axis.set_ylim(0, CEILING + 2)
    _decibels(axis.yaxis)
    axis.set_xlabel("top-1 accuracy, %")
    axis.set_ylabel("PSNR of the strongest attack\nagainst the original, dB")
    axis.grid(alpha=0.25)
    _label(axis, points, heights)


def _label(axis: Any, points: Sequence[_Point], heights: Sequence[float]) -> None:
    """Labels in a column at the right, each joined to its point, none over another."""
    order = sorted(range(len(points)), key=lambda place: heights[place])
    gap = (CEILING + 2) / max(16, len(points) + 1)
    places = _spread([heights[place] for place in order], gap, CEILING + 2 - gap / 2)
    for place, y in zip(order, places, strict=True):
        point = points[place]
        text = f"{point.cell.defence}: {point.cell.number('psnr'):.1f} dB, {point.cell.attack}"
        axis.annotate(
            shortened(text, 46),
            xy=(point.accuracy[0], heights[place]),
            xytext=(1.03, y),
            textcoords=axis.get_yaxis_transform(),
            fontsize=10,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "0.7", "shrinkB": 5, "relpos": (0, 0.5)},
        )


def _spread(values: Sequence[float], gap: float, highest: float) -> list[float]:
    """Rising values moved apart until each is `gap` above the one before, none over `highest`."""
    placed: list[float] = []
    for value in values:
        placed.append(max(value, placed[-1] + gap) if placed else max(value, gap / 2))
    limit = highest
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], limit)
        limit = placed[place] - gap
    return placed


def _tradeoff_legend() -> list[Line2D]:
    dot: dict[str, Any] = {"marker": "o", "markersize": 9, "linestyle": "", "markeredgewidth": 1.8}
    handles = [
        Line2D([], [], color=LEVEL_COLORS[level], label=level, **dot) for level in LEVELS[:4]
    ]
    hollow = "hollow: accuracy under this defence not measured"
    handles.append(Line2D([], [], color="0.3", markerfacecolor="white", label=hollow, **dot))
    moved = "diamond: recovered, but out of place or in part"
    handles.append(Line2D([], [], color="0.3", label=moved, **{**dot, "marker": "D"}))
    label = "trivial guess: below this line nothing was recovered"
    handles.append(Line2D([], [], color="0.25", linestyle="--", label=label))
    return handles


def _draw_baseline(axis: Any, baseline: float | None) -> None:
    if baseline is not None:
        axis.axhline(baseline, color="0.25", linestyle="--", linewidth=1.3, zorder=2)
        axis.axhspan(0, baseline, color="0.5", alpha=0.08, zorder=0)


def _capped(psnr: float | None, otherwise: float = 0.0) -> float:
    return otherwise if psnr is None else min(max(psnr, 0.0), CEILING)


def _decibels(axis: Any) -> None:
    """Ticks of PSNR up to the ceiling, the last of which stands for all that is beyond it."""
    ticks = np.arange(0, CEILING + 1, 10)
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks[:-1]] + [f"≥{CEILING:g}"])


def draw_ratio_curve(records: Iterable[Record], out: Path) -> list[Path]:
    """PSNR over MJP's ratio, a line for each attack; nothing with less than two ratios of MJP."""
    audit = Audit.of(records)
    panels = {}
    for model in audit.models:
        found = {one: mjp_ratio(one) for one in audit.defences(model)}
        if len({ratio for ratio in found.values() if ratio}) >= 2:
            panels[model] = {one: ratio for one, ratio in found.items() if ratio is not None}
    if not panels:
        return []
    with styled() as subplots:
        figure, axes = subplots(
            1, len(panels), figsize=(2.2 + 5.6 * len(panels), 6), squeeze=False, sharey=True
        )
        for axis, (model, ratios) in zip(axes[0], panels.items(), strict=True):
            _draw_lines(axis, audit, model, ratios)
            _guesses(audit, model, axis.axhline)
            axis.set_title(shortened(model, 40), loc="left")
            axis.set_xlabel("γ: share of patches that MJP masks and moves")
            axis.set_ylim(0, CEILING + 2)
            _decibels(axis.yaxis)
            axis.grid(alpha=0.25)
        axes[0, 0].set_ylabel("PSNR against the original, dB")
        _legend(figure, list(axes[0]))
        return write(figure, out, "ratio")


def _draw_lines(axis: Any, audit: Audit, model: str, ratios: Mapping[str, float]) -> None:
    order = sorted(ratios, key=lambda defence: ratios[defence])
    for place, attack in enumerate(audit.attacks):
        cells = [
            (ratios[defence], cell)
            for defence in order
            for cell in audit.of_defence(model, defence)
            if cell.attack == attack and cell.number("psnr") is not None
        ]
        if not cells:
            continue
        style = look(place)
        x, y = zip(*((ratio, _capped(cell.number("psnr"))) for ratio, cell in cells), strict=True)
        axis.plot(x, y, label=attack, markersize=7, linewidth=1.9, **style)
        low, high = (
            [
                _capped(cell.number(f"psnr_{end}"), at)
                for (_, cell), at in zip(cells, y, strict=True)
            ]
            for end in ("low", "high")
        )
        axis.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        parts = [(ratio, cell.number("psnr_unmasked")) for ratio, cell in cells]
        parts = [(ratio, psnr) for ratio, psnr in parts if psnr is not None]
        if attack == "adaptive solve" and parts:
            x, y = zip(*((ratio, _capped(psnr)) for ratio, psnr in parts), strict=True)
            title = f"{attack}, patches left alone"
            axis.plot(x, y, label=title, markersize=7, **{**style, "linestyle": "--"})


def draw_defences(records: Iterable[Record], out: Path) -> list[Path]:
    """For each defence a bar for each attack, its whiskers from the lowest to the highest image."""
    audit = Audit.of(records)
    if not audit.cells:
        return []
    groups = {model: _groups(audit, model) for model in audit.models}
    counts = [max(5, sum(len(lines) + 0.7 for lines in one.values())) for one in groups.values()]
    with styled() as subplots:
        figure, axes = subplots(
            len(counts),
            1,
            figsize=(9.5, 1.4 + sum(0.23 * count + 0.7 for count in counts)),
            squeeze=False,
            height_ratios=counts,
        )
        for axis, model in zip(axes[:, 0], audit.models, strict=True):
            _draw_bars(axis, groups[model], audit.attacks)
            _guesses(audit, model, axis.axvline)
            axis.set_title(shortened(model, 60), loc="left")
            axis.set_xlim(0, CEILING + 6)
            _decibels(axis.xaxis)
            axis.grid(axis="x", alpha=0.25)
        axes[-1, 0].set_xlabel("PSNR against the original, dB; whiskers: lowest and highest image")
        _legend(figure, list(axes[:, 0]))
        return write(figure, out, "defences")


def _groups(audit: Audit, model: str) -> dict[str, list[Cell | str]]:
    """For each defence its bars, and a line on the attacks that gave no number."""
    groups: dict[str, list[Cell | str]] = {}
    for defence in audit.defences(model):
        cells = audit.of_defence(model, defence)
        shown: list[Cell | str] = [cell for cell in cells if cell.number("psnr") is not None]
        silent = [cell.attack for cell in cells if cell not in shown]
        if silent:
            shown.append(shortened(f"does not apply: {', '.join(silent)}", 90))
        groups[defence] = shown
    return groups


def _draw_bars(axis: Any, groups: Mapping[str, list[Cell | str]], order: list[str]) -> None:
    at, ticks = 0.0, {}
    for defence, lines in groups.items():
        ticks[at + (len(lines) - 1) / 2] = shortened(defence)
        for line in lines:
            if isinstance(line, str):
                axis.text(0.5, at, line, color="0.45", style="italic", va="center", fontsize=9)
            else:
                _draw_bar(axis, line, at, look(order.index(line.attack))["color"])
            at += 1
        at += 0.7
    axis.set_ylim(at - 1.0, -0.7)
    axis.set_yticks(list(ticks), list(ticks.values()))
    axis.tick_params(axis="y", length=0)
    shown = {line.attack for lines in groups.values() for line in lines if isinstance(line, Cell)}
    for place, attack in enumerate(order):
        if attack in shown:
            axis.barh(0, 0, color=look(place)["color"], label=attack)
    axis.barh(0, 0, color="0.75", label="pale: solver failed, or number does not count")


def _draw_bar(axis: Any, cell: Cell, at: float, color: str) -> None:
    psnr = cell.number("psnr")
    width = _capped(psnr)
    pale = bool(cell.unproven) or cell.mark == "failed"
    axis.barh(at, width, height=0.86, color=color, alpha=0.4 if pale else 1.0)
    low, high = (_capped(cell.number(f"psnr_{end}"), width) for end in ("lowest", "highest"))
    axis.plot([low, high], [at, at], color="0.1", linewidth=1.1, marker="|", markersize=5)
    axis.text(max(width, high) + 0.7, at, f"{psnr:.1f}", va="center", fontsize=9)


def _guesses(audit: Audit, model: str, draw: Any) -> None:
    """The trivial baselines as lines."""
    for place, (title, value) in enumerate(audit.baselines(model).items()):
        label, line = f"trivial guess: {title}", LINES[place]
        draw(value, color="0.25", linestyle=line, linewidth=1.2, label=label)


def _legend(figure: Any, axes: list[Any]) -> None:
    """One for all panels, below them."""
    pairs = [axis.get_legend_handles_labels() for axis in axes]
    found = {text: handle for pair in pairs for handle, text in zip(*pair, strict=True)}
    order = sorted(found, key=lambda text: text.startswith("trivial"))
    handles = [found[text] for text in order]
    figure.legend(handles, order, loc="outside lower center", ncols=2, frameon=False)
