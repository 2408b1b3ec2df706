"""The rule of `blocks` as one CUDA kernel: one program per image, its mask in registers.

It consumes the same draws as `blocks.lay_blocks`, number for number, and gives the same masks: the
one is tested against the other. In plain torch the rule is hundreds of small kernels.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Int32
from torch import Tensor

from mjp.jigsaw.blocks import ATTEMPTS, MIN_BLOCK_AREA, BlockDraws, max_block_area
from mjp.jigsaw.grid import PatchGrid

MAX_PATCHES = 16384  # A mask larger than this does not fit the registers of one program.


@triton.jit  # type: ignore[untyped-decorator]
def _lay_blocks_kernel(  # type: ignore[no-untyped-def]  # pragma: no cover
    area_ptr,
    high_ptr,
    wide_ptr,
    top_ptr,
    left_ptr,
    masked_ptr,
    block_ptr,
    rows,
    cols,
    num_masked,
    num_blocks,
    cap,
    min_area,
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
    number = image * 0
    attempt = image * 0
    top = image * 0
    left = image * 0
    high = image * 0
    wide = image * 0
    while (remaining > 0) & (number < num_blocks) & (attempt < ATTEMPTS):
        draw = (image * num_blocks + number) * ATTEMPTS + attempt
        largest = tl.minimum(remaining.to(tl.float32), cap)
        smallest = tl.minimum(largest, min_area)
        side = tl.sqrt_rn(smallest + tl.load(area_ptr + draw) * (largest - smallest))
        high = tl.maximum(tl.floor(side * tl.load(high_ptr + draw) + 0.5), 1.0).to(tl.int32)
        wide = tl.maximum(tl.floor(side * tl.load(wide_ptr + draw) + 0.5), 1.0).to(tl.int32)
        fits = (high < rows) & (wide < cols)
        high = tl.minimum(high, rows)
        wide = tl.minimum(wide, cols)
        top = tl.floor(tl.load(top_ptr + draw) * (rows - high + 1).to(tl.float32)).to(tl.int32)
        left = tl.floor(tl.load(left_ptr + draw) * (cols - wide + 1).to(tl.float32)).to(tl.int32)
        inside = (row >= top) & (row < top + high) & (col >= left) & (col < left + wide)
        fresh = tl.where(inside & in_grid, 1 - masked, 0)
        new = tl.sum(fresh, axis=0)
        accepted = fits & (new >= 1) & (new <= remaining)
        masked = tl.where(accepted, masked + fresh, masked)
        remaining = tl.where(accepted, remaining - new, remaining)
        number = tl.where(accepted, number + 1, number)
        attempt = tl.where(accepted, 0, attempt + 1)
    tl.store(masked_ptr + image * rows * cols + cell, masked.to(tl.int8), mask=in_grid)
    tl.store(block_ptr + image * 4 + 0, top)
    tl.store(block_ptr + image * 4 + 1, left)
    tl.store(block_ptr + image * 4 + 2, high)
    tl.store(block_ptr + image * 4 + 3, wide)


def lay_blocks_cuda(
    grid: PatchGrid, num_masked: int, draws: BlockDraws
) -> tuple[Bool[Tensor, "batch patches"], Int32[Tensor, "batch 4"]]:
    """The final mask of `blocks.lay_blocks` and the block it ended on."""
    batch, num_blocks, _ = draws.area.shape
    device = draws.area.device
    masked = torch.empty(batch, grid.num_patches, dtype=torch.int8, device=device)
    block = torch.empty(batch, 4, dtype=torch.int32, device=device)
    cells = triton.next_power_of_2(grid.num_patches)
    with torch.cuda.device(device):
        _lay_blocks_kernel[(batch,)](
            draws.area.contiguous(),
            draws.high.contiguous(),
            draws.wide.contiguous(),
            draws.top.contiguous(),
            draws.left.contiguous(),
            masked,
            block,
            grid.rows,
            grid.cols,
            num_masked,
            num_blocks,
            max_block_area(grid),
            float(MIN_BLOCK_AREA),
            ATTEMPTS=ATTEMPTS,
            CELLS=cells,
            num_warps=max(1, min(8, cells // 256)),
            enable_fp_fusion=False,
        )
    return masked.view(torch.bool), block
