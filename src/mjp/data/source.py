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
        content = self.content
        if isinstance(content, np.ndarray):
            return Image.fromarray(content)
        try:
            with Image.open(
                io.BytesIO(content) if isinstance(content, bytes) else content
            ) as picture:
                if picture.mode != "RGB":
                    return picture.convert("RGB")
                picture.load()  # `convert` would copy it.
                return picture
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            if not (len(content) if isinstance(content, bytes) else content.stat().st_size):
                raise DataError("is empty (0 bytes)") from error
            reason = str(error).partition("<_io")[0].strip() or type(error).__name__
            raise DataError(f"cannot be read as a picture: {reason}") from error


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
        if len(wrong := np.flatnonzero((self.labels < 0) | (self.labels >= len(classes)))):
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


def settled_classes(
    names: tuple[str, ...] | None,
    classes: tuple[str, ...] | None,
    labels: Sequence[int] | np.ndarray,
    name: str,
) -> tuple[str, ...]:
    """What a data set's classes are called: as it says, or as training does, or by numbers.

    Args:
        names: what the data set says; None where it says nothing.
        classes: those of the training split, which a validation split must keep to.
    """
    if names and classes and names != classes:
        raise DataError(f"{name} lists other classes than the training split does")
    if names or classes:
        return names or classes or ()
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
        classes = found if classes is None else classes
        if strange := sorted(set(found) - set(classes)):
            raise DataError(
                f"{root} has classes that training does not know: {', '.join(strange[:5])}"
            )
        files: list[str] = []
        labels: list[int] = []
        for name in found:
            pictures = sorted(walk_pictures(root / name))
            if not pictures:
                raise DataError(
                    f"class folder {root / name} holds no pictures; remove it or fill it"
                )
            files += pictures
            labels += [classes.index(name)] * len(pictures)
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
    return [root.parent / name for name in sorted(walk_pictures(root))]


def walk_pictures(folder: Path) -> Iterator[str]:
    """Paths of pictures in the folder and below, relative to the folder's parent."""
    for directory, _, names in os.walk(folder, followlinks=True):
        prefix = os.path.relpath(directory, folder.parent)
        for name in names:
            if name[0] != "." and os.path.splitext(name)[1].lower() in _EXTENSIONS:
                yield os.path.join(prefix, name)


_EXTENSIONS = {*get_img_extensions(), ".webp"}


def _subfolders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(e.name for e in os.scandir(root) if e.is_dir() and e.name[0] != "."))
