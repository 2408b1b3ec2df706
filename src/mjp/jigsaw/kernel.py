"""Block-wise masks and permutations as one CUDA kernel: one program per image, all in registers.

It consumes the draws that the plain torch of `blocks` and `sampling` consumes, number for number,
and gives the same masks and permutations: the one is tested against the other. In plain torch the
same work is hundreds of small kernels, and starting them takes longer than the work.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from mjp.jigsaw.blocks import (
    ATTEMPTS,
    MAX_ASPECT,
    MIN_BLOCK_AREA,
    BlockDraws,
    draw_for_blocks,
    max_block_area,
)
from mjp.jigsaw.grid import PatchGrid

MAX_PATCHES = 4096  # What one program can hold and sort.


@triton.jit
def _covered(row, col, top, left, high, wide):  # type: ignore[no-untyped-def]
    return (row >= top) & (row < top + high) & (col >= left) & (col < left + wide)


@triton.jit
def _missing_score(row, col, top, left, high, wide, tie_break, size):  # type: ignore[no-untyped-def]
    """`blocks.complete`'s order of the patches around the last block."""
    half_high = (high - 1).to(tl.float32) * 0.5
    half_wide = (wide - 1).to(tl.float32) * 0.5
    off_rows = tl.abs(row.to(tl.float32) - (top.to(tl.float32) + half_high))
    off_cols = tl.abs(col.to(tl.float32) - (left.to(tl.float32) + half_wide))
    ring = tl.maximum(tl.maximum(off_rows - half_high, off_cols - half_wide), 0.0)
    inner = tl.sqrt_rn(off_rows * off_rows + off_cols * off_cols) + 0.25 * tie_break
    return ring + tl.div_rn(inner, size + tl.zeros_like(inner))


# One compiled kernel serves all ratios and all grids of about the same size.
@triton.jit(do_not_specialize=["rows", "cols", "num_masked", "num_blocks"])  # type: ignore[untyped-decorator]
def _block_plan_kernel(  # type: ignore[no-untyped-def]
    area_ptr,
    aspect_ptr,
    top_ptr,
    left_ptr,
    tie_break_ptr,
    order_ptr,
    masked_ptr,
    source_ptr,
    rows,
    cols,
    num_masked,
    num_blocks,
    max_area,
    min_area,
    to_high,
    to_wide,
    ATTEMPTS: tl.constexpr,
    CELLS: tl.constexpr,
):
    image = tl.program_id(0)
    cell = tl.arange(0, CELLS)
    row = cell // cols
    col = cell % cols
    in_grid = cell < rows * cols
    masked = tl.zeros([CELLS], tl.int32)
    remaining = num_masked
    number, attempt = image * 0, image * 0
    top, left, high, wide = image * 0, image * 0, image * 0, image * 0
    while (remaining > 0) & (number < num_blocks) & (attempt < ATTEMPTS):
        draw = (image * num_blocks + number) * ATTEMPTS + attempt
        largest = tl.minimum(remaining.to(tl.float32), max_area)
        smallest = tl.minimum(largest, min_area)
        side = tl.sqrt_rn(smallest + tl.load(area_ptr + draw) * (largest - smallest))
        aspect = tl.load(aspect_ptr + draw)
        high = tl.maximum(tl.floor(side * (aspect * to_high) + 0.5), 1.0).to(tl.int32)
        wide = tl.maximum(tl.floor(side * tl.div_rn(to_wide, aspect) + 0.5), 1.0).to(tl.int32)
        fits = (high < rows) & (wide < cols)
        high = tl.minimum(high, rows)
        wide = tl.minimum(wide, cols)
        top = tl.floor(tl.load(top_ptr + draw) * (rows - high + 1).to(tl.float32)).to(tl.int32)
        left = tl.floor(tl.load(left_ptr + draw) * (cols - wide + 1).to(tl.float32)).to(tl.int32)
        inside = _covered(row, col, top, left, high, wide) & in_grid
        fresh = tl.where(inside, 1 - masked, 0)
        new = tl.sum(fresh, axis=0)
        accepted = fits & (new >= 1) & (new <= remaining)
        masked = tl.where(accepted, masked + fresh, masked)
        remaining = tl.where(accepted, remaining - new, remaining)
        number = tl.where(accepted, number + 1, number)
        attempt = tl.where(accepted, 0, attempt + 1)

    place = image * rows * cols + cell
    if remaining > 0:
        tie_break = tl.load(tie_break_ptr + place, mask=in_grid, other=0.0)
        size = (rows + cols + 1).to(tl.float32)
        score = _missing_score(row, col, top, left, high, wide, tie_break, size)
        score = tl.where(in_grid & (masked == 0), score, float("inf"))
        while remaining > 0:
            nearest = tl.argmin(score, axis=0)
            masked = tl.where(cell == nearest, 1, masked)
            score = tl.where(cell == nearest, float("inf"), score)
            remaining -= 1

    # Sorting (random key, patch) of the masked patches shuffles them; the k-th of them in the
    # sorted order goes to the k-th masked place.
    key = tl.load(order_ptr + place, mask=in_grid, other=0.0).to(tl.int32, bitcast=True)
    packed = tl.where(masked == 1, (key.to(tl.int64) << 32) | cell, 0x7FFFFFFFFFFFFFFF)
    shuffled = (tl.sort(packed) & 0xFFFFFFFF).to(tl.int32)
    ordinal = tl.maximum(tl.cumsum(masked, axis=0) - 1, 0)
    source = tl.where(masked == 1, tl.gather(shuffled, ordinal, axis=0), cell)
    tl.store(masked_ptr + place, masked.to(tl.int8), mask=in_grid)
    tl.store(source_ptr + place, source.to(tl.int64), mask=in_grid)


def block_plan(
    grid: PatchGrid, num_masked: int, draws: BlockDraws, order: Float32[Tensor, "batch patches"]
) -> tuple[Bool[Tensor, "batch patches"], Int64[Tensor, "batch patches"]]:
    """`masked` and `source` of a plan, from these draws and sort keys."""
    batch, num_blocks, _ = draws.area.shape
    device = draws.area.device
    masked = torch.empty(batch, grid.num_patches, dtype=torch.int8, device=device)
    source = torch.empty(batch, grid.num_patches, dtype=torch.int64, device=device)
    cells = triton.next_power_of_2(grid.num_patches)
    areas = (max_block_area(grid), float(MIN_BLOCK_AREA))
    rule = (grid.rows, grid.cols, num_masked, num_blocks, *areas, MAX_ASPECT**-0.5, MAX_ASPECT**0.5)
    with torch.cuda.device(device):
        _block_plan_kernel[(batch,)](
            *(*draws, order, masked, source, *rule),
            ATTEMPTS=ATTEMPTS,
            CELLS=cells,
            num_warps=max(1, min(8, cells // 256)),
            enable_fp_fusion=False,
        )
    return masked.view(torch.bool), source


def try_out() -> None:
    """Builds and runs the kernel once, on next to nothing."""
    grid = PatchGrid(2, 2)
    draws = draw_for_blocks(grid, 1, 1, torch.Generator("cuda").manual_seed(0))
    block_plan(grid, 1, draws, draws.tie_break)
