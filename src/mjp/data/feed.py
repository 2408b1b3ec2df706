"""`Feed`: what training asks of data, however it is decoded and augmented."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import RandAugment, posterize
from torch import Tensor

from mjp.core.errors import DataError
from mjp.data.batch import Batch, Finish, ImageFormat
from mjp.data.config import AugmentSettings, DataSettings
from mjp.data.order import Batching, SampleOrder
from mjp.data.source import Source
from mjp.data.view import View

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
        self.problems: dict[str, None] = {}
        """What could not be read so far, each once; only ever filled with `skip_corrupt`."""
        self.order = SampleOrder(len(train), train.order, seed, augment.repeats)
        self.finish = finish

    @property
    def samples(self) -> int:
        """Training images in an epoch."""
        return len(self.source)

    @abstractmethod
    def prepare(self, progress: Progress, before: "Sequence[Feed]" = ()) -> None:
        """What has to be done once, before the first batch.

        Args:
            before: earlier feeds of this process; what one decoded of the same images is taken.
        """

    def same_images(self, other: "Feed") -> bool:
        """Whether another feed holds decoded images that are the same as this one's."""
        return False

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

    @property
    def num_workers(self) -> int:
        """Processes that decode, for this process."""
        return worker_count(self.settings.workers)


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


def eval_transform(augment: AugmentSettings, image_format: ImageFormat) -> Any:
    """The validation transform up to bytes: resize, central crop."""
    return View(image_format.size, augment.eval_crop, augment.interpolation).transform()
