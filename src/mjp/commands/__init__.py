"""What the verbs do that have not moved to their rooms yet."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mjp.commands import options
from mjp.core.verbs import Verb


def _runner(module: str) -> Callable[[Any], None]:
    def run(chosen: Any) -> None:
        import_module(module).run(chosen)

    return run


def _verb(name: str, kind: type, module: str) -> Verb:
    return Verb(name, kind, _runner(f"mjp.{module}"))


VERBS = (_verb("demo", options.DemoOptions, "commands.demo"),)
