"""`Feed`: what training asks of data, and the feed from worker processes, for data of any size."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import RandAugment, posterize
from torch import Tensor

from mjp.data.batch import Batch, Batching, Finish, ImageFormat, SampleOrder
from mjp.data.config import AugmentSettings, DataSettings
from mjp.data.decoding import Decoded, Decoder, Problems, Ticket, View, decoded, tickets
from mjp.data.source import Source

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass
class Feed(ABC):
    """Training batches by step, and validation batches, on the device.

    Args:
        batching: how a step's batch is divided; this process gets its own part.
        finish: makes a batch's inputs of augmented images and their labels.
    """

    source: Source
    val_source: Source
    settings: DataSettings
    augment: AugmentSettings
    format: ImageFormat
    batching: Batching
    finish: Finish
    seed: int
    device: torch.device

    def __post_init__(self) -> None:
        self.num_workers = worker_count(self.settings.workers)
        self.problems = Problems("--data.skip-corrupt", skip=self.settings.skip_corrupt)
        size, repeats = len(self.source), self.augment.repeats
        self.order = SampleOrder(size, self.source.order, self.seed, repeats)
        self.view = View(self.format.size, self.augment.eval_crop, self.augment.interpolation)

    @property
    def samples(self) -> int:
        """Training images in an epoch."""
        return len(self.source)

    @abstractmethod
    def prepare(self, progress: Progress) -> None:
        """What has to be done once, before the first batch."""

    @abstractmethod
    def train(self, start: int, stop: int) -> Generator[Batch, None, None]:
        """The batches of these steps, pass by pass."""

    @abstractmethod
    def validate(self) -> Iterator[dict[str, Tensor]]:
        """This process's share of the validation set, in batches of one size and as many as every
        other process gets: `images`, `labels`, and which are `counted`, for the last are filled up.
        """


def worker_count(asked: int | None) -> int:
    """Processes that decode, for this process: as many as asked, or its share of the cores."""
    if asked is not None:
        return asked
    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def available_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Which not every system has.
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def train_transform(augment: AugmentSettings, image_format: ImageFormat) -> Any:
    """timm's training transform up to bytes: crop, flip, RandAugment or colour jitter."""
    policy = None
    if augment.rand_augment:
        policy = (
            f"rand-m{augment.rand_augment:g}-mstd{augment.rand_augment_std:g}"
            f"-n{augment.rand_augment_layers}-inc1"
        )
    transform = create_transform(
        (3, *image_format.size),
        is_training=True,
        use_prefetcher=True,  # Bytes: normalising and erasing is done on the device.
        scale=augment.crop_scale,
        ratio=augment.crop_ratio,
        hflip=augment.flip,
        color_jitter=augment.color_jitter or None,
        auto_augment=policy,
        interpolation=augment.interpolation,
        mean=image_format.mean,
        std=image_format.std,
    )
    for step in transform.transforms:
        for operation in step.ops if isinstance(step, RandAugment) else ():
            if operation.name.startswith("Posterize"):
                operation.aug_fn = _posterize
    return transform


def _posterize(picture: Image.Image, bits: int, **_: Any) -> Image.Image:
    """timm's, which at its strongest asks Pillow to keep no bits; Pillow 13 then raises."""
    return posterize(picture, max(1, bits))


class WorkerFeed(Feed):
    """Batches from worker processes, copied to the device while the one before is computed."""

    def prepare(self, progress: Progress) -> None:
        """Nothing: workers start with the first batch."""

    def train(self, start: int, stop: int) -> Generator[Batch, None, None]:
        transform = train_transform(self.augment, self.format)
        decoder = Decoder(self.source, transform, self.seed, replace=True)
        passes = self.batching.passes
        for number, part in enumerate(
            self._decoded(decoder, self._tickets(start, stop)), start * passes
        ):
            step, index = divmod(number, passes)
            rows = self.batching.rows(index)
            yield Batch(self.finish(part.images, part.labels, step, rows), step, rows)

    def validate(self) -> Iterator[dict[str, Tensor]]:
        numbers, count = share(len(self.val_source), self.batching)
        places = torch.arange(len(numbers))
        asked = tickets(self.val_source, places.tolist(), numbers)
        parts = self._decoded(Decoder(self.val_source, self.view.transform(), self.seed), asked)
        for place, part in zip(places.split(self.batching.chunk), parts, strict=True):
            yield {
                "images": self.format.normalize(part.images),
                "labels": part.labels,
                "counted": (place < count).to(self.device) & part.readable,
            }

    def _decoded(self, decoder: Decoder, asked: Iterator[Ticket]) -> Iterator[Decoded]:
        chunk, workers = self.batching.chunk, self.num_workers
        return decoded(decoder, asked, chunk, workers, self.device, self.problems)

    def _tickets(self, start: int, stop: int) -> Iterator[Ticket]:
        """This process's images, pass by pass; streams are read epoch by epoch."""
        batch, size = self.batching.batch, len(self.source)
        rows = torch.cat([self.batching.rows(index) for index in range(self.batching.passes)])
        while start < stop:
            end = min(stop, max(start + 1, (start * batch // size + 1) * size // batch))
            indices = self.order.piece(start * batch, (end - start) * batch)
            chosen = (torch.arange(end - start)[:, None] * batch + rows).flatten()
            yield from tickets(self.source, (chosen + start * batch).tolist(), indices[chosen])
            start = end


def share(samples: int, batching: Batching) -> tuple[Int64[Tensor, " padded"], int]:
    """This process's share of a set: as many numbers as every other's, in whole chunks.

    The second value says how many of them count; the rest fills the last chunk up.
    """
    most = -(-samples // batching.processes)
    padded = -(-most // batching.chunk) * batching.chunk
    numbers = torch.arange(samples)[batching.rank :: batching.processes]
    filling = numbers[-1:] if len(numbers) else torch.zeros(1, dtype=torch.int64)
    return torch.cat([numbers, filling.expand(padded - len(numbers))]), len(numbers)
