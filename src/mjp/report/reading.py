"""How numbers of records are written in tables: with their intervals, signs and units."""

from collections.abc import Mapping

from mjp.core.records import Record, Scalar
from mjp.report.leaks import number, words

MISSING = "–"
"""Stands where there is no number."""


def label_of(record: Record) -> str:
    """What a record's model is called."""
    return words(record.conditions, "model") or "a model without a name"


def with_interval(values: Mapping[str, Scalar], name: str, digits: int = 2, ends: int = 1) -> str:
    """A value with its interval, as `71.05 [69.1–73.0]`.

    Args:
        ends: digits of the interval's ends.
    """
    value, low, high = (number(values, f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return MISSING
    if low is None or high is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{low:.{ends}f}–{high:.{ends}f}]"


def signed(values: Mapping[str, Scalar], name: str) -> str:
    """A difference with its interval, each with its sign."""
    value, low, high = (number(values, f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return MISSING
    if low is None or high is None:
        return f"{value:+.2f}"
    return f"{value:+.2f} [{low:+.2f}…{high:+.2f}]"


def is_clear(values: Mapping[str, Scalar], name: str) -> bool:
    """Whether the interval of a difference leaves 0 out."""
    low, high = (number(values, f"{name}_{end}") for end in ("low", "high"))
    return low is not None and high is not None and (low > 0 or high < 0)


def counted(value: float | None) -> str:
    """A whole number, in groups of three digits."""
    return MISSING if value is None else f"{value:,.0f}"


def clock(seconds: float | None) -> str:
    """A time as a person says it."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
