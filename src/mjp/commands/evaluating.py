"""What the verbs that have not moved yet share."""

from pathlib import Path

from rich.markup import escape
from rich.table import Table

from mjp.core.errors import ConfigError
from mjp.core.records import Record


def claim(out: Path) -> None:
    """Makes sure that results can be written, before there are any."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"results cannot be written to {out}: it is a file; name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "records.jsonl").open("a").close()
    except OSError as error:
        raise ConfigError(f"results cannot be written to {out}: {error.strerror}") from error


def label_of(record: Record) -> str:
    """What a record's model is called, for a table: nothing in it is markup."""
    return escape(str(record.conditions["model"]))


def numbers(table: Table, *names: str) -> None:
    """Adds columns of numbers."""
    for name in names:
        table.add_column(name, justify="right")
