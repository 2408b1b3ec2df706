"""WebDataset tars: `KEY.jpg` beside `KEY.cls`, in one shard or many.

timm's reader of such tars shuffles by worker and cannot go back to a sample, so a run that was
killed could not go on where it was. This source indexes the shards once and then reads any sample
by its place in the file. Names and labels are timm's, which a test compares.
"""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mjp.core.errors import DataError
from mjp.data.source import Sample, Source

OPEN_AT_ONCE = 64
"""Shards that a process keeps open; a set may have thousands."""

PICTURES = ("jpg", "jpeg", "png", "webp")


class TarSource(Source):
    """Pictures with a class in WebDataset shards.

    Args:
        classes: the classes of the training split; else as many as the labels need.
    """

    def __init__(self, shards: list[Path], classes: tuple[str, ...] | None = None) -> None:
        self._shards = shards
        self._handles: dict[int, int] = {}
        self._owner = os.getpid()
        places: list[tuple[int, int, int]] = []
        labels: list[int] = []
        for number, shard in enumerate(shards):
            for place, size, label in _index(shard):
                places.append((number, place, size))
                labels.append(label)
        self._places = np.asarray(places, dtype=np.int64).reshape(-1, 3)
        if classes is None:
            classes = tuple(map(str, range(max(labels, default=-1) + 1)))
        name = str(shards[0]) if len(shards) == 1 else f"{shards[0].parent} ({len(shards)} tars)"
        super().__init__(classes, np.asarray(labels), name)

    def name_of(self, index: int) -> str:
        shard, place, _ = self._places[index]
        return f"{self._shards[shard]} at byte {place}"

    def __getitem__(self, index: int) -> Sample:
        shard, place, size = map(int, self._places[index])
        if os.getpid() != self._owner:  # Open files are not shared between processes.
            self._handles, self._owner = {}, os.getpid()
        if shard not in self._handles:
            if len(self._handles) >= OPEN_AT_ONCE:
                os.close(self._handles.pop(next(iter(self._handles))))
            self._handles[shard] = os.open(self._shards[shard], os.O_RDONLY)
        content = os.pread(self._handles[shard], size, place)
        if len(content) < size:
            raise DataError("is cut off: the tar ends before the picture does")
        return Sample(content, int(self.labels[index]))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handles": {}}


def _index(shard: Path) -> Iterator[tuple[int, int, int]]:
    """Place and size of every picture of a shard, and its class."""
    pictures: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                if not member.isfile() or os.path.basename(member.name).startswith("."):
                    continue
                folder, base = os.path.split(member.name)
                stem, _, extension = base.partition(".")
                key = os.path.join(folder, stem)
                if extension.lower() in PICTURES:
                    pictures[key] = (member.offset_data, member.size)
                elif extension.lower() == "cls":
                    labels[key] = _label(tar, member, shard)
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{shard} cannot be read as an uncompressed tar: {error}") from error
    for key, (place, size) in pictures.items():
        if key not in labels:
            raise DataError(f"{shard} has a picture {key} without a class; expected {key}.cls")
        yield place, size, labels[key]


def _label(tar: tarfile.TarFile, member: tarfile.TarInfo, shard: Path) -> int:
    file = tar.extractfile(member)
    text = b"" if file is None else file.read(64)
    try:
        return int(text.decode("ascii"))
    except ValueError as error:
        raise DataError(
            f"{member.name} in {shard} holds {text!r}, not the number of a class"
        ) from error
