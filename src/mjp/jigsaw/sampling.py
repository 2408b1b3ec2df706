"""`sample_plan`: draws a jigsaw for a batch, on the device of the work, without a host sync."""

import importlib.util
import math
from functools import cache
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.jigsaw import blocks
from mjp.jigsaw.grid import PatchGrid
from mjp.jigsaw.plan import JigsawPlan

Shape = Literal["block", "scatter"]


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
    """Draws one mask and one permutation for each image.

    Exactly round(ratio * patches) patches of each image are masked and permuted uniformly among
    themselves. The paper draws one mask per batch; we draw one per image.

    Args:
        ratio: the share of patches to mask, in [0, 1].
        generator: source of randomness; the plan lies on its device.
        shape: `block` masks random rectangles (BEiT's rule), `scatter` independent patches.
        pixels: the size of a patch in pixels, to also shuffle the pixels inside every patch of an
            image with one permutation (variant C).
        device: where the plan is wanted; an error if the generator is elsewhere.
    """
    check_ratio("ratio", ratio)
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 0:
        raise ConfigError(f"batch must be a count of images, got {batch!r}")
    if shape not in get_args(Shape):
        raise ConfigError(f"shape must be one of {', '.join(get_args(Shape))}, got {shape!r}")
    if not isinstance(generator, torch.Generator):
        raise ConfigError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    if device is not None and not same_device(generator.device, torch.device(device)):
        raise ConfigError(
            f"the generator is on {generator.device}, the plan is wanted on {device}; "
            f"make it there: torch.Generator('{device}')"
        )
    num_masked = round(ratio * grid.num_patches)
    plan = JigsawPlan.identity(grid, batch, generator.device)
    if num_masked and batch:
        chosen = _choose(grid, batch, num_masked, shape, generator)
        masked = plan.masked.scatter(1, chosen, True)
        shuffled = chosen.gather(1, _permutations(batch, num_masked, generator))
        plan = JigsawPlan(grid, masked, plan.source.scatter(1, chosen, shuffled))
    if pixels is not None:
        high, wide = (pixels, pixels) if isinstance(pixels, int) else pixels
        plan = JigsawPlan(
            grid, plan.masked, plan.source, _permutations(batch, high * wide, generator)
        )
    return plan


def check_ratio(name: str, value: float) -> None:
    """Raises unless the value is a number in [0, 1]."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1 or math.isnan(value):
        raise ConfigError(f"{name} must be a number between 0 and 1, got {value!r}")


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are the same; `cuda` names the current CUDA device."""
    return _with_index(one) == _with_index(other)


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _choose(
    grid: PatchGrid, batch: int, num_masked: int, shape: Shape, generator: torch.Generator
) -> Int64[Tensor, "batch num_masked"]:
    """The patches to mask, in no particular order."""
    chance = torch.rand(batch, grid.num_patches, generator=generator, device=generator.device)
    if shape == "scatter" or num_masked == grid.num_patches:
        return chance.topk(num_masked, dim=1, sorted=False).indices
    num_blocks = blocks.enough_blocks(grid, num_masked)
    draws = blocks.draw_for_blocks(batch, num_blocks, generator)
    masked, block = _lay_blocks(grid, num_masked, draws)
    return blocks.complete(grid, num_masked, masked, block, tie_break=chance)


def _lay_blocks(
    grid: PatchGrid, num_masked: int, draws: blocks.BlockDraws
) -> tuple[Bool[Tensor, "batch patches"], Tensor]:
    if draws.area.is_cuda and _has_triton():
        from mjp.jigsaw import blocks_cuda

        if grid.num_patches <= blocks_cuda.MAX_PATCHES:
            return blocks_cuda.lay_blocks_cuda(grid, num_masked, draws)
    *_, last = blocks.lay_blocks(grid, num_masked, draws)
    return last.masked.flatten(1), last.block


def _permutations(
    batch: int, length: int, generator: torch.Generator
) -> Int64[Tensor, "batch length"]:
    """A uniform permutation for each image."""
    keys = torch.rand(batch, length, generator=generator, device=generator.device)
    return keys.argsort(dim=1)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
