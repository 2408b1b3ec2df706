"""Finds the verb and the recipe that arguments name, and parses them."""

from collections.abc import Sequence
from dataclasses import replace
from inspect import getdoc
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

from mjp.catalog import GROUPS, read_recipe, recipe_of_run, tasks
from mjp.core.errors import ConfigError
from mjp.core.verbs import DEFAULT_TASK, Verb
from mjp.train.config import DEFAULT_RECIPE


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
        others = [f"mjp {other.name}" for other in known if other.name.startswith(f"{word} ")]
        if job and word not in groups:  # The first is what the bare word does.
            settings["description"] = f"{getdoc(chosen)}\n\nOthers: {', '.join(others[1:])}."
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
