"""`Source`: labelled images by number; a part of one; and pictures in a folder per class."""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int64
from PIL import Image
from timm.data.readers.img_extensions import get_img_extensions
from torch import Tensor

from mjp.core.errors import DataError

LARGEST_IMAGE = 2**28
"""Bytes of the largest encoded image that is read."""

MOST_NUMBERED_CLASSES = 2**20


@dataclass(frozen=True, eq=False)
class Sample:
    """An image as it is stored, and its class.

    Args:
        content: an encoded picture, the file of one, or pixels of shape (height, width, 3).
    """

    content: bytes | Path | np.ndarray
    label: int

    def decode(self) -> Image.Image:
        """The picture in RGB; a `DataError` or an `OSError` if it cannot be read."""
        if isinstance(self.content, np.ndarray):
            return Image.fromarray(self.content)
        file = self.content if isinstance(self.content, Path) else io.BytesIO(self.content)
        try:
            with Image.open(file) as picture:
                if picture.mode != "RGB":
                    return picture.convert("RGB")
                picture.load()  # `convert` would copy it.
                return picture
        except (FileNotFoundError, PermissionError):
            raise
        except (
            OSError,  # Truncated, unknown, or no picture at all.
            SyntaxError,  # Pillow's for a broken PNG.
            ValueError,
            Image.DecompressionBombError,
        ) as error:
            if self._is_empty():
                raise DataError("is empty (0 bytes)") from error
            reason = str(error).partition("<_io")[0].strip() or type(error).__name__
            raise DataError(f"cannot be read as a picture: {reason}") from error

    def _is_empty(self) -> bool:
        if isinstance(self.content, Path):
            return self.content.stat().st_size == 0
        return len(self.content) == 0


class Source(ABC):
    """Labelled images by number, with a list of classes.

    A source is opened once and then read from many processes. Every label has been checked against
    the classes when it was opened.

    Args:
        labels: the class of every image.
        name: what to call the source in errors.
    """

    streamed = False
    """True where images are read far faster in the order of `order` than one by one."""

    def __init__(self, classes: tuple[str, ...], labels: np.ndarray, name: str) -> None:
        if not len(labels):
            raise DataError(f"{name} holds no images")
        self.classes = classes
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)
        self.name = name
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(classes)))
        if len(wrong):
            first = int(wrong[0])
            raise DataError(
                f"{self.name_of(first)} has label {self.labels[first]}, but there are "
                f"{len(classes)} classes, 0 to {len(classes) - 1} ({len(wrong)} images are so "
                "labelled); correct the labels or the list of classes"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def __getitem__(self, index: int) -> Sample:
        """One image, undecoded. What cannot be read is an OSError or a `DataError`."""

    @abstractmethod
    def name_of(self, index: int) -> str:
        """What to call an image in an error: its file, or its row."""

    def picture(self, index: int, sample: Sample | None = None) -> Image.Image:
        """One image, decoded; a `DataError` that names it if it cannot be read.

        Args:
            sample: the image, where it has been read already.
        """
        try:
            return (self[index] if sample is None else sample).decode()
        except (DataError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{self.name_of(index)} {reason}") from error

    def order(self, generator: torch.Generator) -> Int64[Tensor, " samples"]:
        """A random order of all images in which they can be read fast."""
        return torch.randperm(len(self), generator=generator)

    def stream(self, indices: Int64[Tensor, " samples"]) -> Iterator[Sample]:
        """These images, one after another; fastest in pieces of `order`."""
        return (self[int(index)] for index in indices)


def numbered_classes(labels: Sequence[int] | np.ndarray, name: str) -> tuple[str, ...]:
    """The numbers up to the largest label, as the names of classes that have none."""
    count = int(np.max(labels, initial=-1)) + 1
    if count > MOST_NUMBERED_CLASSES:
        raise DataError(
            f"{name} has label {count - 1} and no names of classes; without names there are at "
            f"most {MOST_NUMBERED_CLASSES:,} classes"
        )
    return tuple(map(str, range(count)))


class Subset(Source):
    """The images of a source with these numbers, in this order."""

    def __init__(self, source: Source, indices: np.ndarray, name: str) -> None:
        self._source = source
        self._indices = np.asarray(indices, dtype=np.int64)
        self.streamed = source.streamed
        super().__init__(source.classes, source.labels[self._indices], name)

    def __getitem__(self, index: int) -> Sample:
        return self._source[int(self._indices[index])]

    def name_of(self, index: int) -> str:
        return self._source.name_of(int(self._indices[index]))

    def stream(self, indices: Int64[Tensor, " samples"]) -> Iterator[Sample]:
        return self._source.stream(torch.from_numpy(self._indices)[indices])


def drawn(source: Source, count: int | None, generator: torch.Generator) -> Source:
    """So many images at random, in the source's order; all of them for None."""
    if count is None or count >= len(source):
        return source
    chosen = torch.randperm(len(source), generator=generator)[:count].sort().values
    return Subset(source, chosen.numpy(), f"{source.name} ({count} of {len(source)} images)")


def of_classes(
    source: Source, classes: tuple[str, ...], *, in_order: tuple[str, ...] = ()
) -> Source:
    """The images of these classes alone.

    Args:
        in_order: what a source's classes are called if it has as many but calls them otherwise.
    """
    names = source.classes
    if not set(names) & set(classes) and len(names) == len(in_order):
        numbered = set(names) == set(map(str, range(len(names))))  # As folders: 0, 1, 10, 11, 2, …
        names = tuple(in_order[int(name)] for name in names) if numbered else in_order
    wanted = [number for number, name in enumerate(names) if name in set(classes)]
    if not wanted:
        raise DataError(
            f"{source.name} has none of the {len(classes)} classes {classes[0]} … {classes[-1]}; "
            "name its classes by their WordNet numbers"
        )
    chosen = np.flatnonzero(np.isin(source.labels, wanted))
    return Subset(source, chosen, f"{source.name} ({len(wanted)} classes)")


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
