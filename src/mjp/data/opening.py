"""Opens labelled images by what a person calls them, to train or to evaluate on."""

from functools import partial
from pathlib import Path
from typing import Literal

from mjp.core.errors import ConfigError, DataError
from mjp.data.archives import HubSource, ParquetSource, TarSource
from mjp.data.config import DataSettings, SourceName
from mjp.data.embedded import DigitsSource, PositionsSource
from mjp.data.source import FolderSource, Source, walk_pictures

EMBEDDED = ("digits", "positions")


def open_both(settings: DataSettings) -> tuple[Source, Source]:
    """The training and the validation images, of the same classes."""
    source, root = settings.source, settings.root or settings.source
    if settings.root is None and source not in EMBEDDED:
        raise ConfigError(
            "this recipe needs data: name its folder with --data.root (of source hub, OWNER/NAME), "
            "or try an embedded set, --data.source digits"
        )
    if source not in ("hub", *EMBEDDED) and not Path(root).expanduser().is_dir():
        raise DataError(f"data.root {root} is not a folder")
    opened = partial(open_images, root, source, readers=settings.readers, size=settings.size)
    parts = ("train", "val") if source in EMBEDDED else (settings.train, settings.val)
    train = opened(parts[0])
    return train, opened(parts[1], train.classes)


def open_images(
    where: str,
    source: SourceName = "auto",
    split: str | None = None,
    classes: tuple[str, ...] | None = None,
    *,
    readers: int = 2,
    size: int = 5000,
) -> Source:
    """Labelled images.

    Args:
        where: a folder, a Parquet or tar file, a data set on the hub, or `digits` or `positions`,
            which are embedded.
        split: which part of it: a subfolder, a word in the names of files or a pattern of them, or
            the hub's split; for None, its validation part where there is one, else all.
        classes: those of the training split, which a validation split must keep to.
        readers: threads that read Parquet row groups ahead.
        size: training images of `positions`; a fifth as many are for validation.
    """
    embedded = where if source == "auto" else source
    if embedded in EMBEDDED:
        part: Literal["train", "val"] = "train" if split == "train" else "val"
        if embedded == "digits":
            return DigitsSource(part)
        return PositionsSource(part, size if part == "train" else size // 5)
    if source == "hub":
        return HubSource(where, split or "validation", classes)
    root = Path(where).expanduser()
    if not root.exists():
        raise DataError(f"there is no folder or file {root}")
    if source == "auto" and root.is_dir():
        source = _kind_of(root)
    if source == "folder" and root.is_dir():
        parts = [name for name in ("val", "validation") if (root / name).is_dir()]
        return FolderSource(root / (split or [*parts, "."][0]), classes)
    files = [root]
    if root.is_dir():
        files = _files(root, "parquet" if source == "parquet" else "tar", split)
    if files[0].suffix == ".parquet":
        return ParquetSource(files, classes, readers)
    if files[0].suffix == ".tar":
        return TarSource(files, classes)
    raise DataError(f"{root} is neither a .parquet nor a .tar; name the folder of the pictures")


def _kind_of(root: Path) -> SourceName:
    """What a folder holds. A tree of millions of pictures is not walked to find out."""
    if _has(root, "*.parquet", "*/*.parquet"):
        return "parquet"
    if any(walk_pictures(root)):
        return "folder"  # Also where an archive lies beside the folders.
    if _has(root, "**/*.tar"):
        return "wds"
    return "parquet" if _has(root, "**/*.parquet") else "folder"


def _has(root: Path, *patterns: str) -> bool:
    return any(next(root.glob(pattern), None) is not None for pattern in patterns)


def _files(root: Path, ending: str, split: str | None) -> list[Path]:
    """The files of a split; for None those of validation, or the only one there is."""
    pattern = split or "val"
    if not pattern.endswith(f".{ending}"):
        pattern = f"*{pattern}*.{ending}"
    try:
        files = sorted(path for path in root.rglob(pattern) if path.is_file())
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"{pattern!r} is no pattern of files under {root}: {error}") from error
    if files:
        return files
    there = sorted(path for path in root.rglob(f"*.{ending}") if path.is_file())
    if split is None and len(there) == 1:
        return there
    if not there:
        raise DataError(f"there is no .{ending} file under {root}")
    names = ", ".join(path.name for path in there[:5]) + (" …" if len(there) > 5 else "")
    raise DataError(
        f"no file under {root} matches {pattern!r}; name the split by a word in the names of its "
        f"files, or by a pattern. There is {names}"
    )
