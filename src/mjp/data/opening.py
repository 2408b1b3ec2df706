"""Opens the source that the settings name: one table of them, and a look at the root for `auto`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from mjp.core.errors import ConfigError, DataError
from mjp.data.embedded import DigitsSource, PositionsSource
from mjp.data.folder import FolderSource
from mjp.data.hub import HubSource
from mjp.data.parquet import ParquetSource
from mjp.data.settings import DataSettings
from mjp.data.source import Source
from mjp.data.tars import TarSource

Split = Literal["train", "val"]
Classes = tuple[str, ...] | None


def open_source(settings: DataSettings, split: Split, classes: Classes = None) -> Source:
    """The training or the validation images.

    Args:
        classes: those of the training split, which the validation split must keep to.
    """
    name = settings.source if settings.source != "auto" else _look(settings)
    return SOURCES[name](settings, split, classes)


def open_both(settings: DataSettings) -> tuple[Source, Source]:
    """The training and the validation images, of the same classes."""
    train = open_source(settings, "train")
    return train, open_source(settings, "val", train.classes)


def _look(settings: DataSettings) -> str:
    """The kind of source that the root is."""
    root = _root(settings)
    for name, ending in (("parquet", "parquet"), ("wds", "tar")):
        if next(root.rglob(f"*.{ending}"), None) is not None:
            return name
    return "folder"


def _root(settings: DataSettings) -> Path:
    if settings.root is None:
        raise ConfigError(
            "this recipe needs data: name its folder with --data.root, or try an embedded set, "
            "--data.source digits"
        )
    root = Path(settings.root).expanduser()
    if not root.is_dir():
        what = "is a file; name the folder it is in" if root.is_file() else "does not exist"
        raise DataError(f"data.root {root} {what}")
    return root


def _pattern(settings: DataSettings, split: Split) -> str:
    return settings.train if split == "train" else settings.val


def _files(settings: DataSettings, split: Split, ending: str) -> list[Path]:
    """Files of a split: by a pattern, or by the split's word in their names."""
    root, pattern = _root(settings), _pattern(settings, split)
    if not pattern.endswith(f".{ending}"):
        pattern = f"*{pattern}*.{ending}"
    try:
        found = sorted(path for path in root.rglob(pattern) if path.is_file())
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"data.{split} {pattern!r} is no pattern under data.root: {error}"
        ) from error
    if not found:
        there = sorted(path.name for path in root.rglob(f"*.{ending}"))
        names = ", ".join(there[:5]) + (" …" if len(there) > 5 else "")
        raise DataError(
            f"no file under {root} matches {pattern!r}; set --data.{split}. There is {names}"
            if there
            else f"there is no .{ending} file under {root}"
        )
    return found


def _folder(settings: DataSettings, split: Split, classes: Classes) -> Source:
    return FolderSource(_root(settings) / _pattern(settings, split), classes)


def _parquet(settings: DataSettings, split: Split, classes: Classes) -> Source:
    return ParquetSource(_files(settings, split, "parquet"), classes, readers=settings.readers)


def _tars(settings: DataSettings, split: Split, classes: Classes) -> Source:
    return TarSource(_files(settings, split, "tar"), classes)


def _hub(settings: DataSettings, split: Split, classes: Classes) -> Source:
    if settings.root is None:
        raise ConfigError("data.source hub needs the data set's name as --data.root OWNER/NAME")
    return HubSource(settings.root, _pattern(settings, split), classes)


def _digits(settings: DataSettings, split: Split, classes: Classes) -> Source:
    return DigitsSource(split)


def _positions(settings: DataSettings, split: Split, classes: Classes) -> Source:
    size = settings.size if split == "train" else settings.size // 5
    return PositionsSource(split, size)


SOURCES: Mapping[str, Callable[[DataSettings, Split, Classes], Source]] = MappingProxyType(
    {
        "folder": _folder,
        "parquet": _parquet,
        "wds": _tars,
        "hub": _hub,
        "digits": _digits,
        "positions": _positions,
    }
)
