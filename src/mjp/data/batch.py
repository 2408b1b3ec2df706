"""Which images make a batch: the stream of epochs, its pieces, and how a step is divided."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from timm.data import Mixup
from timm.data.mixup import mixup_target
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.core.seeds import generator_for, seed_for
from mjp.data.boxes import Boxes, erase_boxes, on_device
from mjp.data.config import AugmentSettings


@dataclass
class SampleOrder:
    """The stream of image numbers.

    Args:
        size: images of an epoch.
        permute: gives a random order of them.
        repeats: copies of an image that follow one another (repeated augmentation); an epoch stays
            as long as the set, so it then visits so many times fewer images.
    """

    size: int
    permute: Callable[[torch.Generator], Int64[Tensor, " samples"]]
    seed: int
    repeats: int = 1

    def __post_init__(self) -> None:
        self._recent: dict[int, Tensor] = {}

    def epoch(self, number: int) -> Int64[Tensor, " samples"]:
        """The image numbers of one epoch."""
        if number not in self._recent:
            order = self.permute(generator_for(self.seed, "order", step=number))
            if self.repeats > 1:
                visited = math.ceil(len(order) / self.repeats)
                order = order[:visited].repeat_interleave(self.repeats)[: len(order)]
            self._recent = {number: order}
        return self._recent[number]

    def piece(self, start: int, count: int) -> Int64[Tensor, " samples"]:
        """The image numbers at these places of the stream."""
        pieces = []
        while count > 0:
            number, offset = divmod(start, self.size)
            taken = self.epoch(number)[offset : offset + count]
            pieces.append(taken)
            start, count = start + len(taken), count - len(taken)
        return torch.cat(pieces)


@dataclass(frozen=True)
class Batching:
    """How the batch of a step is divided among processes and passes.

    Args:
        batch: images of a step, over all processes and passes.
        processes: how many share a step.
        rank: which of them this is.
        passes: forward and backward passes of each process before the optimiser's step.
    """

    batch: int
    processes: int = 1
    rank: int = 0
    passes: int = 1

    def __post_init__(self) -> None:
        chunks = 2 * self.processes * self.passes
        if self.batch % chunks:
            raise ConfigError(
                f"a batch of {self.batch} cannot be divided among {self.processes} processes and "
                f"{self.passes} passes into chunks of even size; use a multiple of {chunks}"
            )

    @property
    def chunk(self) -> int:
        """Images in one pass of one process."""
        return self.batch // (self.processes * self.passes)

    def rows(self, number: int) -> Int64[Tensor, " chunk"]:
        """The rows of the step's batch that this process computes in a pass.

        Row i goes with row batch - 1 - i, its partner in mixup, and the chunk keeps them partners:
        so a step's result does not depend on how its batch is divided.
        """
        chunk = number * self.processes + self.rank
        first = torch.arange(self.batch // 2)[chunk :: self.processes * self.passes]
        return torch.cat([first, (self.batch - 1 - first).flip(0)])


@dataclass(frozen=True)
class Calendar:
    """Steps and epochs: how they divide a run.

    Args:
        samples: images of an epoch.
        batch: images of a step.
        epochs: how many there are.
    """

    samples: int
    batch: int
    epochs: int

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.end_of(self.epochs - 1)

    def end_of(self, epoch: int) -> int:
        """How many steps have been made when the epoch's last image has been seen."""
        return math.ceil((epoch + 1) * self.samples / self.batch)

    def epoch_of(self, step: int) -> int:
        """The epoch that a step, counted from 0, belongs to: that of its first image."""
        epoch = step * self.batch // self.samples
        while self.end_of(epoch) <= step:
            epoch += 1
        return epoch

    def finished(self, steps: int) -> int | None:
        """The last epoch that ends with so many steps; None in the middle of one.

        A batch larger than the set can end several at once.
        """
        epoch = self.epoch_of(steps - 1)
        if self.end_of(epoch) != steps:
            return None
        while epoch + 1 < self.epochs and self.end_of(epoch + 1) == steps:
            epoch += 1
        return epoch

    def at(self, epochs: int) -> int:
        """The step that so many epochs come to."""
        return round(epochs * self.samples / self.batch)


@dataclass(frozen=True, eq=False)
class Batch:
    """What one pass of one process trains on.

    Args:
        inputs: what the task's loss takes, by name; for classification `images`, and `targets`, a
            distribution over the classes for each image.
        step: the training step, from 0.
        rows: which rows of the step's whole batch these are; on the host.
    """

    inputs: dict[str, Tensor]
    step: int
    rows: Int64[Tensor, " batch"]


Finish = Callable[
    [UInt8[Tensor, "batch 3 height width"], Int64[Tensor, " batch"], int, Int64[Tensor, " batch"]],
    dict[str, Tensor],
]
"""From augmented bytes, labels, the step and its rows to a batch's inputs: a task's own part."""


@dataclass(frozen=True)
class ImageFormat:
    """The images that a model takes: height and width, and how levels are normalised."""

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalize(
        self, images: UInt8[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch 3 height width"]:
        """Levels 0 to 255 as numbers around 0."""
        mean, std = (_channels(values, images.device) for values in (self.mean, self.std))
        return images.float().sub_(mean).div_(std)

    def fill(self, device: torch.device) -> UInt8[Tensor, " 3"]:
        """The mean colour, in levels."""
        return _channels(self.mean, device).round().flatten().to(torch.uint8)


@dataclass
class Finisher:
    """Turns augmented bytes into the images and targets that a classifier is trained on.

    Everything drawn is drawn for the whole batch of the step, from the seed and the step, and then
    taken by rows: so it does not depend on how the batch is divided.

    Args:
        batch: images of a step, over all processes and passes.
    """

    settings: AugmentSettings
    format: ImageFormat
    num_classes: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        settings = self.settings
        self._mix = None
        if settings.mixup or settings.cutmix:
            self._mix = Mixup(
                mixup_alpha=settings.mixup,
                cutmix_alpha=settings.cutmix,
                prob=settings.mix_probability,
                switch_prob=settings.switch_probability,
                label_smoothing=settings.smoothing,
                num_classes=self.num_classes,
            )

    def __call__(
        self,
        images: UInt8[Tensor, "batch 3 height width"],
        labels: Int64[Tensor, " batch"],
        step: int,
        rows: Int64[Tensor, " batch"],
    ) -> dict[str, Tensor]:
        normal = self.format.normalize(images)
        if self.settings.erasing:
            generator = generator_for(self.seed, "erasing", step=step)
            boxes, chosen = erase_boxes(
                self.batch, self.format.size, self.settings.erasing, generator
            )
            seed = seed_for(self.seed, "noise", step=step)
            normal = erase(normal, boxes[:, rows], chosen[rows], seed, rows)
        if self._mix is None:
            targets = mixup_target(labels, self.num_classes, 1.0, self.settings.smoothing)
        else:
            with numpy_seeded(seed_for(self.seed, "mix", step=step)):
                normal, targets = self._mix(normal, labels)
        return {"images": normal, "targets": targets}


def erase(
    images: Float[Tensor, "batch 3 height width"],
    boxes: Boxes,
    chosen: Bool[Tensor, " batch"],
    seed: int,
    rows: Int64[Tensor, " batch"],
) -> Float[Tensor, "batch 3 height width"]:
    """Fills the chosen images' boxes with normal noise, in place.

    The noise is a window, at a place of the image's own, on one large field that the seed draws: so
    an image's noise does not depend on which others are computed with it.
    """
    where = chosen.nonzero()[:, 0]
    if not len(where):
        return images
    height, width = images.shape[2:]
    shifts = torch.stack((rows * 7919 % (height + 1), rows * 104729 % (width + 1)))
    table = torch.cat((where[None], boxes[:, where], shifts[:, where]))
    generator = torch.Generator(images.device).manual_seed(seed)
    field = torch.randn(3, 2 * height, 2 * width, generator=generator, device=images.device)
    index, top, left, high, wide, down, across = on_device(table, images.device)
    row = torch.arange(images.shape[2], device=images.device)
    col = torch.arange(images.shape[3], device=images.device)
    noise = field[:, (down[:, None] + row)[:, :, None], (across[:, None] + col)[:, None, :]]
    in_rows = (row >= top[:, None]) & (row < (top + high)[:, None])
    in_cols = (col >= left[:, None]) & (col < (left + wide)[:, None])
    inside = (in_rows[:, :, None] & in_cols[:, None, :])[:, None]
    images[index] = torch.where(inside, noise.transpose(0, 1).to(images.dtype), images[index])
    return images


@contextmanager
def numpy_seeded(seed: int) -> Iterator[None]:
    """For what draws from NumPy's global generator: seeds that, and puts it back."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(state)


@cache
def _channels(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "3 1 1"]:
    """A value for each channel, in levels; kept, so that a step does not copy it there again."""
    return 255 * torch.tensor(values, device=device)[:, None, None]
