"""Block-wise masks by BEiT's rule: random rectangles, one mask per image, all images at once.

The rule, for a target of n patches: while r patches are still to be masked, try up to ten blocks.
A block has an area drawn between 8 and r (r itself where r < 8; never more than 75 of 196 patches)
and a log-uniform aspect ratio in [0.3, 1/0.3]; it must be smaller than the grid in both directions;
it lies anywhere; it counts if it covers between 1 and r patches not yet masked. When ten attempts
in a row fail, the rule gives up short of n. We do not: the last block tried is trimmed or grown,
around its own centre, until exactly n patches are masked.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int32
from torch import Tensor

from mjp.jigsaw.grid import PatchGrid

MIN_BLOCK_AREA = 8
MAX_BLOCK_RATIO = 75 / 196
MAX_ASPECT = 1 / 0.3
ATTEMPTS = 10


class BlockDraws(NamedTuple):
    """Every random number that the masks of a batch need. All but `aspect` are uniform in [0, 1).

    `aspect` is log-uniform in [1, MAX_ASPECT): a block's height is that, over the square root of
    MAX_ASPECT, times the side of the square of its area.
    """

    area: Float32[Tensor, "batch blocks attempts"]
    aspect: Float32[Tensor, "batch blocks attempts"]
    top: Float32[Tensor, "batch blocks attempts"]
    left: Float32[Tensor, "batch blocks attempts"]
    tie_break: Float32[Tensor, "batch patches"]


class Laid(NamedTuple):
    """The state after one more block: the mask, and the block accepted or else last tried."""

    masked: Bool[Tensor, "batch rows cols"]
    block: Int32[Tensor, "batch 4"]
    accepted: Bool[Tensor, " batch"]


def draw_for_blocks(
    grid: PatchGrid, batch: int, num_masked: int, generator: torch.Generator
) -> BlockDraws:
    """Draws what masks of so many patches may need."""
    shape = (4, batch, enough_blocks(grid, num_masked), ATTEMPTS)
    draws = torch.rand(shape, generator=generator, device=generator.device)
    tie_break = torch.rand(batch, grid.num_patches, generator=generator, device=generator.device)
    area, aspect, top, left = draws.unbind()
    return BlockDraws(area, torch.pow(MAX_ASPECT, aspect), top, left, tie_break)


def block_masks(
    grid: PatchGrid, num_masked: int, draws: BlockDraws
) -> Bool[Tensor, "batch patches"]:
    """Masks of exactly `num_masked` patches each."""
    *_, last = lay_blocks(grid, num_masked, draws)
    return complete(grid, num_masked, last, draws.tie_break)


def max_block_area(grid: PatchGrid) -> float:
    """The largest area that one block asks for."""
    return max(1.0, MAX_BLOCK_RATIO * grid.num_patches)


def enough_blocks(grid: PatchGrid, num_masked: int) -> int:
    """As many blocks as the rule lays, all but never fewer: at 0.97 of 24x24 at most 41 were seen.

    Where it would lay more, the mask is completed around the last one.
    """
    return min(num_masked, 16 + math.ceil(32 * num_masked / grid.num_patches))


def lay_blocks(grid: PatchGrid, num_masked: int, draws: BlockDraws) -> Iterator[Laid]:
    """Yields the state after each block. Loops over blocks; images and attempts go side by side."""
    batch, num_blocks, _ = draws.area.shape
    device = draws.area.device
    masked = torch.zeros(batch, grid.rows, grid.cols, dtype=torch.bool, device=device)
    block = torch.zeros(batch, 4, dtype=torch.int32, device=device)
    active = torch.ones(batch, dtype=torch.bool, device=device)
    # The attempts for one block see the same mask, so the first success among ten drawn side by
    # side is distributed as the first success among ten drawn one after another.
    for number in range(num_blocks):
        remaining = num_masked - masked.sum(dim=(1, 2), dtype=torch.int32)
        largest = remaining.float().clamp(max=max_block_area(grid))[:, None]
        smallest = largest.clamp(max=MIN_BLOCK_AREA)
        side = (smallest + draws.area[:, number] * (largest - smallest)).sqrt()
        aspect = draws.aspect[:, number]
        high = (side * (aspect * MAX_ASPECT**-0.5) + 0.5).floor().clamp(min=1)
        wide = (side * (MAX_ASPECT**0.5 / aspect) + 0.5).floor().clamp(min=1)
        fits = (high < grid.rows) & (wide < grid.cols)
        high, wide = high.clamp(max=grid.rows), wide.clamp(max=grid.cols)
        top = (draws.top[:, number] * (grid.rows - high + 1)).floor()
        left = (draws.left[:, number] * (grid.cols - wide + 1)).floor()
        tried = torch.stack((top, left, high, wide), dim=-1).to(torch.int32)

        # In whole numbers: autocast would round a product of matrices, and with it the count.
        new = (_cells(tried, grid) & ~masked[:, None]).sum(dim=(2, 3))
        accepted = fits & (new >= 1) & (new <= remaining[:, None]) & active[:, None]
        success = accepted.any(dim=1)
        first = accepted.int().argmax(dim=1)
        chosen = torch.where(success, first, ATTEMPTS - 1)[:, None, None]
        tried = tried.gather(1, chosen.expand(-1, 1, 4)).squeeze(1)
        block = torch.where(active[:, None], tried, block)

        masked = masked | (_cells(block[:, None], grid)[:, 0] & success[:, None, None])
        active = active & success & (masked.sum(dim=(1, 2)) < num_masked)
        yield Laid(masked, block, success)
        if device.type == "cpu" and not active.any():
            return


def complete(
    grid: PatchGrid, num_masked: int, last: Laid, tie_break: Float32[Tensor, "batch patches"]
) -> Bool[Tensor, "batch patches"]:
    """Masks the patches still missing: those nearest to the block that the rule ended on.

    Patches inside the block come first, nearest to its centre first, so that a block too large is
    trimmed at its corners and a block too small grows evenly.
    """
    masked = last.masked.flatten(1)
    row, col = grid.coordinates(masked.device).unbind(dim=1)
    top, left, high, wide = last.block.float()[:, :, None].unbind(dim=1)
    off_rows = (row - (top + (high - 1) * 0.5)).abs()
    off_cols = (col - (left + (wide - 1) * 0.5)).abs()
    ring = torch.maximum(off_rows - (high - 1) * 0.5, off_cols - (wide - 1) * 0.5).clamp(min=0)
    inner = (off_rows * off_rows + off_cols * off_cols).sqrt() + 0.25 * tie_break
    score = ring + inner / (grid.rows + grid.cols + 1)
    nearest = torch.where(masked, -1.0, score).topk(num_masked, dim=1, largest=False).indices
    return masked.scatter(1, nearest, True)


def _cells(
    block: Int32[Tensor, "batch blocks 4"], grid: PatchGrid
) -> Bool[Tensor, "batch blocks rows cols"]:
    """Which cells of the grid each block covers."""
    row = torch.arange(grid.rows, dtype=torch.int32, device=block.device)
    col = torch.arange(grid.cols, dtype=torch.int32, device=block.device)
    top, left, high, wide = block[..., None].unbind(dim=2)
    in_rows = (row >= top) & (row < top + high)
    in_cols = (col >= left) & (col < left + wide)
    return in_rows[..., :, None] & in_cols[..., None, :]
