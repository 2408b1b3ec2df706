"""`mjp demo`: two small ViTs trained, measured and attacked on this machine; one page on it."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from mjp import __version__
from mjp.commands import audit, eval_accuracy, probe_positions, train
from mjp.commands.audit_options import AuditOptions
from mjp.commands.demo_method import load_photograph, show_method
from mjp.commands.demo_panels import show_panels
from mjp.commands.evaluating import claim
from mjp.commands.options import (
    DemoOptions,
    EvalAccuracyOptions,
    ProbePositionsOptions,
    TrainOptions,
    Variant,
)
from mjp.core.errors import ConfigError
from mjp.core.interruption import StoppedError
from mjp.core.ranges import check_ratio
from mjp.core.records import Record, append_records
from mjp.report.demo import METHOD_FILE, PANELS_FILE
from mjp.report.glance import findings
from mjp.report.runs import RECORDS, find_runs
from mjp.report.whole import write_report
from mjp.train import runs
from mjp.train.recipe import Recipe, read_recipe, with_variant

MODELS: dict[Variant, str] = {"A": "plain ViT", "J": "ViT with MJP"}
"""The two models by the rows of the paper's ablation that they are, and what they are called."""
EPOCHS = {"positions": None, "digits": 20}
"""The data sets, and for how long they are trained on where that is not the recipe's own."""
IMAGES = 400
"""Images that accuracy and consistency are measured on."""
PHOTOGRAPHS = 4
"""Pictures that are attacked."""
OWN = ("train", "eval", "probe", "audit", "stages.json", "log.txt", "report.html", RECORDS)


@dataclass(frozen=True)
class Stage:
    """A part of the demonstration.

    Args:
        title: what it does, in words.
        work: does it; gives a record of the demonstration's own, if it has one.
    """

    name: str
    title: str
    work: Callable[[], Record | None]


def run(options: DemoOptions) -> None:
    """Does what is not done yet, then writes the page."""
    check_ratio("ratio", options.ratio)
    if options.ratio in (0, 1):
        raise ConfigError(f"ratio must be above 0 and below 1 here, got {options.ratio:g}")
    if options.image is not None:
        load_photograph(options.image)  # Says what is wrong with it before anything is done.
    if options.fresh:
        clear(options.out)
    claim(options.out)
    done = Progress(options)
    stages = _stages(options)
    for place, stage in enumerate(stages, 1):
        reused = stage.name in done.records
        mark = " (done before)" if reused else ""
        print(f"mjp: [{place}/{len(stages)}] {stage.title}{mark}", file=sys.stderr, flush=True)
        if not reused:
            done.add(stage.name, _carried_out(stage, options))
    _write_records(options.out, list(done.records.values()))
    command = shlex.join(["mjp", *sys.argv[1:]])
    page = write_report([options.out], options.out / "report.html", command=command)
    for finding in findings(find_runs([options.out])):
        print(finding.text)
    print(f"report: {page}")


def clear(out: Path) -> None:
    """Removes what a demonstration wrote, and nothing else."""
    pictures = [Path(name).with_suffix(end).name for name in (METHOD_FILE, PANELS_FILE)
                for end in (".png", ".svg")]  # fmt: skip
    for name in (*OWN, *pictures):
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class Progress:
    """The stages that are finished, with their records, in a file.

    They count only for the same options, code and torch; otherwise the demonstration starts over.
    """

    def __init__(self, options: DemoOptions) -> None:
        self._file = options.out / "stages.json"
        told = {name: str(value) for name, value in asdict(options).items() if name != "fresh"}
        if options.image is not None:
            told["image"] = f"{options.image.resolve()} {options.image.stat().st_mtime_ns}"
        self._key = {**told, "mjp": __version__, "torch": torch.__version__}
        self.records: dict[str, Record | None] = {}
        body = self._read()
        if body.get("key") == self._key:
            for name, one in body["stages"].items():
                self.records[name] = Record(**one) if one else None
        elif body:
            print("mjp: other options than before; starting over", file=sys.stderr)
            clear(options.out)
            claim(options.out)

    def _read(self) -> dict:  # type: ignore[type-arg]
        try:
            body = json.loads(self._file.read_text(encoding="utf-8"))
            return body if isinstance(body, dict) and isinstance(body.get("stages"), dict) else {}
        except (OSError, ValueError):
            return {}

    def add(self, name: str, record: Record | None) -> None:
        """Notes that a stage is finished."""
        self.records[name] = record
        stages = {
            key: None if one is None else json.loads(one.to_json())
            for key, one in self.records.items()
        }
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps({"key": self._key, "stages": stages}), encoding="utf-8")
        part.replace(self._file)


def _carried_out(stage: Stage, options: DemoOptions) -> Record | None:
    """Does a stage; what it prints goes to a file, how far it is stays on the screen."""
    try:
        with (
            (options.out / "log.txt").open("a", encoding="utf-8") as log,
            redirect_stdout(log),
        ):
            print(f"\n== {stage.title}", flush=True)
            return stage.work()
    except StoppedError as error:
        raise StoppedError(
            f"stopped; what is finished is kept in {options.out}: go on with the same command",
            error.number,
        ) from error


def _stages(options: DemoOptions) -> list[Stage]:
    out, seed = options.out, options.seed
    stages = [
        Stage(
            "method",
            "the method on a photograph",
            lambda: show_method(out, options.image, options.ratio, seed),
        )
    ]
    for data in EPOCHS:
        for variant in MODELS:
            recipe = _recipe(data, variant, options)
            title = f"training on {data}, {'without' if variant == 'A' else 'with'} MJP"
            folder = _trained(out, data, variant)
            stages.append(
                Stage(f"train {data} {variant}", title, lambda r=recipe, f=folder: _train(r, f))  # type: ignore[misc]
            )
    for data in EPOCHS:
        title = f"accuracy and jigsaws on {data}"
        stages.append(Stage(f"eval {data}", title, lambda d=data: _evaluate(d, options)))  # type: ignore[misc]
    stages.append(Stage("probe", "what the position embeddings learned", lambda: _probe(options)))
    for variant, label in MODELS.items():
        title = f"attacking the gradients of the {label}"
        stages.append(Stage(f"audit {variant}", title, lambda one=variant: _audit(one, options)))  # type: ignore[misc]
    panels = Stage("panels", "four panels", lambda: show_panels(out, options.ratio))
    return [*stages, panels]


def _trained(out: Path, data: str, variant: Variant) -> Path:
    return out / "train" / f"{data}-{variant}"


def _recipe(data: str, variant: Variant, options: DemoOptions) -> Recipe:
    recipe = with_variant(read_recipe(data), variant)
    if variant != "A":
        recipe = replace(recipe, mjp=replace(recipe.mjp, ratio=options.ratio))
    epochs = EPOCHS[data] or recipe.run.epochs
    return replace(recipe, run=replace(recipe.run, epochs=epochs, seed=options.seed, device="cpu"))


def _train(recipe: Recipe, out: Path) -> None:
    """Trains, or goes on training where the same run was stopped."""
    try:
        same = runs.recipe_of_run(out) == recipe
    except ConfigError:
        same = False
    train.run(TrainOptions(out=out, resume=same, fresh=not same, recipe=recipe))


def _models(data: str, options: DemoOptions) -> tuple[str, ...]:
    return tuple(_model(data, variant, options) for variant in MODELS)


def _model(data: str, variant: Variant, options: DemoOptions) -> str:
    return f"{MODELS[variant]}={_trained(options.out, data, variant) / 'final'}"


def _evaluate(data: str, options: DemoOptions) -> None:
    out = options.out / "eval" / data
    shutil.rmtree(out, ignore_errors=True)  # Of a run that was stopped.
    eval_accuracy.run(
        EvalAccuracyOptions(
            model=_models(data, options),
            data=data,
            images=IMAGES,
            draws=2,
            crop=1.0,
            device="cpu",
            workers=0,
            seed=options.seed,
            out=out,
        )
    )


def _probe(options: DemoOptions) -> None:
    out = options.out / "probe"
    shutil.rmtree(out, ignore_errors=True)
    probe_positions.run(
        ProbePositionsOptions(
            model=_models("positions", options), umap=False, seed=options.seed, out=out
        )
    )


def _audit(variant: Variant, options: DemoOptions) -> None:
    """The plain model under defences that it can have, and the other under MJP."""
    moved = f"{options.ratio:g}"
    ratios = dict.fromkeys(("0.03", "0.09", moved))
    own = [f"shuffle={moved}"] if variant == "A" else [f"mjp={one}" for one in ratios]
    out = options.out / "audit" / variant
    (out / RECORDS).unlink(missing_ok=True)
    audit.run(
        AuditOptions(
            model=(_model("positions", variant, options),),
            images="photographs" if options.image is None else str(options.image),
            most=PHOTOGRAPHS,
            defences=("none", *own, "unshared"),
            device="cpu",
            seed=options.seed,
            resume=True,
            out=out,
        )
    )


def _write_records(out: Path, records: list[Record | None]) -> None:
    """The demonstration's own records, anew."""
    file = out / RECORDS
    file.unlink(missing_ok=True)
    append_records(file, [one for one in records if one is not None])
