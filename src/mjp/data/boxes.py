"""Random rectangles for a batch: where to crop, what to erase. Drawn on the host, all at once."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

ATTEMPTS = 10
"""How often a rectangle that does not fit is drawn anew, as in timm."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """One rectangle for each image, in pixels."""

    top: Int64[Tensor, " batch"]
    left: Int64[Tensor, " batch"]
    height: Int64[Tensor, " batch"]
    width: Int64[Tensor, " batch"]

    def __getitem__(self, rows: Tensor) -> "Boxes":
        return Boxes(self.top[rows], self.left[rows], self.height[rows], self.width[rows])

    def stacked(self) -> Int64[Tensor, "4 batch"]:
        """Top, left, height and width as one tensor."""
        return torch.stack((self.top, self.left, self.height, self.width))


def crop_boxes(
    heights: Int64[Tensor, " batch"],
    widths: Int64[Tensor, " batch"],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Boxes:
    """Random crops by the rule of timm's random resized crop.

    Area uniform in `scale`, aspect ratio log-uniform in `ratio`; where ten attempts do not fit, the
    largest central crop of an allowed aspect ratio.
    """
    high, wide = heights.double(), widths.double()
    draws = _uniform((4, ATTEMPTS, len(heights)), generator)
    area = (scale[0] + (scale[1] - scale[0]) * draws[0]) * high * wide
    height, width = _sides(area, ratio, draws[1], height_is_ratio=False)
    fits = (width <= wide) & (height <= high)
    first = fits.int().argmax(dim=0)
    found = fits.any(dim=0)
    height, width = _pick(height, first), _pick(width, first)
    top = (_pick(draws[2], first) * (high - height + 1)).floor()
    left = (_pick(draws[3], first) * (wide - width + 1)).floor()
    shape = wide / high
    whole_width = torch.where(shape > ratio[1], (high * ratio[1]).round(), wide)
    whole_height = torch.where(shape < ratio[0], (wide / ratio[0]).round(), high)
    height = torch.where(found, height, whole_height)
    width = torch.where(found, width, whole_width)
    top = torch.where(found, top, ((high - whole_height) / 2).floor())
    left = torch.where(found, left, ((wide - whole_width) / 2).floor())
    return Boxes(top.long(), left.long(), height.long(), width.long())


def erase_boxes(
    batch: int, size: tuple[int, int], probability: float, generator: torch.Generator
) -> tuple[Boxes, Bool[Tensor, " batch"]]:
    """Random rectangles by the rule of timm's random erasing, and which images get theirs."""
    high, wide = size
    draws = _uniform((4, ATTEMPTS, batch), generator)
    area = (0.02 + (1 / 3 - 0.02) * draws[0]) * high * wide
    height, width = _sides(area, (0.3, 1 / 0.3), draws[1], height_is_ratio=True)
    fits = (width < wide) & (height < high)
    first = fits.int().argmax(dim=0)
    chosen = _uniform((batch,), generator) < probability
    height, width = _pick(height, first), _pick(width, first)
    top = (_pick(draws[2], first) * (high - height + 1)).floor()
    left = (_pick(draws[3], first) * (wide - width + 1)).floor()
    boxes = Boxes(top.long(), left.long(), height.long(), width.long())
    return boxes, chosen & fits.any(dim=0)


def _sides(
    area: Tensor, ratio: tuple[float, float], draw: Tensor, *, height_is_ratio: bool
) -> tuple[Tensor, Tensor]:
    low, high = math.log(ratio[0]), math.log(ratio[1])
    root = (low + (high - low) * draw).exp().sqrt()
    longer, shorter = (area.sqrt() * root).round(), (area.sqrt() / root).round()
    return (longer, shorter) if height_is_ratio else (shorter, longer)


def _pick(values: Tensor, first: Tensor) -> Tensor:
    return values.gather(0, first[None])[0]


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)
