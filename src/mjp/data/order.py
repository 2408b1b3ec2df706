"""Which image comes when: one endless stream of epochs, cut into batches and these into chunks.

The stream is the concatenation of the epochs' random orders; batch k takes the k-th piece of it, so
every image is seen exactly once in each epoch and every batch is full, whatever their sizes. All of
it is a function of the seed, so that a run can start anywhere, in any number of processes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.core.seeds import generator_for


class SampleOrder:
    """The stream of image numbers.

    Args:
        size: images of an epoch.
        permute: gives a random order of them.
        repeats: copies of an image that follow one another (repeated augmentation); an epoch stays
            as long as the set, so it then visits so many times fewer images.
    """

    def __init__(
        self,
        size: int,
        permute: Callable[[torch.Generator], Int64[Tensor, " samples"]],
        seed: int,
        repeats: int = 1,
    ) -> None:
        self._size = size
        self._permute = permute
        self._seed = seed
        self._repeats = repeats
        self._recent: dict[int, Tensor] = {}

    def epoch(self, number: int) -> Int64[Tensor, " samples"]:
        """The image numbers of one epoch."""
        if number not in self._recent:
            while len(self._recent) > 1:
                del self._recent[min(self._recent)]
            order = self._permute(generator_for(self._seed, "order", step=number))
            if self._repeats > 1:
                visited = math.ceil(len(order) / self._repeats)
                order = order[:visited].repeat_interleave(self._repeats)[: len(order)]
            self._recent[number] = order
        return self._recent[number]

    def piece(self, start: int, count: int) -> Int64[Tensor, " samples"]:
        """The image numbers at these places of the stream."""
        pieces = []
        while count > 0:
            number, offset = divmod(start, self._size)
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
