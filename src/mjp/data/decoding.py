"""Pictures decoded by processes: what a model is shown of them, and the blocks of evaluation."""

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
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
        return create_transform(
            (3, *self.size),
            is_training=False,
            use_prefetcher=True,
            interpolation=self.interpolation,
            crop_pct=self.crop,
            crop_mode=self.mode,
        )


MAX_NEIGHBOURS = 50
"""How many images in a row may be unreadable before even skipping gives up."""


class Ticket(NamedTuple):
    """One image to decode.

    Args:
        place: its place in the stream, which seeds its augmentation.
        number: which image of the source it is.
        sample: the image itself, where the source is read in order by the main process.
    """

    place: int
    number: int
    sample: Sample | None


def tickets(
    source: Source, places: Sequence[int], indices: Int64[Tensor, " samples"]
) -> Iterator[Ticket]:
    """Tickets for these images, with the images in them where the source streams."""
    samples = source.stream(indices) if source.streamed else repeat(None, len(indices))
    return map(Ticket, places, indices.tolist(), samples)


class Problems(dict[str, None]):
    """What could not be read so far, each once; the first is an error without the option to skip.

    Args:
        option: of the command line, that leaves unreadable images out.
    """

    def __init__(self, option: str, *, skip: bool) -> None:
        super().__init__()
        self._option = option
        self._skip = skip

    def note(self, problems: list[str]) -> None:
        """Stops at an unreadable image, or notes it where they are to be skipped."""
        if problems and not self._skip:
            raise DataError(
                f"{problems[0]}; mend or remove it, or leave such images out with {self._option}"
            )
        self.update(dict.fromkeys(problems))


class Decoded(NamedTuple):
    """Decoded images as the transform left them, labels, and which could be read."""

    images: Any
    labels: Int64[Tensor, " batch"]
    readable: Bool[Tensor, " batch"]


@dataclass
class Decoder(Dataset[Any]):
    """Decodes and transforms single images; an unreadable one is reported, never hidden.

    Args:
        transform: of a picture; what it draws comes from the seed and the place.
        replace: take the next readable image in place of an unreadable one (training), rather than
            a black one that does not count (validation).
    """

    source: Source
    transform: Callable[[Image.Image], Any]
    seed: int = 0
    replace: bool = False

    def __getitem__(self, ticket: Ticket) -> tuple[Any, int, bool, list[str]]:
        problems: list[str] = []
        for offset in range(MAX_NEIGHBOURS if self.replace else 1):
            index = (ticket.number + offset) % len(self.source)
            try:
                picture = self.source.picture(index, None if offset else ticket.sample)
            except DataError as error:
                problems.append(str(error))
            else:
                return self.shown(picture, ticket.place), self._label(index), True, problems
        if self.replace:
            raise DataError(
                f"{MAX_NEIGHBOURS} images in a row cannot be read; the first: {problems[0]}"
            )
        black = self.shown(Image.new("RGB", (64, 64)), ticket.place)
        return black, self._label(ticket.number), False, problems

    def _label(self, index: int) -> int:
        return int(self.source.labels[index])

    def shown(self, picture: Image.Image, place: int) -> Any:
        """The transformed picture; what is random in it follows from the seed and the place."""
        seed = seed_for(self.seed, "augment", step=place)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        return self.transform(picture)


def decoded(
    decoder: Decoder,
    asked: Iterator[Ticket],
    size: int,
    workers: int,
    device: torch.device,
    problems: Problems,
) -> Iterator[Decoded]:
    """These images, so many at a time, decoded by processes in their order, on the device."""
    loading: DataLoader[Any] = DataLoader(
        decoder,
        batch_sampler=BatchSampler(asked, size, drop_last=False),  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=_collate,
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
    return _delivered(parts, device, problems)


def _collate(parts: list[tuple[Any, int, bool, list[str]]]) -> tuple[Decoded, list[str]]:
    images, labels, readable, problems = zip(*parts, strict=True)
    batch = Decoded(default_collate(list(images)), torch.tensor(labels), torch.tensor(readable))
    return batch, [problem for some in problems for problem in some]


def _delivered(
    parts: Iterator[tuple[Decoded, list[str]]], device: torch.device, problems: Problems
) -> Iterator[Decoded]:
    """The batches on the device; on a GPU, each is copied beside the work on the one before."""
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    waiting: Decoded | None = None
    for part, unread in parts:
        problems.note(unread)
        if stream is None:
            yield part
            continue
        with torch.cuda.stream(stream):
            copy = Decoded(*(tensor.to(device, non_blocking=True) for tensor in part))
        if waiting is not None:
            yield waiting
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        for tensor in copy:
            tensor.record_stream(current)
        waiting = copy
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
        self, decoder: Decoder, team: Team, workers: int, *, skip_corrupt: bool = False
    ) -> None:
        self._decoder = decoder
        self._team = team
        self._workers = workers
        self.problems = Problems("--skip-corrupt", skip=skip_corrupt)
        self._blocks = torch.arange(len(decoder.source)).split(BLOCK)[team.rank :: team.size]

    @property
    def num_images(self) -> int:
        """How many images this process gets."""
        return sum(map(len, self._blocks))

    def __iter__(self) -> Iterator[Block]:
        if not self._blocks:
            return
        everything = torch.cat(self._blocks)
        asked = tickets(self._decoder.source, everything.tolist(), everything)
        device = self._team.device
        parts = decoded(self._decoder, asked, UNIT, self._workers, device, self.problems)
        for indices in self._blocks:
            units = islice(parts, -(-len(indices) // UNIT))
            images, labels, readable = map(torch.cat, zip(*units, strict=True))
            yield Block(int(indices[0]) // BLOCK, indices, images, labels, readable)
