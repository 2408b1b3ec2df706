"""Shows the images of a set to several models, once."""

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from mjp.data.decoding import Block


@runtime_checkable
class Scorer(Protocol):
    """Whoever looks at every block and keeps what came out.

    `passes` is how often its model runs on each image.
    """

    passes: int

    def add(self, block: Block, tell: Callable[[int], None]) -> None:
        """Looks at a block of images; tells how many images the model has run on since."""


def show(scorers: Iterable[Scorer], blocks: Iterable[Block], tell: Callable[[int], None]) -> None:
    """Shows every block to every scorer."""
    for block in blocks:
        for scorer in scorers:
            scorer.add(block, tell)
