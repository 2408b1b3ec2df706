"""The command line: `mjp VERB …`. Parses with light imports only, then loads the verb asked for."""

import sys
from importlib import import_module
from typing import Annotated

import tyro
from tyro.conf import subcommand

from mjp import __version__
from mjp.commands.options import BenchPlanOptions, BenchStepOptions, DemoOptions
from mjp.core.errors import CheckpointError, MjpError

Bench = (
    Annotated[BenchStepOptions, subcommand("step")]
    | Annotated[BenchPlanOptions, subcommand("plan")]
)
Verb = (
    Annotated[DemoOptions, subcommand("demo")]
    | Annotated[
        Bench, subcommand("bench", description="Measure what MJP costs, as a ratio in one run.")
    ]
)

_RUNNERS = {
    DemoOptions: "mjp.commands.demo",
    BenchStepOptions: "mjp.commands.bench_step",
    BenchPlanOptions: "mjp.commands.bench_plan",
}

_EXTRAS = {"matplotlib": "demo", "skimage": "demo"}
"""Packages that only some verbs need, and the extra of mjp that brings each."""

DONE, FAILED, ASKED_WRONGLY, INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line. Exits 0 when done, 1 when it failed, 2 when it was asked wrongly."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"mjp {__version__}")
        sys.exit(DONE)
    options = tyro.cli(
        Verb,
        prog="mjp",
        description="Vision transformers with Masked Jigsaw Puzzle position embeddings.",
        args=arguments,
    )
    sys.exit(_run(options))


def _run(options: object) -> int:
    try:
        import_module(_RUNNERS[type(options)]).run(options)
    except MjpError as error:
        print(f"mjp: {error}", file=sys.stderr)
        asked_wrongly = isinstance(error, ValueError) and not isinstance(error, CheckpointError)
        return ASKED_WRONGLY if asked_wrongly else FAILED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _EXTRAS:
            raise
        package = error.name.split(".")[0]
        print(f"mjp: this needs {package}: pip install 'mjp[{_EXTRAS[package]}]'", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("mjp: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except OSError as error:
        print(f"mjp: {error}", file=sys.stderr)
        return FAILED
    return DONE
