"""The operations of RandAugment and colour jitter on a batch of bytes, each image by its own value.

They give what Pillow gives, level for level, but for geometry, which is exact to rounding.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from mjp.data.resampling import to_bytes

Images = UInt8[Tensor, "batch 3 height width"]
Values = Float[Tensor, " batch"]


def auto_contrast(images: Images, _: Values) -> Images:
    """Stretches each channel so that its darkest level becomes 0 and its brightest 255."""
    flat = images.flatten(2)
    low, high = flat.amin(2, keepdim=True).double(), flat.amax(2, keepdim=True).double()
    scale = 255.0 / (high - low).clamp(min=1)
    stretched = (flat.double() * scale - low * scale).clamp(0, 255).floor()
    return torch.where(high > low, stretched, flat.double()).to(torch.uint8).view_as(images)


def equalize(images: Images, _: Values) -> Images:
    """Makes the levels of each channel equally frequent."""
    batch = images.shape[0]
    flat = images.reshape(batch * 3, -1).long()
    counts = torch.zeros(batch * 3, 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    last = flat.amax(1, keepdim=True)
    step = (flat.shape[1] - counts.gather(1, last)) // 255
    before = counts.cumsum(1) - counts
    table = (before + step // 2) // step.clamp(min=1)
    levels = torch.arange(256, device=images.device)
    table = torch.where(step > 0, table.clamp(max=255), levels)
    return table.gather(1, flat).to(torch.uint8).view_as(images)


def invert(images: Images, _: Values) -> Images:
    """The negative."""
    return 255 - images


def posterize(images: Images, bits: Values) -> Images:
    """Keeps so many of the highest bits of each level."""
    kept = 256 - torch.exp2(8 - bits.clamp(0, 8)).long()
    return (images & _spread(kept).to(torch.uint8)).where(_spread(bits) < 8, images)


def solarize(images: Images, threshold: Values) -> Images:
    """Inverts the levels from the threshold on."""
    return torch.where(images < _spread(threshold), images, 255 - images)


def solarize_add(images: Images, added: Values) -> Images:
    """Brightens the levels below 128."""
    brighter = (images.int() + _spread(added).int()).clamp(max=255).to(torch.uint8)
    return torch.where(images < 128, brighter, images)


def brightness(images: Images, factor: Values) -> Images:
    """Blends with black."""
    return _blend(torch.zeros_like(images), images, factor)


def contrast(images: Images, factor: Values) -> Images:
    """Blends with the mean grey."""
    mean = (grey(images).flatten(1).double().mean(1) + 0.5).floor()
    return _blend(_spread(mean).expand(images.shape), images, factor)


def color(images: Images, factor: Values) -> Images:
    """Blends with the image in grey."""
    return _blend(grey(images).expand(images.shape), images, factor)


def sharpness(images: Images, factor: Values) -> Images:
    """Blends with a smoothed image; the outermost pixels stay."""
    smooth = images.clone()
    inner = F.conv2d(images.float(), _smoothing(images.device), groups=3)
    smooth[:, :, 1:-1, 1:-1] = (inner + 0.5).clamp(0, 255).to(torch.uint8)
    return _blend(smooth, images, factor)


def affine(images: Images, matrix: Float[Tensor, "batch 2 3"], fill: UInt8[Tensor, " 3"]) -> Images:
    """Moves pixels: output (x, y) comes from matrix · (x, y, 1), between pixels if need be.

    Coordinates are in pixels, with 0 at the corner, as in Pillow.
    """
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device) + 0.5
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    (a, b, c), (d, e, f) = (row.T[:, :, None, None] for row in matrix.unbind(1))
    from_x, from_y = a * x + b * y + c, d * x + e * y + f
    grid = torch.stack((from_x * (2 / width) - 1, from_y * (2 / height) - 1), dim=3)
    moved = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    return torch.where(inside[:, None], to_bytes(moved), fill[:, None, None])


def grey(images: Images) -> UInt8[Tensor, "batch 1 height width"]:
    """Luma as Pillow computes it."""
    red, green, blue = images.int().split(1, dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)


OPERATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "auto_contrast": auto_contrast,
        "equalize": equalize,
        "invert": invert,
        "posterize": posterize,
        "solarize": solarize,
        "solarize_add": solarize_add,
        "color": color,
        "contrast": contrast,
        "brightness": brightness,
        "sharpness": sharpness,
    }
)


@cache
def _smoothing(device: torch.device) -> Float[Tensor, "3 1 3 3"]:
    """Pillow's kernel, for each channel; kept, because making it would wait for the device."""
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13
    return kernel.expand(3, 1, 3, 3).to(device)


def _blend(start: Tensor, end: Tensor, factor: Tensor) -> Tensor:
    """From `start` at factor 0 through `end` at 1 and beyond; cut off, not rounded, as Pillow."""
    begin = start.float()
    return (begin + _spread(factor) * (end.float() - begin)).clamp(0, 255).to(torch.uint8)


def _spread(values: Float[Tensor, " batch"] | Int64[Tensor, " batch"]) -> Tensor:
    return values[:, None, None, None]
