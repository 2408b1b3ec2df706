"""`Reader`: the images of a source, for evaluation, in blocks."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from mjp.core.errors import DataError
from mjp.core.team import Team
from mjp.data.decoding import Decoder, collate, loader, tickets
from mjp.data.source import Source
from mjp.data.view import View
from mjp.data.workers import cut, moved

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
        own = torch.cat([self._indices(number) for number in numbers])
        line = cut(tickets(self.source, own.tolist(), own), UNIT)
        device = self._team.device
        pin = device.type == "cuda"
        parts = moved(loader(self._decoder, line, self._workers, collate, pin=pin), device)
        for number in numbers:
            indices = self._indices(number)
            units = [next(parts) for _ in range(-(-len(indices) // UNIT))]
            self._report([problem for unit in units for problem in unit.problems])
            readable = torch.tensor([one for unit in units for one in unit.readable])
            yield Block(
                number,
                indices,
                torch.cat([unit.images for unit in units]),
                torch.cat([unit.labels for unit in units]),
                (readable.pin_memory() if pin else readable).to(device, non_blocking=True),
            )

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
