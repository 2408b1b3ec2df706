"""Decodes images in worker processes: those asked for, in order, with what could not be read."""

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from mjp.core.errors import DataError
from mjp.core.seeds import seed_for
from mjp.data.source import Sample, Source

MAX_NEIGHBOURS = 50
"""How many images in a row may be unreadable before even skipping gives up."""


@dataclass(frozen=True, eq=False)
class Ticket:
    """One image to decode.

    Args:
        place: its place in the stream, which seeds its augmentation.
        sample: the image itself, where the source is read in order by the main process.
    """

    place: int
    index: int
    sample: Sample | None = None


def tickets(
    source: Source, places: Sequence[int], indices: Int64[Tensor, " samples"]
) -> Iterator[Ticket]:
    """Tickets for these images, with the images in them where the source streams."""
    if not source.streamed:
        yield from (Ticket(p, i) for p, i in zip(places, indices.tolist(), strict=True))
        return
    for place, index, sample in zip(places, indices.tolist(), source.stream(indices), strict=True):
        yield Ticket(place, index, sample)


@dataclass(frozen=True, eq=False)
class Decoded:
    """Decoded images as the transform left them, labels, and what could not be read."""

    images: Any
    labels: Int64[Tensor, " batch"]
    readable: list[bool]
    problems: list[str]

    def pin_memory(self) -> "Decoded":
        """torch calls this where copies to a GPU are to run beside its work."""
        return Decoded(
            self.images.pin_memory(), self.labels.pin_memory(), self.readable, self.problems
        )


class Decoder(Dataset[Any]):
    """Decodes and transforms single images; an unreadable one is reported, never hidden.

    Args:
        transform: from a picture to a tensor; what it draws comes from the seed and the place.
        replace: take the next readable image in place of an unreadable one (training), rather than
            a black one that does not count (validation).
    """

    def __init__(
        self, source: Source, transform: Callable[[Image.Image], Any], seed: int, *, replace: bool
    ) -> None:
        self._source = source
        self._transform = transform
        self._seed = seed
        self._replace = replace

    def __getitem__(self, ticket: Ticket) -> tuple[Any, int, bool, list[str]]:
        problems: list[str] = []
        for offset in range(MAX_NEIGHBOURS):
            index = (ticket.index + offset) % len(self._source)
            label = int(self._source.labels[index])
            try:
                picture = self._source.picture(index, ticket.sample if offset == 0 else None)
            except DataError as error:
                problems.append(str(error))
                if self._replace:
                    continue
                blank = Image.new("RGB", (64, 64))
                return self._seeded(blank, ticket.place), label, False, problems
            return self._seeded(picture, ticket.place), label, True, problems
        raise DataError(
            f"{MAX_NEIGHBOURS} images in a row cannot be read; the first: {problems[0]}"
        )

    def _seeded(self, picture: Image.Image, place: int) -> Any:
        seed = seed_for(self._seed, "augment", step=place)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        return self._transform(picture)


def collate(parts: list[tuple[Any, int, bool, list[str]]]) -> Decoded:
    """Images of one size as one tensor."""
    images, labels, readable, problems = zip(*parts, strict=True)
    return Decoded(
        default_collate(list(images)),
        torch.tensor(labels),
        list(readable),
        [problem for found in problems for problem in found],
    )


def collate_list(parts: list[tuple[Any, int, bool, list[str]]]) -> Decoded:
    """Images of any sizes, (height, width, 3) each, one after another as (pixels, 3)."""
    images, labels, readable, problems = zip(*parts, strict=True)
    sizes = torch.tensor([image.shape[:2] for image in images])
    pixels = torch.cat([image.reshape(-1, 3) for image in images])
    return Decoded(
        (pixels, sizes),
        torch.tensor(labels),
        list(readable),
        [problem for found in problems for problem in found],
    )


def loader(
    decoder: Decoder,
    batches: Iterator[list[Ticket]],
    workers: int,
    collate_with: Callable[[list[Any]], Decoded],
    *,
    pin: bool = False,
) -> Iterator[Decoded]:
    """The batches, decoded by so many processes, in their order."""
    loading: DataLoader[Any] = DataLoader(
        decoder,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate_with,
        worker_init_fn=_leave_signals_to_the_parent if workers else None,
        pin_memory=pin,
        prefetch_factor=3 if workers else None,
    )
    # Workers are started by this; until they ignore the signals themselves, they must not get any.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return iter(loading)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _leave_signals_to_the_parent(_: int) -> None:
    # Ctrl-C reaches every process of the terminal, and torchrun and schedulers send SIGTERM to the
    # whole group; the parent saves its work and ends the others.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    torch.set_num_threads(1)
