"""`Feed`: what training asks of data, and the feed from worker processes, for data of any size."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Int64
from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import RandAugment, posterize
from torch import Tensor

from mjp.core.errors import DataError
from mjp.data.batch import Batch, Batching, Finish, ImageFormat, SampleOrder
from mjp.data.config import AugmentSettings, DataSettings
from mjp.data.decoding import Decoder, Ticket, View, decoded, tickets
from mjp.data.source import Source

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


class Feed(ABC):
    """Training batches by step, and validation batches, on the device.

    Args:
        batching: how a step's batch is divided; this process gets its own part.
        finish: makes a batch's inputs of augmented images and their labels.
    """

    def __init__(
        self,
        train: Source,
        val: Source,
        settings: DataSettings,
        augment: AugmentSettings,
        image_format: ImageFormat,
        batching: Batching,
        finish: Finish,
        seed: int,
        device: torch.device,
    ) -> None:
        self.source = train
        self.val_source = val
        self.settings = settings
        self.augment = augment
        self.format = image_format
        self.batching = batching
        self.seed = seed
        self.device = device
        self.num_workers = worker_count(settings.workers)
        self.problems: dict[str, None] = {}
        """What could not be read so far, each once; only ever filled with `skip_corrupt`."""
        self.order = SampleOrder(len(train), train.order, seed, augment.repeats)
        self.finish = finish
        self.view = View(image_format.size, augment.eval_crop, augment.interpolation)

    @property
    def samples(self) -> int:
        """Training images in an epoch."""
        return len(self.source)

    @abstractmethod
    def prepare(self, progress: Progress) -> None:
        """What has to be done once, before the first batch."""

    @abstractmethod
    def train(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of these steps, pass by pass."""

    @abstractmethod
    def validate(self) -> Iterator[dict[str, Tensor]]:
        """This process's share of the validation set, in batches of one size and as many as every
        other process gets: `images`, `labels`, and which are `counted`, for the last are filled up.
        """

    def report(self, problems: list[str]) -> None:
        """Stops at an unreadable image, or notes it where they are to be skipped."""
        if problems and not self.settings.skip_corrupt:
            raise DataError(
                f"{problems[0]}; mend or remove it, or leave such images out with "
                "--data.skip-corrupt"
            )
        self.problems |= dict.fromkeys(problems)


def worker_count(asked: int | None) -> int:
    """Processes that decode, for this process: as many as asked, or its share of the cores."""
    if asked is not None:
        return asked
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, available_cores() // here)


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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

    def train(self, start: int, stop: int) -> Iterator[Batch]:
        decoder = Decoder(
            self.source, train_transform(self.augment, self.format), self.seed, replace=True
        )
        asked = self._tickets(start, stop)
        passes = self.batching.passes
        parts = decoded(decoder, asked, self.batching.chunk, self.num_workers, self.device)
        for number, part in enumerate(parts, start * passes):
            step, index = divmod(number, passes)
            self.report(part.problems)
            rows = self.batching.rows(index)
            yield Batch(self.finish(part.images, part.labels, step, rows), step, rows)

    def validate(self) -> Iterator[dict[str, Tensor]]:
        decoder = Decoder(self.val_source, self.view.transform(), self.seed, replace=False)
        numbers, count = share(len(self.val_source), self.batching)
        asked = tickets(self.val_source, range(len(numbers)), numbers)
        places = torch.arange(len(numbers)).split(self.batching.chunk)
        parts = decoded(decoder, asked, self.batching.chunk, self.num_workers, self.device)
        for place, part in zip(places, parts, strict=True):
            self.report(part.problems)
            yield {
                "images": self.format.normalize(part.images),
                "labels": part.labels,
                "counted": ((place < count) & part.readable).to(self.device),
            }

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
