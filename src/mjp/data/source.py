"""`Source`: what every origin of labelled images offers, and `Sample`, one of them, undecoded."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from mjp.core.errors import DataError


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
