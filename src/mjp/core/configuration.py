"""Frozen dataclasses from TOML and back, and checks of their values: strict about names, types and
ranges, helpful about mistakes. Imports nothing heavy."""

import difflib
import json
import math
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mjp.core.errors import ConfigError

Configuration = TypeVar("Configuration")
Shape = Literal["block", "scatter"]
"""The shapes of a mask: random rectangles, or independent patches."""


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; an error that names the file and the line where it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML file: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def from_mapping(
    cls: type[Configuration], values: Mapping[str, Any], *, where: str, section: str = ""
) -> Configuration:
    """The configuration with these values, nested sections included, and defaults for the rest.

    Args:
        where: what to call the origin of the values in an error, such as the name of a file.
    """
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            hint = suggestion(name, list(known))
            raise ConfigError(f"{where}: {_dotted(section, name)} is unknown{hint}")
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and name not in values:
            raise ConfigError(f"{where}: {_dotted(section, name)} is missing")
    found = {
        name: _convert(value, hints[name], where, _dotted(section, name))
        for name, value in values.items()
    }
    try:
        return cls(**found)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def suggestion(name: str, names: list[str]) -> str:
    """What was perhaps meant, or what there is."""
    close = difflib.get_close_matches(name, names, n=2)
    return f"; did you mean {' or '.join(close)}?" if close else f"; there is {', '.join(names)}"


def to_toml(configuration: Any) -> str:
    """The configuration as TOML that `from_mapping` reads back; None becomes `"none"`."""
    return "\n".join(_lines(configuration, "")) + "\n"


def flatten(configuration: Any, section: str = "") -> dict[str, Any]:
    """Every value by its dotted name."""
    flat: dict[str, Any] = {}
    for field in fields(configuration):
        value = getattr(configuration, field.name)
        name = _dotted(section, field.name)
        flat |= flatten(value, name) if is_dataclass(value) else {name: value}
    return flat


def _lines(configuration: Any, section: str) -> Iterator[str]:
    values = {field.name: getattr(configuration, field.name) for field in fields(configuration)}
    nested = {name: value for name, value in values.items() if is_dataclass(value)}
    yield from (f"{name} = {_toml(v)}" for name, v in values.items() if name not in nested)
    for name, value in nested.items():
        yield from ("", f"[{_dotted(section, name)}]")
        yield from _lines(value, _dotted(section, name))


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, default=str, ensure_ascii=False)


def _convert(value: Any, hint: Any, where: str, name: str) -> Any:
    """The value as its declared type, or an error; `"none"` is None where that is allowed."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(None) in options and value == "none":
        return None
    for option in options:
        fitted = _fit(value, option, where, name)
        if fitted is not _NO_FIT:
            return fitted
    raise ConfigError(f"{where}: {name} must be {_words(hint)}, got {value!r}")


_NO_FIT = object()


def _fit(value: Any, hint: Any, where: str, name: str) -> Any:
    origin = get_origin(hint)
    if is_dataclass(hint) and isinstance(value, Mapping):
        return from_mapping(hint, value, where=where, section=name)  # type: ignore[arg-type]
    if origin is Literal:
        return value if value in get_args(hint) and type(value) is not bool else _NO_FIT
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = get_args(hint)
        kinds = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        if len(kinds) != len(value):
            return _NO_FIT
        parts = [_fit(v, kind, where, name) for v, kind in zip(value, kinds, strict=True)]
        return _NO_FIT if any(part is _NO_FIT for part in parts) else tuple(parts)
    if origin is dict and isinstance(value, Mapping):
        return dict(value)
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    return value if isinstance(hint, type) and type(value) is hint else _NO_FIT


def _words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if origin in (Union, types.UnionType):
        return " or ".join('"none"' if o is type(None) else _words(o) for o in get_args(hint))
    if origin is tuple:
        return "a list of " + ", ".join(_words(o) for o in get_args(hint) if o is not Ellipsis)
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if hint in names:
        return names[hint]
    return "a table" if origin is dict or is_dataclass(hint) else str(hint)


def _dotted(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def check_ratio(name: str, value: float) -> None:
    """Raises unless the value is a number in [0, 1]."""
    _require(_is_number(value) and 0 <= value <= 1, name, "a number between 0 and 1", value)


def check_crop(value: float | None) -> None:
    """Raises unless this is a share of an image that a crop can keep, or nothing."""
    if value is not None:
        check_ratio("crop", value)
        _require(value >= 0.1, "crop", "between 0.1 and 1", value)


def check_at_least(name: str, value: float, least: float) -> None:
    """Raises unless the value is a finite number of at least `least`."""
    is_one = _is_number(value) and least <= value < math.inf
    _require(is_one, name, f"a number of at least {least:g}", value)


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raises unless the value is a whole number of at least `least`."""
    is_one = type(value) is int and value >= least
    _require(is_one, name, f"a whole number of at least {least}", value)


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raises unless the value is one of the choices."""
    if value not in (choices := tuple(choices)):
        raise ConfigError(f"{name} must be one of {', '.join(map(str, choices))}; got {value!r}")


def check_range(name: str, value: tuple[float, float], least: float = 0.0) -> None:
    """Raises unless the value is an ascending pair of finite numbers above `least`."""
    is_one = all(map(_is_number, value)) and least < value[0] <= value[1] < math.inf
    _require(is_one, name, f"two numbers above {least:g}, the smaller first", value)


def _require(holds: bool, name: str, what: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {what}, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
