"""Opens the source that the settings name: one table of them, and a look at the root for `auto`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from mjp.core.errors import ConfigError, DataError
from mjp.data.archives import HubSource, ParquetSource, TarSource
from mjp.data.config import DataSettings, SourceName
from mjp.data.embedded import DigitsSource, PositionsSource
from mjp.data.source import FolderSource, Source, has_pictures

Split = Literal["train", "val"]
Classes = tuple[str, ...] | None
EMBEDDED = ("digits", "positions")
VALIDATION = ("val", "validation")
"""What folders of validation images are called."""


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


def open_images(where: str, source: SourceName = "auto", split: str | None = None) -> Source:
    """Images to evaluate on, by what a person calls them.

    Args:
        where: a folder, a Parquet or tar file, a data set on the hub, or `digits` or `positions`,
            which are embedded.
        split: which part of it; for None, its validation part where there is one, else all.
    """
    if source in EMBEDDED or (source == "auto" and where in EMBEDDED):
        name = where if where in EMBEDDED else source
        return SOURCES[name](DataSettings(source=name), "val", None)  # type: ignore[arg-type]
    if source == "hub":
        return HubSource(where, split or "validation", None)
    root = Path(where).expanduser()
    if root.is_file():
        return _open_files([root], root.suffix.removeprefix("."))
    if not root.is_dir():
        raise DataError(f"there is no folder or file {root}")
    if source == "auto":
        source = _kind_of(root)
    if source == "folder":
        if split is not None:
            return FolderSource(root / split)
        parts = [root / name for name in VALIDATION if (root / name).is_dir()]
        return FolderSource(parts[0] if parts else root)
    ending = "parquet" if source == "parquet" else "tar"
    return _open_files(_part(sorted(root.rglob(f"*.{ending}")), root, ending, split), ending)


def _open_files(files: list[Path], ending: str) -> Source:
    if ending == "parquet":
        return ParquetSource(files)
    if ending == "tar":
        return TarSource(files)
    raise DataError(f"{files[0]} is neither a .parquet nor a .tar; name the folder of the pictures")


def _part(files: list[Path], root: Path, ending: str, split: str | None) -> list[Path]:
    """The files of a split: those with its word in their names; all, where only one is there."""
    if not files:
        raise DataError(f"there is no .{ending} file under {root}")
    named = [path for path in files if (split or "val") in path.name]
    if named or (len(files) == 1 and split is None):
        return named or files
    there = ", ".join(path.name for path in files[:5])
    raise DataError(
        f"no .{ending} file under {root} has {split or 'val'!r} in its name; choose with --split, "
        f"or name one file. There is {there}"
    )


def _look(settings: DataSettings) -> SourceName:
    """The kind of source that the root is."""
    return _kind_of(_root(settings))


def _kind_of(root: Path) -> SourceName:
    """What a folder holds. A tree of millions of pictures is not walked to find out."""
    if _first(root, "parquet", deep=False):
        return "parquet"
    if has_pictures(root):
        return "folder"  # Also where an archive lies beside the folders.
    if _first(root, "tar", deep=False) or _first(root, "tar", deep=True):
        return "wds"
    return "parquet" if _first(root, "parquet", deep=True) else "folder"


def _first(root: Path, ending: str, *, deep: bool) -> bool:
    """Whether there is such a file: anywhere, or in the folder and those in it."""
    patterns = (f"**/*.{ending}",) if deep else (f"*.{ending}", f"*/*.{ending}")
    return any(next(root.glob(pattern), None) is not None for pattern in patterns)


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
