"""Figures of an audit: what attacks recovered, as points, curves and bars.

Records are those of attacks, with `baseline`, `part`, `counts` and `ratio` among their values, as
`mjp.privacy.tables` adds them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from mjp.core.records import Record
from mjp.report.style import LINES, draw_line, legend_below, look, shortened, styled, write
from mjp.report.table import interval, number, split, text_of

CEILING = 60.0
"""dB at which axes end: rounding to 8 bits alone costs as much, so beyond it no one sees more."""
LEVEL_COLORS = {
    "recovered": "#d55e00",
    "recognisable": "#e69f00",
    "traces": "#0072b2",
    "failed": "#777777",
}
GUESSES = {
    "baseline_mean_psnr": "the data's mean picture",
    "baseline_colour_psnr": "one colour, the picture's own mean",
}


def draw_defences(records: Sequence[Record], out: Path) -> list[Path]:
    """For each defence a bar for each attack, its whiskers from the lowest to the highest image."""
    if not records:
        return []
    attacks = _names(records, "attack")
    panels = split(records, "model")
    counts = [max(5.0, len(rows) + 0.7 * len(_names(rows, "defence"))) for rows in panels]
    with styled() as subplots:
        size = (9.5, 1.4 + sum(0.23 * count + 0.7 for count in counts))
        figure, axes = subplots(len(panels), 1, figsize=size, height_ratios=counts)
        for axis, rows in zip(axes[:, 0], panels, strict=True):
            _draw_bars(axis, split(rows, "defence"), attacks)
            _draw_guesses(axis.axvline, rows)
            axis.set_title(_model(rows), loc="left")
            axis.set_xlim(0, CEILING + 6)
            _decibels(axis.xaxis)
            axis.grid(axis="x")
        axes[-1, 0].set_xlabel("PSNR against the original, dB; whiskers: lowest and highest image")
        legend_below(figure, axes[:, 0])
        return write(figure, out, "defences")


def _draw_bars(axis: Any, groups: Sequence[Sequence[Record]], attacks: list[str]) -> None:
    at, ticks = 0.0, {}
    for rows in groups:
        top, silent = at, []
        for row in rows:
            attack = text_of(row.conditions, "attack")
            three = interval(row.values, "psnr", "lowest", "highest")
            if three is None:
                silent.append(attack)
                continue
            width, low, high = map(_capped, three)
            pale = row.values.get("counts") is False or row.values.get("level") == "failed"
            color = look(attacks.index(attack))["color"]
            axis.barh(at, width, height=0.86, color=color, alpha=0.4 if pale else 1.0)
            axis.plot([low, high], [at, at], color="0.1", linewidth=1.1, marker="|", markersize=5)
            axis.text(max(width, high) + 0.7, at, f"{three[0]:.1f}", va="center", fontsize=9)
            at += 1
        if silent:
            text = shortened(f"does not apply: {', '.join(silent)}", 90)
            axis.text(0.5, at, text, color="0.45", style="italic", va="center", fontsize=9)
            at += 1
        ticks[(top + at - 1) / 2] = shortened(text_of(rows[0].conditions, "defence"))
        at += 0.7
    axis.set_ylim(at - 1.0, -0.7)
    axis.set_yticks(list(ticks), ticks.values())
    axis.tick_params(axis="y", length=0)
    for place, attack in enumerate(attacks):
        axis.barh(0, 0, color=look(place)["color"], label=attack)
    axis.barh(0, 0, color="0.75", label="pale: solver failed, or number does not count")


def draw_ratios(records: Sequence[Record], out: Path) -> list[Path]:
    """PSNR over MJP's ratio, a line for each attack; nothing with less than two ratios of MJP."""
    known = [record for record in records if number(record.values, "ratio") is not None]
    panels = [rows for rows in split(known, "model") if len({_ratio(r) for r in rows} - {0}) >= 2]
    if not panels:
        return []
    attacks = _names(records, "attack")
    with styled() as subplots:
        size = (2.2 + 5.6 * len(panels), 6)
        figure, axes = subplots(1, len(panels), figsize=size, sharey=True)
        for axis, rows in zip(axes[0], panels, strict=True):
            for some in split(rows, "attack"):
                attack = text_of(some[0].conditions, "attack")
                style = {**look(attacks.index(attack)), "markersize": 7}
                draw_line(axis, _points(some, "psnr"), attack, **style)
                style["linestyle"] = "--"
                left_alone = _points(some, "psnr_unmasked")
                draw_line(axis, left_alone, f"{attack}, patches left alone", **style)
            _draw_guesses(axis.axhline, rows)
            axis.set_title(_model(rows, 40), loc="left")
            axis.set(xlabel="γ: share of patches that MJP masks and moves", ylim=(0, CEILING + 2))
            _decibels(axis.yaxis)
            axis.grid()
        axes[0, 0].set_ylabel("PSNR against the original, dB")
        legend_below(figure, axes[0])
        return write(figure, out, "ratio")


def _ratio(record: Record) -> float:
    return number(record.values, "ratio") or 0.0


def _points(records: Sequence[Record], name: str) -> list[tuple[float, float, float, float]]:
    points = []
    for record in records:
        if (three := interval(record.values, name)) is not None:
            middle, low, high = map(_capped, three)
            points.append((_ratio(record), middle, low, high))
    return points


def draw_tradeoff(records: Sequence[Record], out: Path) -> list[Path]:
    """What the closest picture under each defence has, against the accuracy that is left.

    Args:
        records: of each defence, its accuracy, whether it was `measured`, and that attack.
    """
    names = ("top1", "psnr")
    known = [r for r in records if all(number(r.values, name) is not None for name in names)]
    panels = split(known, "model")
    if not panels:
        return []
    with styled() as subplots:
        size = (9.5, len(panels) * max(5.2, 1.8 + 0.27 * max(map(len, panels))))
        figure, axes = subplots(len(panels), 1, figsize=size)
        for axis, rows in zip(axes[:, 0], panels, strict=True):
            for row in rows:
                _draw_point(axis, row, LEVEL_COLORS.get(text_of(row.values, "level"), "#777777"))
            _label_points(axis, rows)
            guess = number(rows[0].values, "baseline")
            if guess is not None:
                axis.axhline(guess, color="0.25", linestyle="--", linewidth=1.3, zorder=2)
                axis.axhspan(0, guess, color="0.5", alpha=0.08, zorder=0)
            axis.margins(x=0.12)
            axis.set_title(_model(rows), loc="left")
            axis.set(
                xlabel="top-1 accuracy, %",
                ylabel="PSNR of the strongest attack\nagainst the original, dB",
                ylim=(0, CEILING + 2),
            )
            _decibels(axis.yaxis)
            axis.grid()
        dot = {"marker": "o", "markersize": 9, "linestyle": "", "markeredgewidth": 1.8}
        hollow = "hollow: accuracy under this defence not measured"
        moved = "diamond: recovered, but out of place or in part"
        guess_line = "trivial guess: below this line nothing was recovered"
        looks: list[dict[str, Any]] = [
            *({**dot, "color": color, "label": level} for level, color in LEVEL_COLORS.items()),
            {**dot, "color": "0.3", "label": hollow, "markerfacecolor": "white"},
            {**dot, "color": "0.3", "label": moved, "marker": "D"},
            {"color": "0.25", "label": guess_line, "linestyle": "--"},
        ]
        handles = [Line2D([], [], **each) for each in looks]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
        return write(figure, out, "tradeoff")


def _draw_point(axis: Any, row: Record, color: str) -> None:
    measured = bool(row.values.get("measured"))
    top1, left, right = interval(row.values, "top1") or (0.0, 0.0, 0.0)
    height, low, high = map(_capped, interval(row.values, "psnr") or (0.0, 0.0, 0.0))
    axis.errorbar(
        top1,
        height,
        xerr=[[max(0, top1 - left)], [max(0, right - top1)]] if measured else None,
        yerr=[[max(0, height - low)], [max(0, high - height)]],
        color=color,
        marker="D" if row.values.get("part") else "o",
        markersize=9,
        markerfacecolor=color if measured else "white",
        markeredgewidth=1.8,
        elinewidth=1.2,
        capsize=3,
        zorder=3,
    )


def _label_points(axis: Any, rows: Sequence[Record]) -> None:
    """Labels in a column at the right, each joined to its point, none over another."""
    rows = sorted(rows, key=lambda row: number(row.values, "psnr") or 0.0)
    psnr = np.array([number(row.values, "psnr") or 0.0 for row in rows])
    heights = psnr.clip(0, CEILING)
    gap = (CEILING + 2) / max(16, len(rows) + 1)
    steps = gap * np.arange(len(rows))
    # Moved up until each is a gap above the one before, then down where they leave the axis.
    places = np.maximum.accumulate(heights.clip(min=gap / 2) - steps) + steps
    places = np.minimum(places, CEILING + 2 - gap / 2 - steps[::-1])
    for row, decibels, height, y in zip(rows, psnr, heights, places, strict=True):
        told = row.conditions
        axis.annotate(
            shortened(f"{told.get('defence')}: {decibels:.1f} dB, {told.get('attack')}", 46),
            xy=(number(row.values, "top1") or 0.0, height),
            xytext=(1.03, y),
            textcoords=axis.get_yaxis_transform(),
            fontsize=10,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "0.7", "shrinkB": 5, "relpos": (0, 0.5)},
        )


def _names(records: Sequence[Record], condition: str) -> list[str]:
    return list(dict.fromkeys(text_of(record.conditions, condition) for record in records))


def _model(rows: Sequence[Record], length: int = 60) -> str:
    return shortened(text_of(rows[0].conditions, "model"), length)


def _capped(psnr: float) -> float:
    return min(max(psnr, 0.0), CEILING)


def _decibels(axis: Any) -> None:
    """Ticks of PSNR up to the ceiling, the last of which stands for all that is beyond it."""
    ticks = np.arange(0, CEILING + 1, 10)
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks[:-1]] + [f"≥{CEILING:g}"])


def _draw_guesses(draw: Callable[..., object], rows: Sequence[Record]) -> None:
    """The trivial guesses as lines."""
    for (name, title), line in zip(GUESSES.items(), LINES[:2], strict=True):
        value = next((v for row in rows if (v := number(row.values, name)) is not None), None)
        if value is not None:
            label = f"trivial guess: {title}"
            draw(value, color="0.25", linestyle=line, linewidth=1.2, label=label)
