"""RandAugment and colour jitter on batches of bytes, each image by its own draw."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2.functional import equalize_image

from mjp.data.boxes import on_device, to_bytes
from mjp.data.config import AugmentSettings

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
    return equalize_image(images)


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


ENHANCEMENTS = (color, contrast, brightness, sharpness)
ON_LEVELS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    *(auto_contrast, equalize, invert, posterize, solarize, solarize_add),
    *ENHANCEMENTS,
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


GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
NAMES = (*(operation.__name__ for operation in ON_LEVELS), *GEOMETRIC)
"""timm's fifteen operations, those that move pixels last."""

NOTHING = -1
CHANCE = 0.5
"""timm's chance that a drawn operation is carried out."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One operation for each image, or none, with its value."""

    operation: Int64[Tensor, " batch"]
    value: Float[Tensor, " batch"]

    def __getitem__(self, rows: Tensor) -> "Layer":
        return Layer(self.operation[rows], self.value[rows])


def draw_layers(batch: int, settings: AugmentSettings, generator: torch.Generator) -> list[Layer]:
    """What RandAugment does to each image; colour jitter where RandAugment is off, as in timm."""
    if settings.rand_augment:
        return [
            _draw_layer(batch, settings, generator) for _ in range(settings.rand_augment_layers)
        ]
    if settings.color_jitter:
        return _draw_jitter(batch, settings.color_jitter, generator)
    return []


def apply_layer(
    images: UInt8[Tensor, "batch 3 height width"], layer: Layer, fill: UInt8[Tensor, " 3"]
) -> UInt8[Tensor, "batch 3 height width"]:
    """Carries a layer out, in place; the layer is on the host, the images are where they are.

    Args:
        fill: the colour that moving pixels leaves where there was no image.
    """
    # Images in the order of their operation: the host cuts this into one piece for each.
    order = layer.operation.argsort(stable=True)
    counts = torch.bincount(layer.operation + 1, minlength=len(NAMES) + 1).tolist()
    height, width = images.shape[2:]
    matrices = _matrices(layer, height, width)[order]
    table = torch.column_stack((order, layer.value.double()[order], matrices.flatten(1)))
    table = on_device(table, images.device)
    on_levels = len(ON_LEVELS) + 1
    sizes = [*counts[:on_levels], sum(counts[on_levels:])]
    _, *places, moved = table[:, 0].long().split(sizes)
    _, *values, _ = table[:, 1].float().split(sizes)
    for operation, place, value in zip(ON_LEVELS, places, values, strict=True):
        if len(place):
            images[place] = operation(images[place], value)
    if len(moved):
        matrix = table[len(table) - len(moved) :, 2:].float().view(-1, 2, 3)
        images[moved] = affine(images[moved], matrix, fill)
    return images


def _draw_layer(batch: int, settings: AugmentSettings, generator: torch.Generator) -> Layer:
    operation = torch.randint(len(NAMES), (batch,), generator=generator)
    noise = torch.randn(batch, generator=generator, dtype=torch.float64)
    level = (settings.rand_augment + settings.rand_augment_std * noise).clamp(0, 10) / 10
    sign = torch.randint(2, (batch,), generator=generator) * 2.0 - 1
    happens = torch.rand(batch, generator=generator) < CHANCE
    # timm's scales, of which those with a direction grow in effect with the level.
    scales = {
        "posterize": (4 - (level * 4).floor()).clamp(min=1),  # No bits at all would be black.
        "solarize": 256 - (level * 256).floor(),
        "solarize_add": (level * 110).floor(),
        **{each.__name__: (1 + sign * 0.9 * level).clamp(min=0.1) for each in ENHANCEMENTS},
        "rotate": sign * 30 * level,
        **dict.fromkeys(("shear_x", "shear_y"), sign * 0.3 * level),
        **dict.fromkeys(("translate_x", "translate_y"), sign * 0.45 * level),
    }
    value = torch.zeros(batch, dtype=torch.float64)
    for name, drawn in scales.items():
        value = torch.where(operation == NAMES.index(name), drawn, value)
    return Layer(torch.where(happens, operation, NOTHING), value)


def _draw_jitter(batch: int, strength: float, generator: torch.Generator) -> list[Layer]:
    """Brightness, contrast and saturation in a random order, each once."""
    kinds = torch.tensor([NAMES.index(name) for name in ("brightness", "contrast", "color")])
    order = torch.rand(batch, 3, generator=generator).argsort(dim=1)
    low = max(0.0, 1 - strength)
    draws = torch.rand(batch, 3, generator=generator, dtype=torch.float64)
    factors = low + (1 + strength - low) * draws
    return [Layer(kinds[order[:, slot]], factors[:, slot]) for slot in range(3)]


def _matrices(layer: Layer, height: int, width: int) -> Float[Tensor, "batch 2 3"]:
    """Where output pixels come from under the layer's operation, where that moves pixels."""
    angle, shear_x, shear_y, shift_x, shift_y = (
        torch.where(layer.operation == NAMES.index(name), layer.value.double(), 0.0)
        for name in GEOMETRIC
    )
    cosine, sine = (-angle * math.pi / 180).cos(), (-angle * math.pi / 180).sin()
    middle_x, middle_y = width / 2, height / 2
    from_x = middle_x - cosine * middle_x - sine * middle_y + shift_x * width
    from_y = middle_y + sine * middle_x - cosine * middle_y + shift_y * height
    rows = (cosine, sine + shear_x, from_x), (shear_y - sine, cosine, from_y)
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
