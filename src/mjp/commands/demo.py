"""`mjp demo`: small ViTs trained, measured and attacked on this machine; one page on it."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mjp.commands.demo_method import load_photograph, show_method
from mjp.commands.demo_panels import show_panels
from mjp.commands.evaluating import claim
from mjp.commands.options import DemoOptions
from mjp.report.demo import LEAD, METHOD_FILE, PANELS_FILE, TITLE

from mjp import __version__
from mjp.catalog import read_recipe, recipe_of_run, sections
from mjp.core.configuration import check_ratio
from mjp.core.errors import ConfigError, StoppedError
from mjp.core.records import RECORDS, Record, append_records
from mjp.evaluate.accuracy import run_accuracy
from mjp.evaluate.config import EvalAccuracyOptions, ProbePositionsOptions
from mjp.evaluate.positions import run_positions
from mjp.privacy.command import run_audit
from mjp.privacy.config import DEFAULT_SIZE, AuditOptions
from mjp.report.page import write_report
from mjp.train.config import TrainOptions, Variant
from mjp.train.loop import train

MODELS: dict[Variant, str] = {"A": "plain ViT", "J": "ViT with MJP"}
"""The two models by the rows of the paper's ablation that they are, and what they are called."""
TRAINED = {
    "plain ViT on ImageNet classes": "mini-imagenet-plain",
    "ViT with MJP on ImageNet classes": "mini-imagenet-mjp",
}
"""The trained models of the package, and what they are called."""
EPOCHS = {"positions": None, "digits": 20}
"""The data sets, and for how long they are trained on where that is not the recipe's own."""
IMAGES = 400
"""Images that accuracy and consistency are measured on."""
PHOTOGRAPHS = 4
"""Pictures that are attacked."""
PACKAGE = "trained"
"""The folder of the audit of the package's models."""
NOTE = "stages.json"
"""Says which stages are finished, and that a folder is of a demonstration."""
FILES = (METHOD_FILE, PANELS_FILE, "panels.svg", "log.txt", "report.html", RECORDS, NOTE)


@dataclass(frozen=True)
class Stage:
    """A part of the demonstration.

    Args:
        title: what it does, in words.
        leaves: a file that is there once it is finished.
        work: does it; gives a record of the demonstration's own, if it has one.
    """

    name: str
    title: str
    leaves: Path
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
        reused = stage.name in done.records and stage.leaves.is_file()
        mark = " (done before)" if reused else ""
        print(f"mjp: [{place}/{len(stages)}] {stage.title}{mark}", file=sys.stderr, flush=True)
        if not reused:
            done.add(stage.name, _carried_out(stage, options))
    _write_records(options.out, list(done.records.values()))
    command = shlex.join(["mjp", *sys.argv[1:]])
    report = write_report(
        [options.out],
        options.out / "report.html",
        sections(),
        command=command,
        kind="Demonstration",
        title=TITLE,
        lead=LEAD,
    )
    for line in report.lines:
        print(line)
    print(f"report: {report.path}")


def clear(out: Path) -> None:
    """Removes what a demonstration wrote, and nothing else; nothing where there was none."""
    if not (out / NOTE).is_file():
        return
    for folder in (
        *(_trained(out, data, variant) for data in EPOCHS for variant in MODELS),
        *(_evaluated(out, data) for data in EPOCHS),
        *(_audited(out, name) for name in (*MODELS, PACKAGE)),
        _probed(out),
    ):
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # Other things of the person's may be beside it.
            folder.parent.rmdir()
    for name in FILES:
        (out / name).unlink(missing_ok=True)


class Progress:
    """The stages that are finished, with their records, in a file.

    They count only for the same options, code and torch; anything else is refused, so that nothing
    is lost by a slip.
    """

    def __init__(self, options: DemoOptions) -> None:
        self._file = options.out / NOTE
        image = options.image
        self._key = {
            "ratio": options.ratio,
            "seed": options.seed,
            "image": None if image is None else f"{image.resolve()} {image.stat().st_mtime_ns}",
            "mjp": __version__,
            "torch": torch.__version__,
        }
        self.records: dict[str, Record | None] = {}
        if not self._file.is_file():
            return
        try:
            body = json.loads(self._file.read_text(encoding="utf-8"))
            before, stages = dict(body["key"]), body["stages"].items()
            self.records = {name: Record(**one) if one else None for name, one in stages}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # What cannot be read says nothing of what is done.
        changed = [name for name in self._key if before.get(name) != self._key[name]]
        if changed:
            told = ", ".join(f"{name} {before.get(name)}" for name in changed)
            raise ConfigError(
                f"{options.out} holds a demonstration with {told}; start over with --fresh, or "
                "choose another --out"
            )

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
            out / METHOD_FILE,
            partial(show_method, out, options.image, options.ratio, seed),
        )
    ]
    for data in EPOCHS:
        for variant in MODELS:
            recipe = _recipe(data, variant, options)
            title = f"training on {data}, {'without' if variant == 'A' else 'with'} MJP"
            folder = _trained(out, data, variant)
            stages.append(
                Stage(
                    f"train {data} {variant}",
                    title,
                    folder / "final" / "config.json",
                    partial(_train, recipe, folder),
                )
            )
    for data in EPOCHS:
        title = f"accuracy and jigsaws on {data}"
        left = _evaluated(out, data) / RECORDS
        stages.append(Stage(f"eval {data}", title, left, partial(_evaluate, data, options)))
    title = "what the position embeddings learned"
    stages.append(Stage("probe", title, _probed(out) / RECORDS, partial(_probe, options)))
    for variant, label in MODELS.items():
        title = f"attacking the gradients of the {label}"
        left = _audited(out, variant) / "report.html"
        stages.append(Stage(f"audit {variant}", title, left, partial(_audit, variant, options)))
    left = _audited(out, PACKAGE) / "report.html"
    title = "attacking the gradients of trained models that come with the package"
    stages.append(Stage("audit trained", title, left, partial(_audit_trained, options)))
    left = out / PANELS_FILE
    panels = Stage("panels", "four panels", left, partial(show_panels, out, options.ratio))
    return [*stages, panels]


def _trained(out: Path, data: str, variant: Variant) -> Path:
    return out / "train" / f"{data}-{variant}"


def _evaluated(out: Path, data: str) -> Path:
    return out / "eval" / data


def _probed(out: Path) -> Path:
    return out / "probe" / "positions"


def _audited(out: Path, name: str) -> Path:
    return out / "audit" / name


def _recipe(data: str, variant: Variant, options: DemoOptions) -> Any:
    recipe = read_recipe(data).with_variant(variant)
    if variant != "A":
        recipe = replace(recipe, mjp=replace(recipe.mjp, ratio=options.ratio))
    epochs = EPOCHS[data] or recipe.run.epochs
    return replace(recipe, run=replace(recipe.run, epochs=epochs, seed=options.seed, device="cpu"))


def _train(recipe: Any, out: Path) -> None:
    """Trains, or goes on training where the same run was stopped."""
    try:
        same = recipe_of_run(out) == recipe
    except ConfigError:
        same = False
    train(TrainOptions(out=out, resume=same, fresh=not same, recipe=recipe))


def _models(data: str, options: DemoOptions) -> tuple[str, ...]:
    return tuple(_model(data, variant, options) for variant in MODELS)


def _model(data: str, variant: Variant, options: DemoOptions) -> str:
    return f"{MODELS[variant]}={_trained(options.out, data, variant) / 'final'}"


def _evaluate(data: str, options: DemoOptions) -> None:
    out = _evaluated(options.out, data)
    shutil.rmtree(out, ignore_errors=True)  # Of a run that was stopped.
    run_accuracy(
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
    out = _probed(options.out)
    shutil.rmtree(out, ignore_errors=True)
    run_positions(
        ProbePositionsOptions(
            model=_models("positions", options), umap=False, seed=options.seed, out=out
        )
    )


def _audit(variant: Variant, options: DemoOptions) -> None:
    """The plain model under defences that it can have, and the other under MJP."""
    moved = f"{options.ratio:g}"
    ratios = dict.fromkeys(("0.03", "0.09", moved))
    own = [f"shuffle={moved}"] if variant == "A" else [f"mjp={one}" for one in ratios]
    model = _model("positions", variant, options)
    _attack(options, _audited(options.out, variant), (model,), ("none", *own, "unshared"))


def _audit_trained(options: DemoOptions) -> None:
    """The models of the package, of real pictures, at a size where closed forms are determined."""
    models = tuple(f"{label}=pretrained:{name}" for label, name in TRAINED.items())
    ratios = dict.fromkeys(("0.03", f"{options.ratio:g}"))
    defences = ("none", *(f"mjp={one}" for one in ratios))
    _attack(options, _audited(options.out, PACKAGE), models, defences, size=DEFAULT_SIZE)


def _attack(
    options: DemoOptions,
    out: Path,
    models: tuple[str, ...],
    defences: tuple[str, ...],
    size: tuple[int, int] | None = None,
) -> None:
    (out / RECORDS).unlink(missing_ok=True)
    run_audit(
        AuditOptions(
            model=models,
            size=size,
            images="photographs" if options.image is None else str(options.image),
            most=PHOTOGRAPHS,
            defences=defences,
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
