"""Checks of single values of a configuration, shared by all of them. Imports nothing heavy."""

import math
from collections.abc import Iterable
from typing import Literal

from mjp.core.errors import ConfigError

Shape = Literal["block", "scatter"]
"""The shapes of a mask: random rectangles, or independent patches."""


def check_ratio(name: str, value: float) -> None:
    """Raises unless the value is a number in [0, 1]."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a number between 0 and 1, got {value!r}")


def check_crop(value: float | None) -> None:
    """Raises unless this is a share of an image that a crop can keep, or nothing."""
    if value is not None:
        check_ratio("crop", value)
        if value < 0.1:
            raise ConfigError(f"crop is between 0.1 and 1, got {value:g}")


def check_at_least(name: str, value: float, least: float) -> None:
    """Raises unless the value is a finite number of at least `least`."""
    if not _is_number(value) or not least <= value < math.inf:
        raise ConfigError(f"{name} must be a number of at least {least:g}, got {value!r}")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raises unless the value is a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raises unless the value is one of the choices."""
    if value not in (choices := tuple(choices)):
        raise ConfigError(f"{name} must be one of {', '.join(map(str, choices))}; got {value!r}")


def check_range(name: str, value: tuple[float, float], least: float = 0.0) -> None:
    """Raises unless the value is an ascending pair of finite numbers above `least`."""
    low, high = value
    if not (_is_number(low) and _is_number(high) and least < low <= high < math.inf):
        raise ConfigError(
            f"{name} must be two numbers above {least:g}, the smaller first, got {value!r}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
