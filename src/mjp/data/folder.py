"""Images in a folder per class, as ImageNet is laid out."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
from timm.data.readers.img_extensions import get_img_extensions

from mjp.core.errors import DataError
from mjp.data.source import Sample, Source


class FolderSource(Source):
    """Pictures under `root/CLASS/…`, in the order of their names.

    Args:
        classes: the classes of the training split, which a validation split must keep to.
    """

    def __init__(self, root: Path, classes: tuple[str, ...] | None = None) -> None:
        if not root.is_dir():
            siblings = _subfolders(root.parent) if root.parent.is_dir() else ()
            there = f"; there is {', '.join(siblings[:5])}" if siblings else ""
            raise DataError(f"there is no folder {root}{there}")
        found = _subfolders(root)
        if not found:
            raise DataError(f"{root} has no subfolders; expected one for each class")
        if classes is not None and set(found) - set(classes):
            strange = sorted(set(found) - set(classes))
            raise DataError(
                f"{root} has classes that training does not know: {', '.join(strange[:5])}"
            )
        classes = found if classes is None else classes
        number = {name: index for index, name in enumerate(classes)}
        files: list[str] = []
        labels: list[int] = []
        for name in found:
            pictures = _pictures(root / name)
            if not pictures:
                raise DataError(
                    f"class folder {root / name} holds no pictures; remove it or fill it"
                )
            files += pictures
            labels += [number[name]] * len(pictures)
        # An Arrow array, not a list: a list's counts of references would be written to by every
        # process that reads it, and memory shared after a fork would be copied bit by bit.
        self._files = pa.array(files, pa.large_string())
        self._root = root
        super().__init__(classes, np.asarray(labels), str(root))

    def name_of(self, index: int) -> str:
        return str(self._root / self._files[index].as_py())

    def __getitem__(self, index: int) -> Sample:
        return Sample(Path(self.name_of(index)), int(self.labels[index]))


def pictures_under(root: Path) -> list[Path]:
    """Pictures in a folder and below, whatever their classes, in the order of their names."""
    return [root.parent / name for name in _pictures(root)]


def has_pictures(root: Path) -> bool:
    """Whether there is a picture in the folder or below; stops at the first."""
    walked = os.walk(root, followlinks=True)
    return any(_is_picture(name) for _, _, names in walked for name in names)


def _is_picture(name: str) -> bool:
    extension = os.path.splitext(name)[1].lower()
    return not name.startswith(".") and (extension in _EXTENSIONS or extension == ".webp")


_EXTENSIONS = get_img_extensions(as_set=True)


def _subfolders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(e.name for e in os.scandir(root) if e.is_dir() and e.name[0] != "."))


def _pictures(folder: Path) -> list[str]:
    """Paths of pictures in the folder and below, relative to the folder's parent, sorted."""
    found = []
    for directory, _, names in os.walk(folder, followlinks=True):
        prefix = os.path.relpath(directory, folder.parent)
        found += [os.path.join(prefix, name) for name in names if _is_picture(name)]
    return sorted(found)
