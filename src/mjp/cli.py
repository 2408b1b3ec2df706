"""The command line: `mjp VERB …`. Finds the verb and its recipe, parses, runs, words errors."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args

import tyro
from tyro.conf import subcommand
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

from mjp import __version__
from mjp.catalog import GROUPS, read_recipe, recipe_of_run, tasks, verbs
from mjp.core.errors import CheckpointError, ConfigError, MjpError, StoppedError
from mjp.core.verbs import DEFAULT_TASK, Verb
from mjp.train.config import DEFAULT_RECIPE

EXTRAS = {
    "matplotlib": "evaluate",
    "umap": "evaluate",
    "imagecorruptions": "evaluate",
    "cv2": "evaluate",
    "skimage": "demo",
    "datasets": "hub",
    "jinja2": "audit",
    "opacus": "audit",
    "lpips": "audit",
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
    try:
        verb, options = parse(arguments, verbs())
        verb.run(options)
    except MjpError as error:
        sys.exit(_fail(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in EXTRAS:
            raise
        extra = "demo" if arguments[:1] == ["demo"] else EXTRAS[package]
        _complain(f"this needs {package}: pip install 'mjp[{extra}]'")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        _complain("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(FAILED)
    except OSError as error:
        _complain(str(error))
        sys.exit(FAILED)
    sys.exit(DONE)


def _with_job(arguments: list[str], known: Sequence[Verb]) -> list[str]:
    """The arguments with the first job of a verb put in, where they name none."""
    jobs = [verb.name.split()[1] for verb in known if verb.name.split()[:-1] == arguments[:1]]
    following = arguments[1:2]
    bare = not following or following[0].startswith("-")
    if not jobs or not bare or arguments[0] == "bench":
        return arguments
    return [arguments[0], jobs[0], *arguments[1:]]


def parse(arguments: list[str], known: Sequence[Verb]) -> tuple[Verb, Any]:
    """The verb that the arguments name, and its options."""
    arguments = _with_job(arguments, known)
    groups: dict[str, list[Any]] = {}
    for verb in known:
        word, _, job = verb.name.partition(" ")
        chosen: Any = verb.options
        settings: dict[str, Any] = {}
        if verb.takes_recipe:
            config: Any = tasks()[DEFAULT_TASK].config
            if arguments[:1] == [word]:
                settings["default"] = _with_recipe(verb, arguments)
                config = type(settings["default"].recipe)
            chosen = chosen[config]
        groups.setdefault(word, []).append(Annotated[chosen, subcommand(job or word, **settings)])
    choices = [
        jobs[0]
        if len(jobs) == 1
        else Annotated[Union[tuple(jobs)], subcommand(word, description=GROUPS[word])]  # noqa: UP007
        for word, jobs in groups.items()
    ]
    every: Any = Union[tuple(choices)]  # noqa: UP007
    options: Any = tyro.cli(
        every,
        prog="mjp",
        description="Vision transformers with Masked Jigsaw Puzzle position embeddings.",
        args=arguments,
        registry=_registry(),
    )
    verb = next(verb for verb in known if type(options) is verb.options)
    if verb.takes_recipe and options.name != _recipe_name(arguments):
        raise ConfigError(
            f"name the recipe before its flags: mjp {verb.name} {options.name} --flag value"
        )
    return verb, options


def _with_recipe(verb: Verb, arguments: list[str]) -> Any:
    """The verb's options with the values of the recipe that the arguments name."""
    name, out = _recipe_name(arguments), _value_of(arguments, "--out")
    if arguments[1:2] != [name] and "--resume" in arguments and out is not None:
        return verb.options(name=name, recipe=recipe_of_run(out))
    recipe, variant = read_recipe(name), _value_of(arguments, "--variant")
    if variant is not None:
        recipe = recipe.with_variant(variant)
    return verb.options(name=name, recipe=recipe)


def _recipe_name(arguments: list[str]) -> str:
    """The recipe that the arguments name, so that flags can then change its values."""
    named = len(arguments) > 1 and not arguments[1].startswith("-")
    return arguments[1] if named else DEFAULT_RECIPE


def _value_of(arguments: list[str], flag: str) -> str | None:
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and place + 1 < len(arguments):
            return arguments[place + 1]
    return None


def _registry() -> ConstructorRegistry:
    """Shows and reads `X | None` as X or `none`, as TOML files do."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def optional(
        info: PrimitiveTypeInfo,
    ) -> PrimitiveConstructorSpec[Any] | UnsupportedTypeAnnotationError | None:
        kinds = get_args(info.type)
        if info.type_origin not in (Union, UnionType) or NoneType not in kinds:
            return None
        inner: Any = Union[tuple(kind for kind in kinds if kind is not NoneType)]  # noqa: UP007
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(inner, info.markers))
        if not isinstance(spec, PrimitiveConstructorSpec):
            return spec
        return replace(
            spec,
            instance_from_str=lambda texts: (
                None if texts == ["none"] else spec.instance_from_str(texts)
            ),
            is_instance=lambda value: value is None or spec.is_instance(value),
            str_from_instance=lambda value: (
                ["none"] if value is None else spec.str_from_instance(value)
            ),
            choices=None if spec.choices is None else (*spec.choices, "none"),
        )

    return registry


def _fail(error: MjpError) -> int:
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
