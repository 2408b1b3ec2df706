"""`sample_plan`: draws a jigsaw for a batch, on the device of the work, without a host sync."""

import warnings
from functools import cache
from typing import get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.configuration import Shape, check_choice, check_count, check_ratio
from mjp.core.errors import ConfigError
from mjp.jigsaw import blocks
from mjp.jigsaw.grid import PatchGrid, pair_of_sides
from mjp.jigsaw.plan import JigsawPlan


def sample_plan(
    grid: PatchGrid,
    batch: int,
    ratio: float,
    generator: torch.Generator,
    *,
    shape: Shape = "block",
    pixels: int | tuple[int, int] | None = None,
    device: torch.device | str | None = None,
) -> JigsawPlan:
    """Draws one mask and one permutation for each image; the plan lies on the generator's device.

    Exactly round(ratio * patches) patches of each image are masked and permuted uniformly among
    themselves. The paper draws one mask per batch; we draw one per image.

    Args:
        shape: `block` masks random rectangles (BEiT's rule), `scatter` independent patches.
        pixels: the size of a patch in pixels, to also shuffle the pixels inside every patch of an
            image with one permutation (variant C).
        device: where the plan is wanted; an error if the generator is elsewhere.
    """
    if not isinstance(grid, PatchGrid):
        raise ConfigError(f"grid must be a PatchGrid, got {grid!r}")
    check_ratio("ratio", ratio)
    check_count("batch", batch, 0)
    check_choice("shape", shape, get_args(Shape))
    if not isinstance(generator, torch.Generator):
        raise ConfigError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    if device is not None and not same_device(generator.device, torch.device(device)):
        raise ConfigError(f"the generator is on {generator.device}, the plan is wanted on {device}")
    num_masked = round(ratio * grid.num_patches)
    if num_masked and batch:
        plan = JigsawPlan(grid, *_shuffle(grid, batch, num_masked, shape, generator))
    else:
        plan = JigsawPlan.identity(grid, batch, generator.device)
    if pixels is not None:
        high, wide = pair_of_sides("pixels", pixels)
        keys = torch.rand(batch, high * wide, generator=generator, device=generator.device)
        plan = JigsawPlan(grid, plan.masked, plan.source, pixels=keys.argsort(dim=1))
    return plan


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are the same; `cuda` names the current CUDA device."""
    if one.type == other.type == "cuda" and None in (one.index, other.index):
        current = torch.cuda.current_device() if torch.cuda.is_available() else None
        return {one.index, other.index} <= {None, current}
    return one == other


def _shuffle(
    grid: PatchGrid, batch: int, num_masked: int, shape: Shape, generator: torch.Generator
) -> tuple[Bool[Tensor, "batch patches"], Int64[Tensor, "batch patches"]]:
    """`masked` and `source` of a plan that masks at least one patch."""
    order = torch.rand(batch, grid.num_patches, generator=generator, device=generator.device)
    if shape == "scatter" or num_masked == grid.num_patches:
        chance = torch.rand(batch, grid.num_patches, generator=generator, device=generator.device)
        chosen = chance.topk(num_masked, dim=1, sorted=False).indices
        masked = torch.zeros_like(chance, dtype=torch.bool).scatter(1, chosen, True)
        return masked, shuffle_masked(masked, order)
    draws = blocks.draw_for_blocks(grid, batch, num_masked, generator)
    if order.is_cuda and _kernel_works():
        from mjp.jigsaw import kernel

        if grid.num_patches <= kernel.MAX_PATCHES:
            return kernel.block_plan(grid, num_masked, draws, order)
    masked = blocks.block_masks(grid, num_masked, draws)
    return masked, shuffle_masked(masked, order)


def shuffle_masked(
    masked: Bool[Tensor, "batch patches"], order: Float[Tensor, "batch patches"]
) -> Int64[Tensor, "batch patches"]:
    """Sends the k-th masked patch by its key, uniform in [0, 1), to the k-th masked place."""
    places = torch.arange(masked.shape[1], device=masked.device)
    shuffled = torch.where(masked, order, 2.0).argsort(dim=1, stable=True)
    ordinal = (masked.cumsum(dim=1) - 1).clamp(min=0)
    return torch.where(masked, shuffled.gather(1, ordinal), places)


@cache
def _kernel_works() -> bool:
    """Whether Triton is there and can build kernels, for which it needs a C compiler."""
    try:
        from mjp.jigsaw import kernel

        kernel.try_out()
    except Exception as error:  # Whatever it is, plain torch does the same work.
        warnings.warn(
            f"jigsaws are drawn in plain torch, slower, because Triton does not work here: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
