"""Some of a source's images."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from mjp.core.errors import DataError
from mjp.data.source import Sample, Source


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
