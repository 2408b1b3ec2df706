"""Figures of an audit: what attacks recovered, as points, curves and bars.

Records are those of attacks, with `baseline`, `part`, `counts` and `ratio` among their values, as
`mjp.privacy.tables` adds them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from mjp.core.records import Record
from mjp.report.style import LINES, legend_below, look, shortened, styled, write
from mjp.report.table import number, split, text_of

CEILING = 60.0
"""dB at which axes end: rounding to 8 bits alone costs as much, so beyond it no one sees more."""
LEVEL_COLORS = ("#d55e00", "#e69f00", "#0072b2", "#777777", "#777777")
"""From the gravest level on."""
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
        figure, axes = subplots(
            len(panels),
            1,
            figsize=(9.5, 1.4 + sum(0.23 * count + 0.7 for count in counts)),
            squeeze=False,
            height_ratios=counts,
        )
        for axis, rows in zip(axes[:, 0], panels, strict=True):
            _draw_bars(axis, split(rows, "defence"), attacks)
            _draw_guesses(axis.axvline, rows)
            axis.set_title(shortened(text_of(rows[0].conditions, "model"), 60), loc="left")
            axis.set_xlim(0, CEILING + 6)
            _decibels(axis.xaxis)
            axis.grid(axis="x", alpha=0.25)
        axes[-1, 0].set_xlabel("PSNR against the original, dB; whiskers: lowest and highest image")
        legend_below(figure, axes[:, 0])
        return write(figure, out, "defences")


def _draw_bars(axis: Any, groups: Sequence[Sequence[Record]], attacks: list[str]) -> None:
    at, ticks = 0.0, {}
    for rows in groups:
        known = [row for row in rows if number(row.values, "psnr") is not None]
        silent = _names([row for row in rows if row not in known], "attack")
        ticks[at + (len(known) + bool(silent) - 1) / 2] = text_of(rows[0].conditions, "defence")
        for row in known:
            _draw_bar(axis, row, at, attacks.index(text_of(row.conditions, "attack")))
            at += 1
        if silent:
            text = shortened(f"does not apply: {', '.join(silent)}", 90)
            axis.text(0.5, at, text, color="0.45", style="italic", va="center", fontsize=9)
            at += 1
        at += 0.7
    axis.set_ylim(at - 1.0, -0.7)
    axis.set_yticks(list(ticks), [shortened(name) for name in ticks.values()])
    axis.tick_params(axis="y", length=0)
    for place, attack in enumerate(attacks):
        axis.barh(0, 0, color=look(place)["color"], label=attack)
    axis.barh(0, 0, color="0.75", label="pale: solver failed, or number does not count")


def _draw_bar(axis: Any, row: Record, at: float, place: int) -> None:
    psnr = number(row.values, "psnr") or 0.0
    width = _capped(psnr)
    pale = row.values.get("counts") is False or row.values.get("level") == "failed"
    axis.barh(at, width, height=0.86, color=look(place)["color"], alpha=0.4 if pale else 1.0)
    low, high = (_capped(number(row.values, f"psnr_{end}"), width) for end in ("lowest", "highest"))
    axis.plot([low, high], [at, at], color="0.1", linewidth=1.1, marker="|", markersize=5)
    axis.text(max(width, high) + 0.7, at, f"{psnr:.1f}", va="center", fontsize=9)


def draw_ratios(records: Sequence[Record], out: Path) -> list[Path]:
    """PSNR over MJP's ratio, a line for each attack; nothing with less than two ratios of MJP."""
    known = [record for record in records if number(record.values, "ratio") is not None]
    panels = [rows for rows in split(known, "model") if len({r for r in _ratios(rows) if r}) >= 2]
    if not panels:
        return []
    attacks = _names(records, "attack")
    with styled() as subplots:
        figure, axes = subplots(
            1, len(panels), figsize=(2.2 + 5.6 * len(panels), 6), squeeze=False, sharey=True
        )
        for axis, rows in zip(axes[0], panels, strict=True):
            for some in split(rows, "attack"):
                place = attacks.index(text_of(some[0].conditions, "attack"))
                _draw_line(axis, some, "psnr", look(place), attacks[place])
                style = {**look(place), "linestyle": "--"}
                _draw_line(
                    axis, some, "psnr_unmasked", style, f"{attacks[place]}, patches left alone"
                )
            _draw_guesses(axis.axhline, rows)
            axis.set_title(shortened(text_of(rows[0].conditions, "model"), 40), loc="left")
            axis.set_xlabel("γ: share of patches that MJP masks and moves")
            axis.set_ylim(0, CEILING + 2)
            _decibels(axis.yaxis)
            axis.grid(alpha=0.25)
        axes[0, 0].set_ylabel("PSNR against the original, dB")
        legend_below(figure, axes[0])
        return write(figure, out, "ratio")


def _ratios(records: Sequence[Record]) -> list[float]:
    return [number(record.values, "ratio") or 0.0 for record in records]


def _draw_line(
    axis: Any, records: Sequence[Record], name: str, style: dict[str, Any], label: str
) -> None:
    known = [record for record in records if number(record.values, name) is not None]
    known.sort(key=lambda record: number(record.values, "ratio") or 0.0)
    if not known:
        return
    psnr = [_capped(number(record.values, name)) for record in known]
    axis.plot(_ratios(known), psnr, label=label, markersize=7, linewidth=1.9, **style)
    low, high = (
        [_capped(number(r.values, f"{name}_{end}"), at) for r, at in zip(known, psnr, strict=True)]
        for end in ("low", "high")
    )
    axis.fill_between(_ratios(known), low, high, color=style["color"], alpha=0.15, linewidth=0)


def draw_tradeoff(records: Sequence[Record], levels: Sequence[str], out: Path) -> list[Path]:
    """What the closest picture under each defence has, against the accuracy that is left.

    Args:
        records: of each defence, its accuracy, whether it was `measured`, and that attack.
        levels: from the gravest on.
    """
    names = ("top1", "psnr")
    known = [r for r in records if all(number(r.values, name) is not None for name in names)]
    panels = split(known, "model")
    if not panels:
        return []
    colors = dict(zip(levels, LEVEL_COLORS, strict=True))
    most = max(map(len, panels))
    with styled() as subplots:
        size = (9.5, len(panels) * max(5.2, 1.8 + 0.27 * most))
        figure, axes = subplots(len(panels), 1, figsize=size, squeeze=False)
        for axis, rows in zip(axes[:, 0], panels, strict=True):
            for row in rows:
                _draw_point(axis, row, colors.get(text_of(row.values, "level"), "#777777"))
            _label_points(axis, rows)
            guess = number(rows[0].values, "baseline")
            if guess is not None:
                axis.axhline(guess, color="0.25", linestyle="--", linewidth=1.3, zorder=2)
                axis.axhspan(0, guess, color="0.5", alpha=0.08, zorder=0)
            axis.margins(x=0.12)
            axis.set_ylim(0, CEILING + 2)
            _decibels(axis.yaxis)
            axis.set_xlabel("top-1 accuracy, %")
            axis.set_ylabel("PSNR of the strongest attack\nagainst the original, dB")
            axis.grid(alpha=0.25)
            axis.set_title(shortened(text_of(rows[0].conditions, "model"), 60), loc="left")
        figure.legend(
            handles=_tradeoff_legend(colors), loc="outside lower center", ncols=2, frameon=False
        )
        return write(figure, out, "tradeoff")


def _draw_point(axis: Any, row: Record, color: str) -> None:
    top1, height = number(row.values, "top1") or 0.0, _capped(number(row.values, "psnr"))
    measured = bool(row.values.get("measured"))
    left, right = (number(row.values, f"top1_{end}") for end in ("low", "high"))
    low, high = (_capped(number(row.values, f"psnr_{end}"), height) for end in ("low", "high"))
    across = None
    if measured and left is not None and right is not None:
        across = [[max(0, top1 - left)], [max(0, right - top1)]]
    axis.errorbar(
        top1,
        height,
        xerr=across,
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
    rows = sorted(rows, key=lambda row: _capped(number(row.values, "psnr")))
    heights = [_capped(number(row.values, "psnr")) for row in rows]
    gap = (CEILING + 2) / max(16, len(rows) + 1)
    for row, height, y in zip(rows, heights, _spread(heights, gap), strict=True):
        told = row.conditions
        text = f"{told.get('defence')}: {number(row.values, 'psnr'):.1f} dB, {told.get('attack')}"
        axis.annotate(
            shortened(text, 46),
            xy=(number(row.values, "top1") or 0.0, height),
            xytext=(1.03, y),
            textcoords=axis.get_yaxis_transform(),
            fontsize=10,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "0.7", "shrinkB": 5, "relpos": (0, 0.5)},
        )


def _spread(values: Sequence[float], gap: float) -> list[float]:
    """Rising values moved apart until each is `gap` above the one before, none over the axis."""
    placed: list[float] = []
    for value in values:
        placed.append(max(value, placed[-1] + gap) if placed else max(value, gap / 2))
    limit = CEILING + 2 - gap / 2
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], limit)
        limit = placed[place] - gap
    return placed


def _tradeoff_legend(colors: dict[str, str]) -> list[Line2D]:
    dot: dict[str, Any] = {"marker": "o", "markersize": 9, "linestyle": "", "markeredgewidth": 1.8}
    hollow = "hollow: accuracy under this defence not measured"
    moved = "diamond: recovered, but out of place or in part"
    guess = "trivial guess: below this line nothing was recovered"
    return [
        *(Line2D([], [], color=color, label=name, **dot) for name, color in [*colors.items()][:4]),
        Line2D([], [], color="0.3", markerfacecolor="white", label=hollow, **dot),
        Line2D([], [], color="0.3", label=moved, **{**dot, "marker": "D"}),
        Line2D([], [], color="0.25", linestyle="--", label=guess),
    ]


def _names(records: Sequence[Record], condition: str) -> list[str]:
    return list(dict.fromkeys(text_of(record.conditions, condition) for record in records))


def _capped(psnr: float | None, otherwise: float = 0.0) -> float:
    return otherwise if psnr is None else min(max(psnr, 0.0), CEILING)


def _decibels(axis: Any) -> None:
    """Ticks of PSNR up to the ceiling, the last of which stands for all that is beyond it."""
    ticks = np.arange(0, CEILING + 1, 10)
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks[:-1]] + [f"≥{CEILING:g}"])


def _draw_guesses(draw: Any, rows: Sequence[Record]) -> None:
    """The trivial guesses as lines."""
    for (name, title), line in zip(GUESSES.items(), LINES[:2], strict=True):
        value = next((v for row in rows if (v := number(row.values, name)) is not None), None)
        if value is not None:
            label = f"trivial guess: {title}"
            draw(value, color="0.25", linestyle=line, linewidth=1.2, label=label)
