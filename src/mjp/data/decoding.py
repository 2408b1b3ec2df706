"""Pictures decoded by processes: what a model is shown of them, and the blocks of evaluation."""

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from PIL import Image
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, default_collate

from mjp.core.errors import DataError
from mjp.core.seeds import seed_for
from mjp.core.team import Team
from mjp.data.source import Sample, Source


@dataclass(frozen=True)
class View:
    """Resize and crop: what of a picture a model sees.

    Args:
        size: height and width in pixels.
        crop: share of the resized picture's side that the crop keeps.
        mode: timm's way of cropping: center, squash or border.
    """

    size: tuple[int, int]
    crop: float = 1.0
    interpolation: str = "bicubic"
    mode: str = "center"

    def transform(self) -> Callable[[Image.Image], Any]:
        """timm's evaluation transform, up to bytes."""
        transform: Callable[[Image.Image], Any] = create_transform(
            (3, *self.size),
            is_training=False,
            use_prefetcher=True,
            interpolation=self.interpolation,
            crop_pct=self.crop,
            crop_mode=self.mode,
        )
        return transform


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
    samples = source.stream(indices) if source.streamed else repeat(None, len(indices))
    for place, index, sample in zip(places, indices.tolist(), samples, strict=True):
        yield Ticket(place, index, sample)


class Decoded(NamedTuple):
    """Decoded images as the transform left them, labels, and what could not be read."""

    images: Any
    labels: Int64[Tensor, " batch"]
    readable: Bool[Tensor, " batch"]
    problems: list[str]


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


def joined_pixels(images: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Images of any sizes, (height, width, 3) each, as (pixels, 3); and their sizes."""
    sizes = torch.tensor([image.shape[:2] for image in images])
    return torch.cat([image.reshape(-1, 3) for image in images]), sizes


def decoded(
    decoder: Decoder,
    asked: Iterator[Ticket],
    size: int,
    workers: int,
    device: torch.device,
    join: Callable[[list[Any]], Any] = default_collate,
) -> Iterator[Decoded]:
    """These images, so many at a time, decoded by processes in their order, on the device.

    Args:
        join: makes one of the images of a batch.
    """
    loading: DataLoader[Any] = DataLoader(
        decoder,
        batch_sampler=BatchSampler(asked, size, drop_last=False),  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=partial(_collate, join),
        worker_init_fn=_leave_signals_to_the_parent if workers else None,
        pin_memory=device.type == "cuda",
        prefetch_factor=3 if workers else None,
    )
    # Workers are started by this; until they ignore the signals themselves, they must not get any.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        parts = iter(loading)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _moved(parts, device) if device.type == "cuda" else parts


def _collate(
    join: Callable[[list[Any]], Any], parts: list[tuple[Any, int, bool, list[str]]]
) -> Decoded:
    images, labels, readable, problems = zip(*parts, strict=True)
    unread = [problem for some in problems for problem in some]
    return Decoded(join(list(images)), torch.tensor(labels), torch.tensor(readable), unread)


def _moved(parts: Iterator[Decoded], device: torch.device) -> Iterator[Decoded]:
    """The batches on the GPU; each is copied beside the work on the one before."""
    stream = torch.cuda.Stream(device)
    waiting: Decoded | None = None
    for part in parts:
        with torch.cuda.stream(stream):
            images, labels = (
                tensor.to(device, non_blocking=True) for tensor in (part.images, part.labels)
            )
        if waiting is not None:
            yield waiting
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        images.record_stream(current)
        labels.record_stream(current)
        waiting = part._replace(images=images, labels=labels)
    if waiting is not None:
        yield waiting


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _leave_signals_to_the_parent(_: int) -> None:
    # Ctrl-C reaches every process of the terminal, and torchrun and schedulers send SIGTERM to the
    # whole group; the parent saves its work and ends the others.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    torch.set_num_threads(1)


BLOCK = 256
"""Images in a block. Fixed, because what is drawn for an image is drawn with its block, and must
not depend on how many are computed at a time or on how many processes share the work."""

UNIT = 32
"""Images that a worker decodes at a time; a block is of several such units."""


@dataclass(frozen=True, eq=False)
class Block:
    """Images that follow each other in their source, on the device.

    Args:
        number: which block of the source it is, from 0.
        indices: their numbers in the source; on the host.
        images: levels; of each image one version or several.
        readable: False where a picture could not be read and black stands in for it.
    """

    number: int
    indices: Int64[Tensor, " batch"]
    images: UInt8[Tensor, "batch *versions 3 height width"]
    labels: Int64[Tensor, " batch"]
    readable: Bool[Tensor, " batch"]


class Reader:
    """This process's blocks of a source, decoded by workers ahead of their use.

    Args:
        decoder: decodes one picture into all that is wanted of it.
        skip_corrupt: go on after a picture that cannot be read, rather than stop.
    """

    def __init__(
        self,
        source: Source,
        decoder: Decoder,
        team: Team,
        workers: int,
        *,
        skip_corrupt: bool = False,
    ) -> None:
        self.source = source
        self._decoder = decoder
        self._team = team
        self._workers = workers
        self._skip_corrupt = skip_corrupt
        self.problems: dict[str, None] = {}
        """What could not be read so far, each once."""

    @property
    def own_images(self) -> int:
        """How many images this process gets."""
        return sum(len(self._indices(number)) for number in self._numbers)

    @property
    def _numbers(self) -> list[int]:
        """The blocks of this process."""
        blocks = -(-len(self.source) // BLOCK)
        return list(range(blocks))[self._team.rank :: self._team.size]

    def __iter__(self) -> Iterator[Block]:
        numbers = self._numbers
        if not numbers:
            return
        everything = torch.cat([self._indices(number) for number in numbers])
        asked = tickets(self.source, everything.tolist(), everything)
        device = self._team.device
        parts = decoded(self._decoder, asked, UNIT, self._workers, device)
        for number in numbers:
            indices = self._indices(number)
            units = [next(parts) for _ in range(-(-len(indices) // UNIT))]
            self._report([problem for unit in units for problem in unit.problems])
            readable = torch.cat([unit.readable for unit in units])
            if device.type == "cuda":
                readable = readable.pin_memory().to(device, non_blocking=True)
            images = torch.cat([unit.images for unit in units])
            labels = torch.cat([unit.labels for unit in units])
            yield Block(number, indices, images, labels, readable)

    def _indices(self, number: int) -> Int64[Tensor, " batch"]:
        return torch.arange(number * BLOCK, min(len(self.source), (number + 1) * BLOCK))

    def _report(self, problems: list[str]) -> None:
        if problems and not self._skip_corrupt:
            raise DataError(
                f"{problems[0]}; mend or remove it, or leave such images out with --skip-corrupt"
            )
        self.problems |= dict.fromkeys(problems)


def reader(
    source: Source, view: View, team: Team, workers: int, *, skip_corrupt: bool = False
) -> Reader:
    """The images of a source as a model is to see them."""
    decoder = Decoder(source, view.transform(), 0, replace=False)
    return Reader(source, decoder, team, workers, skip_corrupt=skip_corrupt)
