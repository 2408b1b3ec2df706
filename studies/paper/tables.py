"""The tables of docs/study.md, worked out of records.jsonl.

    python studies/paper/tables.py --into docs/study.md

fills what stands between <!-- study: NAME --> and <!-- end --> and leaves all else as it is. A
difference between two runs is told over seeds: each number is taken as effect of its run + effect
of its seed + noise, fitted by least squares to all runs of a recipe (of two runs alone this is the
paired t-test). Where seeds do not tell, it is told over the images of one seed.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm

from mjp.report import paper
from mjp.report.table import Column, FilledTable, Row, to_markdown

RECORDS = Path(__file__).parent / "records.jsonl"
RECIPE = ["architecture", "arguments", "image_size", "init", "epochs", "warmup_epochs", "batch",
          "precision", "train_images"]  # fmt: skip
"""Runs that agree in these are taken to scatter alike over seeds."""
IN_PERCENT = ("epoch_seconds", "mae_1d", "mae_2d")
"""Their noise goes with their size, so that logarithms are compared."""
DIGITS = 9
"""Last digits hang on the CPU; half of a printed digit must not turn with them."""
MISSING = "–"
MARKS = {"seeds": "", "images": " †", "images apart": " ‡", "other seeds": " §", "nothing": ""}

ABLATION = dict.fromkeys("ABCDEFGHIJ", "A")
GAMMA = {"D": "D", "J": "D"} | {f"gamma-{one:g}": "D" for one in (0.09, 0.15, 0.21, 0.27, 0.5, 0.9)}
BACKBONES = {"A": "A", "J": "A", "swin": "swin", "swin-mjp": "swin", "resnet": "resnet",
             "resnet-mjp": "resnet"}  # fmt: skip
ROBUSTNESS = {"A": "A", "J": "A", "gamma-0.27": "A", "pretrained": "pretrained",
              "finetuned": "finetuned", "finetuned-mjp-0.27": "finetuned"}  # fmt: skip
FINETUNE = {"pretrained": "pretrained", "finetuned": "finetuned", "finetuned-mjp-0.03": "finetuned",
            "finetuned-mjp-0.27": "finetuned"}  # fmt: skip
COST = {"cost-A": "cost-A", "cost-J": "cost-A"}
CONVERGENCE = {"A": "A", "E": "A", "G": "A", "J": "A"}
REPEAT = {"gamma-0.27-again": "gamma-0.27"}
"""The rows of each table, each with the run that it is compared with."""
MORE = {
    "top1": ("C B", "C E", "J G", "gamma-0.27 A"),
    "consistency 0.03": ("J A", "gamma-0.27 A"),
    "consistency 0.5": ("G E", "J G", "gamma-0.27 A", "gamma-0.9 J"),
    "diff_norm 0.5": ("gamma-0.9 J",),
    "mae_1d": ("J A", "I A"),
    "mae_2d": ("J A", "I A"),
    "psnr patch_solve": ("gamma-0.9 J",),
    "psnr adaptive_solve": ("gamma-0.9 J",),
}
"""Comparisons that the text speaks of and no other table has."""
NAMES = {"top1": "top-1, points", "diff_norm 0.5": "Diff. Norm. at 0.5", "mae_1d": "1-D MAE, %",
         "mae_2d": "2-D MAE, %", "psnr patch_solve": "PSNR patch solve, dB",
         "psnr adaptive_solve": "PSNR adaptive solve, dB"}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """How much more one run has than another, with its 95 % interval and what that is over."""

    value: float
    low: float | None
    high: float | None
    over: str

    def text(self, digits: int) -> str:
        """Such as `+1.20 [+0.80…+1.60] †`."""
        value, low, high = (one and round(one, DIGITS) for one in (self.value, self.low, self.high))
        ends = "" if low is None else f" [{low:+.{digits}f}…{high:+.{digits}f}]"
        return f"{value:+.{digits}f}{ends}{MARKS[self.over]}"


class Study:
    """What the runs of a study measured."""

    def __init__(self, path: Path = RECORDS) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        self.records = [json.loads(line) for line in lines]
        rows = [{**one["conditions"], **one["values"]} for one in self._of("study run")]
        self.runs = pd.DataFrame(rows).drop_duplicates(["run", "seed"], keep="last")
        firsts = self.runs.drop_duplicates("run").set_index("run", drop=False)
        self._facts: dict[str, dict[str, Any]] = firsts.to_dict("index")
        self._fits: dict[tuple[str, ...], tuple[Any, pd.DataFrame]] = {}

    def _of(self, kind: str) -> Iterator[Any]:
        return (one for one in self.records if one["kind"] == kind)

    def facts(self, run: str) -> dict[str, Any]:
        """How a run was trained, by its first seed."""
        return self._facts[run]

    def rows(self, names: Mapping[str, str]) -> dict[str, str]:
        """The rows of a table that were run."""
        return {run: than for run, than in names.items() if run in self._facts}

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """Top-1 accuracy after each epoch."""
        return pd.DataFrame(
            [{**one["conditions"], **one["values"]} for one in self._of("study epoch")]
        )

    @cached_property
    def readings(self) -> pd.DataFrame:
        """One row for each number of a run and seed: `of` is what, low and high are over images."""
        rows = []
        for kind in ("accuracy", "run", "jigsaw", "positions", "leak", "corruption summary"):
            for one in self._of(f"study {kind}"):
                about, values = one["conditions"], one["values"]
                for of, name in self._quantities(kind, about):
                    if values.get(name) is not None:
                        low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
                        rows.append((about["run"], str(about["seed"]), of, values[name], low, high))
        names = ["run", "seed", "of", "value", "low", "high"]
        found = pd.DataFrame(rows, columns=names).drop_duplicates(["run", "seed", "of"])
        return pd.concat([found, self._times_to_accuracies(found)], ignore_index=True)

    def _quantities(self, kind: str, about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """What a record measures, and what its value is called there."""
        if kind == "jigsaw":
            for name in ("consistency", "diff_norm"):
                yield f"{name} {about['ratio']:g}", name
        elif kind == "leak":
            gamma = float(self.facts(about["run"])["ratio"])
            if about["defence"] == (f"mjp={gamma:g}" if gamma else "none"):
                yield f"psnr {about['attack']}", "psnr"
                yield "psnr guess", "baseline_mean_psnr"
        else:
            for name in ("top1", "epoch_seconds", "images_per_second", "mae_1d", "mae_2d",
                         "clean_error", "mean_error"):  # fmt: skip
                yield name, name

    @cached_property
    def levels(self) -> list[int]:
        """Whole percents of accuracy that all runs of the convergence table came to."""
        own = self.epochs[self.epochs.run.isin(CONVERGENCE)].sort_values("epoch")
        lowest = own.groupby(["run", "seed"]).top1.last().min()
        return [math.floor(share * lowest) for share in (0.5, 0.75, 0.9, 0.95)]

    def _times_to_accuracies(self, found: pd.DataFrame) -> pd.DataFrame:
        """Epochs until each level, on a straight line between two; seconds where they are known."""
        rows = []
        own = self.epochs[self.epochs.run.isin(CONVERGENCE)]
        seconds = found[found.of == "epoch_seconds"].groupby("run").value.mean()
        for (run, seed), curve in own.sort_values("epoch").groupby(["run", "seed"]):
            for level in self.levels:
                after = int(np.argmax(curve.top1.to_numpy() >= level))
                pair = curve.iloc[max(0, after - 1) : after + 1]
                epochs = float(np.interp(level, pair.top1, pair.epoch))
                rows.append((run, str(seed), f"epochs to {level} %", epochs))
                if (cost := f"cost-{run}") in seconds:
                    rows.append((run, str(seed), f"seconds to {level} %", epochs * seconds[cost]))
        return pd.DataFrame(rows, columns=["run", "seed", "of", "value"])

    @cached_property
    def _by_run(self) -> dict[Any, pd.Series]:
        grouped = self.readings.groupby(["run", "of"])
        return {key: own.set_index("seed").value for key, own in grouped}

    def values(self, run: str, of: str) -> pd.Series:
        """A number of a run, by seed."""
        return self._by_run.get((run, of), pd.Series(dtype=float))

    def mean(self, run: str, of: str, digits: int) -> str:
        """Such as `81.20 ± 0.31`."""
        values = self.values(run, of)
        if values.empty:
            return MISSING
        spread = f" ± {round(values.std(), DIGITS):.{digits}f}" if len(values) > 1 else ""
        return f"{round(values.mean(), DIGITS):.{digits}f}{spread}"

    def difference(self, run: str, than: str, of: str) -> Difference | None:
        """Over seeds, else over images; None where one of the two was not measured."""
        ours, theirs = self.values(run, of), self.values(than, of)
        if run == than or ours.empty or theirs.empty:
            return None
        if (found := self._over_seeds(run, than, of)) is not None:
            return found
        common = [seed for seed in ours.index if seed in theirs.index]
        if not common:
            return Difference(ours.mean() - theirs.mean(), None, None, "other seeds")
        return self._over_images(run, than, of, common[0])

    def _over_seeds(self, run: str, than: str, of: str) -> Difference | None:
        """None where seeds do not tell: too few, or no chain of common seeds joins the two."""
        fit, design = self._fit(run, than, of)
        contrast = [float(one == f"run_{run}") - float(one == f"run_{than}") for one in design]
        determined = np.linalg.pinv(design.to_numpy()) @ design.to_numpy() @ contrast
        common = len(set(self.values(run, of).index) & set(self.values(than, of).index))
        if fit.df_resid < (1 if common > 1 else 2) or not np.allclose(
            determined, contrast, atol=1e-6
        ):
            return None
        test = fit.t_test(contrast)
        found = [float(test.effect[0]), *test.conf_int(alpha=0.05)[0]]
        if of in IN_PERCENT:
            found = [100 * math.expm1(one) for one in found]
        return Difference(found[0], found[1], found[2], "seeds")

    def _fit(self, run: str, than: str, of: str) -> tuple[Any, pd.DataFrame]:
        """Effects of runs and seeds, of all runs of the recipe where both are of one."""
        pool = self._pool(run, of)
        key = (of, *(pool if than in pool else (run, than)))
        if key not in self._fits:
            own = self.readings[self.readings.run.isin(key[1:]) & (self.readings.of == of)]
            seeds = pd.get_dummies(own[["seed"]], dtype=float, drop_first=True)
            design = pd.get_dummies(own[["run"]], dtype=float).join(seeds)
            value = own.value.to_numpy(dtype=float)
            value = np.log(value) if of in IN_PERCENT else value
            self._fits[key] = sm.OLS(value, design.to_numpy()).fit(), design
        return self._fits[key]

    def _pool(self, run: str, of: str) -> list[str]:
        """The runs of the same recipe. What an attack brings back without a jigsaw hangs on the
        last digits of numbers, and with one on the jigsaw: these do not scatter alike."""

        def kind(facts: Mapping[str, Any]) -> list[Any]:
            jigsaw = of.startswith("psnr") and bool(facts["ratio"])
            return [jigsaw, *(None if pd.isna(facts[name]) else facts[name] for name in RECIPE)]

        own = kind(self.facts(run))
        if self.facts(run)["architecture"] is None:
            return [run]
        return [name for name, facts in self._facts.items() if kind(facts) == own]

    def _over_images(self, run: str, than: str, of: str, seed: str) -> Difference:
        """Paired over images where that was measured, else as if they were independent (Zou and
        Donner, 2008): of the same images they are not, so that the interval is rather too wide."""
        name, _, ratio = of.partition(" ")
        wanted = (
            run,
            than,
            seed,
            name,
            float(ratio) if name in ("consistency", "diff_norm") else None,
        )
        for one in self._of("study difference"):
            about, values = one["conditions"], one["values"]
            if wanted == (*(about["run"], about["than"], str(about["seed"])), about["value"],
                          about["ratio"]):  # fmt: skip
                ends = values["difference_low"], values["difference_high"]
                return Difference(values["difference"], *ends, "images")
        at = self.readings.set_index(["run", "seed", "of"])
        ours, theirs = at.loc[(run, seed, of)], at.loc[(than, seed, of)]
        value = float(ours.value - theirs.value)
        if pd.isna(ours.low) or pd.isna(theirs.low):
            return Difference(value, None, None, "nothing")
        below = math.hypot(ours.value - ours.low, theirs.high - theirs.value)
        above = math.hypot(ours.high - ours.value, theirs.value - theirs.low)
        return Difference(value, value - below, value + above, "images apart")


def markdown(rows: list[dict[str, str]], words: int = 1) -> str:
    """GitHub's form of a table, without columns that are empty; the first ones hold words."""
    heads = [name for name in rows[0] if any(row[name] != MISSING for row in rows)]
    columns = [Column(name, "", numeric=place >= words) for place, name in enumerate(heads)]
    cells = (Row(tuple(row[name] for name in heads)) for row in rows)
    return to_markdown(FilledTable("", tuple(columns), tuple(cells)))


def label(study: Study, run: str) -> str:
    """What tables call a run."""
    return str(study.facts(run)["label"])


def more(study: Study, run: str, than: str, of: str, digits: int) -> str:
    """A difference as a cell."""
    found = study.difference(run, than, of)
    return MISSING if found is None else found.text(digits)


def backbone(architecture: str, with_mjp: bool) -> paper.Classification | None:
    """The paper's row for a backbone of the same family, whatever its size and data."""
    names = {"deit": paper.DEIT_S, "vit": paper.DEIT_S, "resnet": "resnet50"}
    names["swin"] = "swin_tiny_patch4_window7_224"
    name = names.get(architecture.partition("_")[0].rstrip("0123456789"), "")
    if not with_mjp:
        return paper.PLAIN.get(name)
    return paper.ABLATION["J"] if name == paper.DEIT_S else paper.WITH_MJP.get(name)


def papers(run: str, facts: Mapping[str, Any], table: str) -> paper.Classification | None:
    """The paper's row that stands beside one of ours."""
    if table == "ablation":
        return paper.ABLATION[run]
    if table == "gamma":
        return paper.RATIOS.get(facts["ratio"]) if facts["ratio"] else paper.ABLATION["D"]
    if table == "backbones":
        return backbone(facts["architecture"], facts["ratio"] > 0)
    return None


def quoted(row: Any, name: str, digits: int) -> str:
    """A number of the paper as a cell."""
    value = getattr(row, name, None)
    return MISSING if value is None else f"{value:.{digits}f}"


def accuracy(study: Study, names: Mapping[str, str], table: str) -> str:
    """Accuracy and jigsaws, ours and the paper's."""
    rows = []
    thans = {than for run, than in study.rows(names).items() if than != run}
    less = f" − {label(study, thans.pop())}" if len(thans) == 1 else ", difference"
    for run, than in study.rows(names).items():
        theirs = papers(run, study.facts(run), table)
        rows.append({
            "Run": label(study, run),
            "Top-1, %": study.mean(run, "top1", 2),
            f"Top-1{less}": more(study, run, than, "top1", 2),
            "Paper: top-1, %": quoted(theirs, "top1", 1),
            "Consistency at 0.27, %": study.mean(run, "consistency 0.27", 1),
            "Consistency at 0.5, %": study.mean(run, "consistency 0.5", 1),
            f"Consistency at 0.5{less}": more(study, run, than, "consistency 0.5", 1),
            "Paper: consistency, %": quoted(theirs, "consistency", 1),
            "Diff. Norm. at 0.5": study.mean(run, "diff_norm 0.5", 2),
            f"Diff. Norm. at 0.5{less}": more(study, run, than, "diff_norm 0.5", 2),
            "Paper: Diff. Norm.": quoted(theirs, "diff_norm", 2),
            "Seeds": str(len(study.values(run, "top1"))),
        })  # fmt: skip
    return markdown(rows)


def leaks(study: Study) -> str:
    """Position embeddings, and what attacks bring back, over γ."""
    rows = []
    for run in study.rows({"A": "A", "I": "A"} | GAMMA):
        known, than = paper.REGRESSION.get(run), "D" if run in GAMMA else run
        rows.append({
            "Run": label(study, run),
            "1-D MAE, patches": study.mean(run, "mae_1d", 3),
            "2-D MAE, cells": study.mean(run, "mae_2d", 3),
            "PSNR patch solve, dB": study.mean(run, "psnr patch_solve", 1),
            "patch solve − D, dB": more(study, run, than, "psnr patch_solve", 1),
            "PSNR adaptive solve, dB": study.mean(run, "psnr adaptive_solve", 1),
            "adaptive solve − D, dB": more(study, run, than, "psnr adaptive_solve", 1),
            "PSNR of a guess, dB": study.mean(run, "psnr guess", 1),
            "Paper: 1-D MAE": f"{known.one[0]:.3f}" if known else MISSING,
            "Paper: 2-D MAE": f"{known.two[0]:.3f}" if known else MISSING,
        })  # fmt: skip
    return markdown(rows)


def robustness(study: Study) -> str:
    """Errors under ImageNet-C's corruptions."""
    rows = []
    for run, than in study.rows(ROBUSTNESS).items():
        theirs = paper.ROBUSTNESS[run == "J"] if run in ("A", "J") else None
        rows.append({
            "Run": label(study, run),
            "Mean error, %": study.mean(run, "mean_error", 2),
            "Mean error, difference": more(study, run, than, "mean_error", 2),
            "Clean error, %": study.mean(run, "clean_error", 2),
            "Seeds": str(len(study.values(run, "mean_error"))),
            "Paper: mean error, %": quoted(theirs, "printed_mean", 1),
            "Paper: mCE": quoted(theirs, "mce", 1),
        })  # fmt: skip
    return markdown(rows)


def cost(study: Study) -> str:
    """Time of an epoch of runs that were alone on the GPU."""
    rows = [
        {
            "Run": label(study, run),
            "Seconds of an epoch": study.mean(run, "epoch_seconds", 3),
            "More time, %": more(study, run, than, "epoch_seconds", 2),
            "Images per second": study.mean(run, "images_per_second", 0),
            "Repeats": str(len(study.values(run, "epoch_seconds"))),
            "Paper: more time, %": f"{paper.TIME_PERCENT:+.1f}" if run == "cost-J" else MISSING,
        }
        for run, than in study.rows(COST).items()
    ]
    return markdown(rows)


def convergence(study: Study) -> str:
    """Epochs, and seconds, until an accuracy is reached."""
    rows = []
    for what in ("epochs", "seconds"):
        for run, than in study.rows(CONVERGENCE).items():
            row = {"Run": label(study, run), "Of what": what}
            for level in study.levels:
                of = f"{what} to {level} %"
                row[f"To {level} %"] = study.mean(run, of, 1)
                row[f"To {level} %, difference"] = more(study, run, than, of, 1)
            rows.append(row | {"Seeds": str(len(study.values(run, of)))})
    return markdown([row for row in rows if row["Seeds"] != "0"], words=2)


def comparisons(study: Study) -> str:
    """Comparisons that no other table has."""
    rows = [
        {
            "Of what": NAMES.get(of, f"{of.replace(' ', ' at ')}, points"),
            "Run": label(study, run),
            "Compared with": label(study, than),
            "Difference": more(study, run, than, of, 2),
        }
        for of, pairs in MORE.items()
        for run, than in map(str.split, pairs)
        if {run, than} <= set(study.runs.run)
    ]
    return markdown(rows, words=3)


def trained(study: Study) -> str:
    """How each run was trained."""
    rows = []
    for run in study.runs.run.unique():
        own, facts = study.runs[study.runs.run == run], study.facts(run)
        model = [facts["architecture"], re.sub(r"[{}'\"]", "", str(facts["arguments"]))]
        known = isinstance(model[0], str)
        times = [f"{one:.0f}" for one in sorted(own.seconds.dropna())]
        beside = sorted(own.parallel.dropna().unique())
        rows.append({
            "Run": facts["label"],
            "Model": ", ".join(filter(None, model)).replace(": ", " ") if known else MISSING,
            "Image": facts["image_size"] if known else MISSING,
            "Start": facts["init"] if isinstance(facts["init"], str) else "drawn",
            "γ": f"{facts['ratio']:g}" if known else MISSING,
            "Epochs": str(facts["epochs"]),
            "Batch": f"{facts['batch']:,.0f}" if known else MISSING,
            "Images": f"{facts['train_images']:,.0f}" if known else MISSING,
            "Seeds": ", ".join(map(str, own.seed)),
            "At a time": ", ".join(f"{one:g}" for one in beside) or MISSING,
            "Seconds": " to ".join(dict.fromkeys((*times[:1], *times[-1:]))) or MISSING,
        })  # fmt: skip
    return markdown(rows, words=4)


TABLES = {
    "runs": trained,
    "repeat": lambda study: accuracy(study, REPEAT, "repeat"),
    "ablation": lambda study: accuracy(study, ABLATION, "ablation"),
    "comparisons": comparisons,
    "gamma": lambda study: accuracy(study, GAMMA, "gamma"),
    "leaks": leaks,
    "backbones": lambda study: accuracy(study, BACKBONES, "backbones"),
    "robustness": robustness,
    "finetune": lambda study: accuracy(study, FINETUNE, "finetune"),
    "cost": cost,
    "convergence": convergence,
}
PLACE = re.compile(r"(<!-- study: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, study: Study) -> str:
    """The document with its tables made anew."""
    return PLACE.sub(lambda found: found[1] + TABLES[found[2]](study) + found[3], text)


def main() -> None:
    """Fills documents, or prints all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--into", type=Path, nargs="*", default=(), help="Markdown files to fill")
    options = parser.parse_args()
    study = Study(options.records)
    for path in options.into:
        path.write_text(filled(path.read_text(encoding="utf-8"), study), encoding="utf-8")
    if not options.into:
        print("\n".join(f"{name}\n{table(study)}" for name, table in TABLES.items()))


if __name__ == "__main__":
    main()
