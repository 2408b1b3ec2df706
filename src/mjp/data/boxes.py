"""Random rectangles of a batch: drawn on the host, then cropped and resized."""

import math
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

ATTEMPTS = 10
"""How often a rectangle that does not fit is drawn anew, as in timm."""


Boxes = Int64[Tensor, "4 batch"]
"""One rectangle for each image, in pixels: top, left, height and width."""


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
    draws = torch.rand(4, ATTEMPTS, len(high), generator=generator, dtype=torch.float64)
    area = (scale[0] + (scale[1] - scale[0]) * draws[0]) * high * wide
    height, width = _sides(area, ratio, draws[1], height_is_ratio=False)
    fits = (width <= wide) & (height <= high)
    boxes = _first_fitting(fits, height, width, high, wide, draws)
    shape = wide / high
    whole_width = torch.where(shape > ratio[1], (high * ratio[1]).round(), wide)
    whole_height = torch.where(shape < ratio[0], (wide / ratio[0]).round(), high)
    top, left = ((high - whole_height) / 2).floor(), ((wide - whole_width) / 2).floor()
    middle = torch.stack((top, left, whole_height, whole_width))
    return torch.where(fits.any(dim=0), boxes, middle.long())


def erase_boxes(
    batch: int, size: tuple[int, int], probability: float, generator: torch.Generator
) -> tuple[Boxes, Bool[Tensor, " batch"]]:
    """Random rectangles by the rule of timm's random erasing, and which images get theirs."""
    high, wide = size
    draws = torch.rand(4, ATTEMPTS, batch, generator=generator, dtype=torch.float64)
    area = (0.02 + (1 / 3 - 0.02) * draws[0]) * high * wide
    height, width = _sides(area, (0.3, 1 / 0.3), draws[1], height_is_ratio=True)
    fits = (width < wide) & (height < high)
    chosen = torch.rand(batch, generator=generator, dtype=torch.float64) < probability
    return _first_fitting(fits, height, width, high, wide, draws), chosen & fits.any(dim=0)


def _sides(
    area: Tensor, ratio: tuple[float, float], draw: Tensor, *, height_is_ratio: bool
) -> tuple[Tensor, Tensor]:
    low, high = math.log(ratio[0]), math.log(ratio[1])
    root = (low + (high - low) * draw).exp().sqrt()
    longer, shorter = (area.sqrt() * root).round(), (area.sqrt() / root).round()
    return (longer, shorter) if height_is_ratio else (shorter, longer)


def _first_fitting(
    fits: Tensor, height: Tensor, width: Tensor, high: Any, wide: Any, draws: Tensor
) -> Boxes:
    """Each image's first rectangle that fits, somewhere in an image of this height and width."""
    first = fits.int().argmax(dim=0)[None]
    height, width = height.gather(0, first)[0], width.gather(0, first)[0]
    top = (draws[2].gather(0, first)[0] * (high - height + 1)).floor()
    left = (draws[3].gather(0, first)[0] * (wide - width + 1)).floor()
    return torch.stack((top, left, height, width)).long()


Kernel = Literal["bicubic", "bilinear"]


def crop_and_resize(
    images: UInt8[Tensor, "batch height width 3"],
    boxes: Int64[Tensor, "4 batch"],
    size: tuple[int, int],
    flipped: Bool[Tensor, " batch"],
    kernel: Kernel = "bicubic",
) -> UInt8[Tensor, "batch 3 rows cols"]:
    """Each image's box, resized with an antialiased kernel as Pillow does, and mirrored if asked.

    Resizing is linear in the pixels and separates into rows and columns, so a crop of any size is
    one matrix for the rows and one for the columns: work that a GPU does at full speed.
    """
    batch, height, width, _ = images.shape
    top, left, box_height, box_width = boxes
    upright = torch.zeros_like(flipped)
    down = weights(top, box_height, height, size[0], upright, kernel)
    across = weights(left, box_width, width, size[1], flipped, kernel)
    shrunk = down @ images.reshape(batch, height, width * 3).to(down.dtype)
    planes = shrunk.reshape(batch, size[0], width, 3).permute(0, 3, 1, 2)
    resized = planes.reshape(batch, 3 * size[0], width) @ across.mT
    return to_bytes(resized.reshape(batch, 3, *size))


def weights(
    start: Int64[Tensor, " batch"],
    length: Int64[Tensor, " batch"],
    pixels: int,
    out: int,
    flipped: Bool[Tensor, " batch"],
    kernel: Kernel,
) -> Float[Tensor, "batch out pixels"]:
    """For each output pixel, how much each input pixel of a line counts; each row sums to 1."""
    device = start.device
    place = torch.arange(out, device=device)[None, :, None]
    place = torch.where(flipped[:, None, None], out - 1 - place, place)
    step = (length / out)[:, None, None]
    stretch = step.clamp(min=1)  # Shrinking widens the kernel, which is what prevents aliasing.
    centre = (place + 0.5) * step
    pixel = torch.arange(pixels, device=device)[None, None, :] - start[:, None, None]
    weight = _KERNELS[kernel](((pixel + 0.5 - centre) / stretch).abs())
    weight = weight * ((pixel >= 0) & (pixel < length[:, None, None]))
    return weight / weight.sum(dim=2, keepdim=True)


def to_bytes(images: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Rounded to whole levels from 0 to 255."""
    return images.round().clamp(0, 255).to(torch.uint8)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' kernel with a = -0.5, which Pillow uses; factored, for fewer passes over memory.

    Up to 2 it is (1 - d)(2 - d)² / 2, and up to 1 there is (2d - 1)(1 - d)² more.
    """
    to_two, to_one = (2 - distance).clamp_(min=0).square_(), (1 - distance).clamp_(min=0).square_()
    return torch.addcmul((0.5 - 0.5 * distance).mul_(to_two), 2 * distance - 1, to_one)


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


_KERNELS = {"bicubic": _cubic, "bilinear": _triangle}


def on_device(table: Tensor, device: torch.device) -> Tensor:
    """A table of the host's there, without waiting for the device."""
    return (table.pin_memory() if device.type == "cuda" else table).to(device, non_blocking=True)
