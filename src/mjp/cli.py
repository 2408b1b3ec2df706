"""The command line: `mjp VERB …`. Parses with light imports only, then loads the verb asked for."""

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import tyro
from tyro.conf import subcommand

from mjp import __version__
from mjp.commands.audit_options import AuditOptions
from mjp.commands.options import (
    DEFAULT_RECIPE,
    BenchAuditOptions,
    BenchEvalOptions,
    BenchPlanOptions,
    BenchStepOptions,
    BenchTrainOptions,
    CheckOptions,
    DemoOptions,
    EvalAccuracyOptions,
    EvalCorruptionsOptions,
    EvalNaturalOptions,
    EvalOutliersOptions,
    ProbeAttentionOptions,
    ProbePositionsOptions,
    ReportOptions,
    TrainOptions,
)
from mjp.commands.serve_options import ServeOptions
from mjp.commands.study_options import StudyOptions
from mjp.core.errors import CheckpointError, ConfigError, MjpError
from mjp.core.interruption import StoppedError
from mjp.train.recipe import Recipe, read_recipe, with_variant
from mjp.train.runs import recipe_of_run

Bench = (
    Annotated[BenchStepOptions, subcommand("step")]
    | Annotated[BenchPlanOptions, subcommand("plan")]
    | Annotated[BenchTrainOptions, subcommand("train")]
    | Annotated[BenchEvalOptions, subcommand("eval")]
    | Annotated[BenchAuditOptions, subcommand("audit")]
)

Eval = (
    Annotated[EvalAccuracyOptions, subcommand("accuracy")]
    | Annotated[EvalCorruptionsOptions, subcommand("corruptions")]
    | Annotated[EvalNaturalOptions, subcommand("imagenet-a")]
    | Annotated[EvalOutliersOptions, subcommand("imagenet-o")]
)

Probe = (
    Annotated[ProbePositionsOptions, subcommand("positions")]
    | Annotated[ProbeAttentionOptions, subcommand("attention")]
)

_FIRST = {"eval": "accuracy", "probe": "positions"}
"""What a verb does where it is not told: `mjp eval --model …` is `mjp eval accuracy --model …`."""

_RUNNERS = {
    DemoOptions: "mjp.commands.demo",
    TrainOptions: "mjp.commands.train",
    CheckOptions: "mjp.commands.check",
    BenchStepOptions: "mjp.commands.bench_step",
    BenchPlanOptions: "mjp.commands.bench_plan",
    BenchTrainOptions: "mjp.commands.bench_train",
    BenchEvalOptions: "mjp.commands.bench_eval",
    EvalAccuracyOptions: "mjp.commands.eval_accuracy",
    EvalCorruptionsOptions: "mjp.commands.eval_corruptions",
    EvalNaturalOptions: "mjp.commands.eval_natural",
    EvalOutliersOptions: "mjp.commands.eval_outliers",
    ProbePositionsOptions: "mjp.commands.probe_positions",
    ProbeAttentionOptions: "mjp.commands.probe_attention",
    AuditOptions: "mjp.commands.audit",
    ReportOptions: "mjp.commands.report",
    BenchAuditOptions: "mjp.commands.bench_audit",
    ServeOptions: "mjp.web.serving",
    StudyOptions: "mjp.commands.study",
}

_EXTRAS = {
    "matplotlib": "evaluate",
    "umap": "evaluate",
    "imagecorruptions": "evaluate",
    "cv2": "evaluate",
    "skimage": "demo",
    "datasets": "hub",
    "jinja2": "audit",
    "opacus": "audit",
    "torchmetrics": "audit",
    "fastapi": "serve",
    "uvicorn": "serve",
}
"""Packages that only some verbs need, and the extra of mjp that brings each."""

DONE, FAILED, ASKED_WRONGLY, INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line. Exits 0 when done, 1 when it failed, 2 when it was asked wrongly."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"mjp {__version__}")
        sys.exit(DONE)
    arguments = _spelled_out(arguments)
    try:
        name, recipe = _chosen_recipe(arguments)
    except MjpError as error:
        sys.exit(_failed(error))
    options = tyro.cli(
        _verbs(name, recipe),
        prog="mjp",
        description="Vision transformers with Masked Jigsaw Puzzle position embeddings.",
        args=arguments,
    )
    sys.exit(_run(options, name))


def _spelled_out(arguments: list[str]) -> list[str]:
    """The arguments with what a verb does by default put in, but for a plea for help."""
    verb, following = arguments[:1], arguments[1:2]
    bare = not following or following[0].startswith("-")
    if not verb or verb[0] not in _FIRST or not bare or following in (["-h"], ["--help"]):
        return arguments
    return [*verb, _FIRST[verb[0]], *arguments[1:]]


def _verbs(name: str, recipe: Recipe) -> Any:
    """The verbs; those that take a recipe have its values as defaults of their flags."""
    training = TrainOptions(name=name, recipe=recipe)
    checking = CheckOptions(name=name, recipe=recipe)
    return (
        Annotated[DemoOptions, subcommand("demo")]
        | Annotated[TrainOptions, subcommand("train", default=training)]
        | Annotated[CheckOptions, subcommand("check", default=checking)]
        | Annotated[
            Eval,
            subcommand(
                "eval",
                description="Measure models: accuracy and jigsaws (the default), corruptions, "
                "ImageNet-A, ImageNet-O.",
            ),
        ]
        | Annotated[
            Probe,
            subcommand(
                "probe",
                description="Look into models: what their position embeddings learned (the "
                "default), where they attend.",
            ),
        ]
        | Annotated[AuditOptions, subcommand("audit")]
        | Annotated[StudyOptions, subcommand("study")]
        | Annotated[ReportOptions, subcommand("report")]
        | Annotated[ServeOptions, subcommand("serve")]
        | Annotated[
            Bench, subcommand("bench", description="Measure what MJP costs, as a ratio in one run.")
        ]
    )


def _chosen_recipe(arguments: list[str]) -> tuple[str, Recipe]:
    """The recipe that the arguments name, so that flags can then change its values."""
    if not arguments or arguments[0] not in ("train", "check"):
        return DEFAULT_RECIPE, Recipe()
    named = len(arguments) > 1 and not arguments[1].startswith("-")
    name = arguments[1] if named else DEFAULT_RECIPE
    out = _value_of(arguments, "--out")
    if not named and "--resume" in arguments and out is not None:
        return name, recipe_of_run(out)
    recipe = read_recipe(name)
    variant = _value_of(arguments, "--variant")
    return name, recipe if variant is None else with_variant(recipe, variant)


def _value_of(arguments: list[str], flag: str) -> str | None:
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and place + 1 < len(arguments):
            return arguments[place + 1]
    return None


def _run(options: Any, name: str) -> int:
    try:
        if isinstance(options, TrainOptions | CheckOptions) and options.name != name:
            raise ConfigError(
                f"name the recipe before its flags: mjp train {options.name} --flag value"
            )
        import_module(_RUNNERS[type(options)]).run(options)
    except MjpError as error:
        return _failed(error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _EXTRAS:
            raise
        package = error.name.split(".")[0]
        extra = "demo" if isinstance(options, DemoOptions) else _EXTRAS[package]
        _complain(f"this needs {package}: pip install 'mjp[{extra}]'")
        return FAILED
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except OSError as error:
        _complain(str(error))
        return FAILED
    return DONE


def _failed(error: MjpError) -> int:
    """Says what went wrong; the exit status for it."""
    if isinstance(error, StoppedError):
        _complain(str(error))
        return 128 + error.number
    asked_wrongly = isinstance(error, ValueError) and not isinstance(error, CheckpointError)
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 or not asked_wrongly:  # All processes were asked the same; one complains.
        _complain(f"{error}" if rank == 0 else f"process {rank}: {error}")
    return ASKED_WRONGLY if asked_wrongly else FAILED


def _complain(text: str) -> None:
    print(f"mjp: {text}", file=sys.stderr)
