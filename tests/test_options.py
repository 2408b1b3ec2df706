"""All options of all verbs stand in options.txt, so that none changes unseen.

After a change that is meant: `python -m tests.test_options`.
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from mjp.catalog import tasks, verbs
from mjp.core.verbs import DEFAULT_TASK

LISTING = Path(__file__).parent / "options.txt"


def options_of(kind: Any, prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint = hints[field.name]
        if isinstance(hint, TypeVar):
            hint = tasks()[DEFAULT_TASK].config
        name = f"{prefix}{field.name.replace('_', '-')}"
        if is_dataclass(hint):
            yield from options_of(hint, "" if field.name == "recipe" else f"{name}.")
            continue
        default = field.default
        if default is MISSING:
            factory = field.default_factory
            default = "(required)" if factory is MISSING else factory()
        kind_name = hint.__name__ if isinstance(hint, type) else str(hint)
        for module in ("typing.", "pathlib.", "_local."):
            kind_name = kind_name.replace(module, "")
        yield f"--{name}: {kind_name} = {default}"


def listing() -> str:
    lines = []
    for verb in verbs():
        lines += [f"mjp {verb.name}", *(f"    {line}" for line in options_of(verb.options)), ""]
    return "\n".join(lines)


def test_the_options_of_all_verbs_are_those_that_are_listed():
    assert listing() == LISTING.read_text(encoding="utf-8")


if __name__ == "__main__":
    LISTING.write_text(listing(), encoding="utf-8")
