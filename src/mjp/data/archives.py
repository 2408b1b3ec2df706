"""Images in archives: Parquet tables, WebDataset tars, data sets on the Hugging Face hub."""

import json
import math
import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Int64
from torch import Tensor

from mjp.core.errors import DataError
from mjp.data.source import LARGEST_IMAGE, Sample, Source, settled_classes

WINDOW_BYTES = 512 * 2**20
"""How much encoded data is held at a time: row groups among which rows are shuffled."""

MOST_SHRUNK = 8
"""How many times smaller in the file a large row group of images may be."""


class ParquetSource(Source):
    """Rows of one or many files with columns `image` (bytes, path) and `label`.

    Files are read by row groups, each as one Arrow table; no row becomes a Python object before it
    is asked for. A random order visits the row groups at random and mixes the rows of as many as
    fit into a window of memory, so that an epoch reads every group once.

    Args:
        readers: threads that read row groups ahead of their use.
    """

    streamed = True

    def __init__(
        self,
        files: list[Path],
        classes: tuple[str, ...] | None = None,
        readers: int = 2,
    ) -> None:
        self._files = files
        self._readers = readers
        groups: list[tuple[int, int, int, int]] = []  # File, row group, rows, bytes.
        labels: list[np.ndarray] = []
        named: tuple[str, ...] | None = None
        for number, path in enumerate(files):
            with _opened(path) as table:
                _check_columns(table.schema_arrow, path)
                named = named or _class_names(table.schema_arrow, path)
                for group in range(table.num_row_groups):
                    metadata = table.metadata.row_group(group)
                    _check_images(metadata, f"{path}: row group {group}")
                    if rows := metadata.num_rows:
                        groups.append((number, group, rows, metadata.total_byte_size))
                with _reading(f"{path}: column 'label' cannot be read"):
                    column = table.read(columns=["label"]).column("label").cast(pa.int64())
                labels.append(column.fill_null(-1).to_numpy())
        self._groups = np.asarray(groups, dtype=np.int64).reshape(-1, 4)
        self._starts = np.concatenate(([0], self._groups[:, 2].cumsum()))
        self._sizes = self._groups[:, 3]
        self._recent: tuple[int, pa.ChunkedArray | None] = (-1, None)
        name = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
        joined = np.concatenate(labels)
        super().__init__(settled_classes(named, classes, joined, str(files[0])), joined, name)

    def _group_of(self, index: Any) -> Any:
        return np.searchsorted(self._starts, index, side="right") - 1

    def name_of(self, index: int) -> str:
        file, number = self._groups[self._group_of(index), :2]
        first = np.searchsorted(self._groups[:, 0], file)
        row = index - int(self._starts[first])
        return f"{self._files[file]} row {row} (row group {number})"

    def __getitem__(self, index: int) -> Sample:
        group = int(self._group_of(index))
        if group != self._recent[0]:
            self._recent = (group, self._read(group))
        return self._sample(index, group, self._recent[1])

    def order(self, generator: torch.Generator) -> Int64[Tensor, " samples"]:
        """Row groups at random, rows at random among the groups of a window."""
        windows: list[list[Tensor]] = []
        held = math.inf
        for group in torch.randperm(len(self._sizes), generator=generator).tolist():
            if held + self._sizes[group] > WINDOW_BYTES:
                windows.append([])
                held = 0
            windows[-1].append(torch.arange(self._starts[group], self._starts[group + 1]))
            held += int(self._sizes[group])
        pieces = map(torch.cat, windows)
        return torch.cat([rows[torch.randperm(len(rows), generator=generator)] for rows in pieces])

    def stream(self, indices: Int64[Tensor, " samples"]) -> Iterator[Sample]:
        """The rows in this order; each row group is read before its first row and let go of after
        its last, while others are read ahead by threads of their own."""
        groups = self._group_of(indices.numpy())
        last_use = {int(group): use for use, group in enumerate(groups)}
        first_use = list(dict.fromkeys(groups.tolist()))
        held: dict[int, Future[pa.ChunkedArray]] = {}
        pool = ThreadPoolExecutor(self._readers, thread_name_prefix="parquet")
        try:
            upcoming = iter(first_use)
            for use, (index, group) in enumerate(
                zip(indices.tolist(), groups.tolist(), strict=True)
            ):
                while group not in held or self._room(held):
                    following = next(upcoming, None)
                    if following is None:
                        break
                    held[following] = pool.submit(self._read, following)
                yield self._sample(index, group, held[group].result())
                if last_use[group] == use:
                    del held[group]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _room(self, held: dict[int, Any]) -> bool:
        """Whether one more row group may be read ahead."""
        unread = sum(not future.done() for future in held.values())
        size = sum(int(self._sizes[group]) for group in held)
        return unread < self._readers and size < 1.25 * WINDOW_BYTES

    def _read(self, group: int) -> pa.ChunkedArray:
        file, number = self._groups[group, :2]
        path = self._files[file]
        with _reading(f"{path}: row group {number} cannot be read"), _opened(path) as table:
            return table.read_row_group(int(number), columns=["image"]).column("image")

    def _sample(self, index: int, group: int, column: pa.ChunkedArray) -> Sample:
        image = column[index - int(self._starts[group])]
        content = image["bytes"].as_py() if image.is_valid else None
        return Sample(content or b"", int(self.labels[index]))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_recent": (-1, None)}


def _class_names(schema: pa.Schema, path: Path) -> tuple[str, ...] | None:
    """The list of classes in the hub's metadata of a table; None without one."""
    try:
        content = json.loads((schema.metadata or {})[b"huggingface"])
        names = content["info"]["features"]["label"]["names"]
        return tuple(str(name) for name in names)
    except (KeyError, TypeError, ValueError):
        return None
    except RecursionError as error:
        raise DataError(f"{path} has metadata 'huggingface' of too many levels") from error


@contextmanager
def _reading(problem: str) -> Iterator[None]:
    """Says in these words what Arrow cannot do."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{problem}: {error}") from error


def _opened(path: Path) -> pq.ParquetFile:
    with _reading(f"{path} cannot be read as Parquet"):
        return pq.ParquetFile(path, memory_map=True)


def _check_columns(schema: pa.Schema, path: Path) -> None:
    names = schema.names
    for wanted in ("image", "label"):
        if wanted not in names:
            raise DataError(f"{path} has no column {wanted!r}; it has {', '.join(names)}")
    kind = schema.field("image").type
    place = kind.get_field_index("bytes") if pa.types.is_struct(kind) else -1
    content = kind.field(place).type if place >= 0 else None
    if content not in (pa.binary(), pa.large_binary(), pa.binary_view()):
        raise DataError(f"column 'image' of {path} is {kind}; expected struct<bytes, path>")
    if not pa.types.is_integer(kind := schema.field("label").type):
        raise DataError(f"column 'label' of {path} is {kind}; expected whole numbers")


def _check_images(group: Any, name: str) -> None:
    """Raises where a row group's images would take far more memory than their file suggests.

    Encoded images are compressed already: what is much smaller in the file is not images, and it
    is decoded as a whole.
    """
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema.partition(".")[0] != "image":
            continue
        size = column.total_uncompressed_size
        shrunk = size > MOST_SHRUNK * column.total_compressed_size
        if size > LARGEST_IMAGE and (shrunk or size > LARGEST_IMAGE * group.num_rows):
            raise DataError(
                f"{name} holds {size / 2**20:,.0f} MiB of images in {group.num_rows} rows and "
                f"{column.total_compressed_size / 2**20:,.1f} MiB of the file; encoded images do "
                f"not shrink so, and one has at most {LARGEST_IMAGE / 2**20:.0f} MiB"
            )


PICTURES = ("jpg", "jpeg", "png", "webp")


class TarSource(Source):
    """Pictures with a class in WebDataset shards.

    Args:
        classes: the classes of the training split; else as many as the labels need.
    """

    def __init__(self, shards: list[Path], classes: tuple[str, ...] | None = None) -> None:
        self._shards = shards
        places: list[tuple[int, int, int]] = []
        labels: list[int] = []
        for number, shard in enumerate(shards):
            for place, size, label in _index(shard):
                places.append((number, place, size))
                labels.append(label)
        self._places = np.asarray(places, dtype=np.int64).reshape(-1, 3)
        classes = settled_classes(None, classes, labels, str(shards[0]))
        name = str(shards[0]) if len(shards) == 1 else f"{shards[0].parent} ({len(shards)} tars)"
        super().__init__(classes, np.asarray(labels), name)

    def name_of(self, index: int) -> str:
        shard, place, _ = self._places[index]
        return f"{self._shards[shard]} at byte {place}"

    def __getitem__(self, index: int) -> Sample:
        shard, place, size = map(int, self._places[index])
        with open(self._shards[shard], "rb", buffering=0) as file:
            content = os.pread(file.fileno(), size, place)
        if len(content) < size:
            raise DataError("is cut off: the tar ends before the picture does")
        return Sample(content, int(self.labels[index]))


def _index(shard: Path) -> Iterator[tuple[int, int, int]]:
    """Place and size of every picture of a shard, and its class."""
    pictures: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        length = shard.stat().st_size
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                if not 0 <= member.size <= length:
                    raise tarfile.TarError(f"{member.name!r} has a size of {member.size}")
                if not member.isfile() or os.path.basename(member.name).startswith("."):
                    continue
                folder, base = os.path.split(member.name)
                stem, _, extension = base.partition(".")
                key = os.path.join(folder, stem)
                if extension.lower() in PICTURES:
                    pictures[key] = (member.offset_data, min(member.size, LARGEST_IMAGE))
                elif extension.lower() == "cls":
                    labels[key] = _label(tar, member, shard)
    except DataError:
        raise
    except (
        tarfile.TarError,
        OSError,
        ValueError,  # A size that is no number, or that no file can have.
        OverflowError,
        MemoryError,
        RecursionError,  # Headers of headers.
    ) as error:
        raise DataError(f"{shard} cannot be read as an uncompressed tar: {error}") from error
    for key, (place, size) in pictures.items():
        if key not in labels:
            raise DataError(f"{shard} has a picture {key} without a class; expected {key}.cls")
        yield place, size, labels[key]


def _label(tar: tarfile.TarFile, member: tarfile.TarInfo, shard: Path) -> int:
    file = tar.extractfile(member)
    text = b"" if file is None else file.read(64)
    try:
        return int(np.int64(int(text.decode("ascii"))))
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{member.name} in {shard} holds {text!r}, not the number of a class"
        ) from error


class HubSource(Source):
    """timm's reader of a hub data set with columns `image` and `label`."""

    def __init__(self, name: str, split: str, classes: tuple[str, ...] | None = None) -> None:
        from timm.data.readers.reader_hfds import ReaderHfds  # Needs the extra `hub`.

        self._split = split
        try:
            self._reader: Any = ReaderHfds(name, split=split)
            labels = np.asarray(self._reader.dataset["label"])
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise DataError(
                f"data set {name!r}, split {split!r}, cannot be had: {error}"
            ) from error
        by_number = {number: text for text, number in self._reader.class_to_idx.items()}
        names = tuple(by_number[number] for number in sorted(by_number))
        classes = settled_classes(names, classes, labels, f"split {split!r} of {name!r}")
        super().__init__(classes, labels, f"{name} ({split})")

    def name_of(self, index: int) -> str:
        return f"{self.name} row {index}"

    def __getitem__(self, index: int) -> Sample:
        file, label = self._reader[index]
        with file:
            return Sample(file.read(), int(label))
