"""Crops and resizes a batch of images, each by a box of its own, as two matrix products."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

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
