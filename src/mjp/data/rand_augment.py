"""RandAugment and colour jitter for a batch: what each image gets is drawn on the host.

The host knows which images get which operation, so each operation runs once a layer, on those
images alone, and nothing waits for the device.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from mjp.data.config import AugmentSettings
from mjp.data.pixel_operations import OPERATIONS, affine

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
NAMES = (*OPERATIONS, *GEOMETRIC)
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
    table = torch.cat(
        (
            order.double()[:, None],
            layer.value[order].double()[:, None],
            _matrices(layer, height, width)[order].flatten(1),
        ),
        dim=1,
    )
    if images.is_cuda:
        table = table.pin_memory()
    table = table.to(images.device, non_blocking=True)
    where, value, matrix = table[:, 0].long(), table[:, 1].float(), table[:, 2:].float()
    start = counts[0]
    for operation, count in zip(OPERATIONS.values(), counts[1 : len(OPERATIONS) + 1], strict=True):
        if count:
            piece = slice(start, start + count)
            chosen = where[piece]
            images[chosen] = operation(images[chosen], value[piece])
        start += count
    if start < len(order):
        chosen = where[start:]
        images[chosen] = affine(images[chosen], matrix[start:].view(-1, 2, 3), fill)
    return images


def _draw_layer(batch: int, settings: AugmentSettings, generator: torch.Generator) -> Layer:
    operation = torch.randint(len(NAMES), (batch,), generator=generator)
    noise = torch.randn(batch, generator=generator, dtype=torch.float64)
    level = (settings.rand_augment + settings.rand_augment_std * noise).clamp(0, 10) / 10
    sign = torch.randint(2, (batch,), generator=generator) * 2.0 - 1
    happens = torch.rand(batch, generator=generator) < CHANCE
    value = torch.zeros(batch, dtype=torch.float64)
    enhancement = (1 + sign * 0.9 * level).clamp(min=0.1)
    # timm's scales, of which those with a direction grow in effect with the level.
    values = {
        "posterize": (4 - (level * 4).floor()).clamp(min=1),  # No bits at all would be black.
        "solarize": 256 - (level * 256).floor(),
        "solarize_add": (level * 110).floor(),
        "color": enhancement,
        "contrast": enhancement,
        "brightness": enhancement,
        "sharpness": enhancement,
        "rotate": sign * 30 * level,
        "shear_x": sign * 0.3 * level,
        "shear_y": sign * 0.3 * level,
        "translate_x": sign * 0.45 * level,
        "translate_y": sign * 0.45 * level,
    }
    for name, drawn in values.items():
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
    matrix = torch.eye(2, 3, dtype=torch.float64).repeat(len(layer.value), 1, 1)
    for name in GEOMETRIC:
        chosen = layer.operation == NAMES.index(name)
        value = layer.value[chosen]
        if name == "rotate":
            angle = -value * math.pi / 180
            cosine, sine = angle.cos(), angle.sin()
            middle_x, middle_y = width / 2, height / 2
            first = torch.stack(
                (cosine, sine, middle_x - cosine * middle_x - sine * middle_y), dim=1
            )
            second = torch.stack(
                (-sine, cosine, middle_y + sine * middle_x - cosine * middle_y), dim=1
            )
            matrix[chosen] = torch.stack((first, second), dim=1)
        elif name == "shear_x":
            matrix[chosen, 0, 1] = value
        elif name == "shear_y":
            matrix[chosen, 1, 0] = value
        elif name == "translate_x":
            matrix[chosen, 0, 2] = value * width
        else:
            matrix[chosen, 1, 2] = value * height
    return matrix
