"""The figures of docs/study.md, drawn from records.jsonl.

python studies/paper/figures.py --out docs
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from tables import (
    ABLATION,
    BACKBONES,
    CONVERGENCE,
    FINETUNE,
    GAMMA,
    RECORDS,
    ROBUSTNESS,
    Study,
    label,
)

RATIOS = (0.03, 0.09, 0.15, 0.21, 0.27, 0.5, 0.9)
FAR = ("B", "C")
"""Rows that lie so far from A that they would leave no room for the others."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's colours, which people with any colour vision can tell apart."""
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 11,
    "legend.frameon": False,
}


def look(place: int) -> dict[str, Any]:
    """Colour, marker and line of the place-th line."""
    return {
        "color": COLORS[place % len(COLORS)],
        "marker": "os^DvPX"[place % 7],
        "linestyle": ("-", "--")[place // len(COLORS) % 2],
    }


def forest(study: Study, names: Mapping[str, str], quantities: Mapping[str, str]) -> Any:
    """Differences to the baseline with their intervals, a line for each run."""
    pairs = [(run, than) for run, than in study.rows(names).items() if run != than]
    size = (4.2 + 4.2 * len(quantities), 1.5 + 0.4 * len(pairs))
    figure, axes = plt.subplots(1, len(quantities), figsize=size, squeeze=False, sharey=True)
    for axis, (of, title) in zip(axes[0], quantities.items(), strict=True):
        for place, (run, than) in enumerate(pairs):
            found = study.difference(run, than, of)
            if found is None or found.low is None or found.high is None:
                continue
            seeds, clear = found.over == "seeds", found.low > 0 or found.high < 0
            color = COLORS[0 if seeds else 1]
            axis.errorbar(
                [found.value],
                [place],
                xerr=[[found.value - found.low], [found.high - found.value]],
                marker="o" if seeds else "s",
                color=color,
                markerfacecolor=color if clear else "white",
                capsize=4,
            )
        axis.axvline(0, color="0.4", linewidth=1)
        axis.set_xlabel(title)
        axis.grid(alpha=0.25, axis="x")
    axes[0, 0].set_yticks(range(len(pairs)), [label(study, run) for run, _ in pairs])
    axes[0, 0].set_ylim(len(pairs) - 0.5, -0.5)
    figure.suptitle("difference to the baseline")
    return figure


def band(axis: Any, xs: Sequence[float], means: Any, halves: Any, name: str, place: int) -> None:
    """A line with a band about it."""
    axis.plot(xs, means, label=name, markersize=5, **look(place))
    lows, highs = ([m + side * h for m, h in zip(means, halves, strict=True)] for side in (-1, 1))
    axis.fill_between(xs, lows, highs, color=look(place)["color"], alpha=0.13, linewidth=0)


def curves(study: Study) -> Any:
    """Consistency over the share of patches moved, and what it is more than that of A."""
    figure, axes = plt.subplots(1, 2, figsize=(12.6, 5.8))
    for place, run in enumerate(study.rows(ABLATION)):
        values = [study.values(run, f"consistency {ratio:g}") for ratio in RATIOS]
        halves = [one.std() if len(one) > 1 else 0.0 for one in values]
        means = [100.0, *(one.mean() for one in values)]
        band(axes[0], [0, *RATIOS], means, [0.0, *halves], label(study, run), place)
        if run not in ("A", *FAR):
            found = [study.difference(run, "A", f"consistency {ratio:g}") for ratio in RATIOS]
            halves = [one.high - one.value for one in found if one and one.high is not None]
            means = [0.0, *(one.value for one in found if one)]
            band(axes[1], [0, *RATIOS], means, [0.0, *halves], label(study, run), place)
    axes[0].set_title("consistency: same class as without the jigsaw, %")
    axes[1].set_title(f"consistency − that of {label(study, 'A')}, points (without B and C)")
    axes[1].axhline(0, color="0.4", linewidth=1)
    for axis in axes:
        axis.set_xlabel("share of patches moved")
        axis.grid(alpha=0.25)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def gamma(study: Study) -> Any:
    """Accuracy, consistency and leaks against the ratio that was trained with."""
    panels = {
        "top-1 accuracy, %": {"top1": "untouched pictures"},
        "consistency, %": {
            f"consistency {one}": f"{one} of the patches moved" for one in (0.27, 0.5)
        },
        "what an attack brings back: PSNR, dB": {
            "psnr patch_solve": "patch solve",
            "psnr adaptive_solve": "adaptive solve, knows MJP",
            "psnr guess": "a guess (mean picture)",
        },
    }
    runs = sorted(study.rows(GAMMA), key=lambda run: study.facts(run)["ratio"])
    figure, axes = plt.subplots(1, 3, figsize=(12.6, 4.3))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for place, (of, name) in enumerate(lines.items()):
            values = [study.values(run, of) for run in runs]
            axis.errorbar(
                [study.facts(run)["ratio"] for run in runs],
                [one.mean() for one in values],
                yerr=[one.std() if len(one) > 1 else 0.0 for one in values],
                label=name,
                capsize=3,
                **look(place),
            )
        axis.set_title(title)
        axis.set_xlabel("γ in training")
        axis.grid(alpha=0.25)
        axis.legend()
    axes[0].set_ylim(41, 47)
    axes[2].set_ylim(0, 45)
    without = study.values("D", "psnr patch_solve").mean()
    axes[2].annotate(f"{without:.0f} at γ = 0", (0.02, 43))
    return figure


def epochs(study: Study) -> Any:
    """Top-1 over the epochs, mean over seeds."""
    figure, axis = plt.subplots(figsize=(8.6, 4.6))
    for place, run in enumerate(study.rows(CONVERGENCE)):
        own = study.epochs[study.epochs.run == run].pivot(
            index="epoch", columns="seed", values="top1"
        )
        own = own.dropna()
        band(axis, own.index, own.mean(axis=1), own.std(axis=1), label(study, run), place)
    axis.set_xlabel("epoch")
    axis.set_title("top-1 accuracy on validation images, %")
    axis.grid(alpha=0.25)
    axis.legend(loc="lower right")
    return figure


def main() -> None:
    """Writes all figures as PNG."""
    parser = argparse.ArgumentParser(description="The figures of docs/study.md.")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args()
    study = Study(options.records)
    both = {"top1": "top-1 accuracy, points", "consistency 0.5": "consistency at 0.5, points"}
    errors = {"mean_error": "mean error on corrupted images, points"}
    with plt.rc_context({**STYLE, "figure.constrained_layout.use": True}):
        figures = {
            "ablation": forest(study, ABLATION, both),
            "ablation-curves": curves(study),
            "gamma": gamma(study),
            "backbones": forest(study, BACKBONES, both),
            "robustness": forest(study, ROBUSTNESS, errors),
            "finetune": forest(study, FINETUNE, both),
            "convergence": epochs(study),
        }
        for name, figure in figures.items():
            figure.savefig(options.out / f"study-{name}.png", dpi=100)


if __name__ == "__main__":
    main()
