"""Pictures as PNG, in memory: as they are, small, and with masked blocks marked."""

import io

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor

from mjp.jigsaw import PatchGrid

SHOWN = 384
"""Pixels across a drawing of masked blocks, roughly."""
VEIL = np.array([107.0, 115.0, 125.0])
"""The grey that lies over a masked patch."""
THICKNESS = 0.80
LINE = np.array([250.0, 247.0, 240.0])


def png(image: Image.Image, compress: int = 6) -> bytes:
    """A picture as a file."""
    file = io.BytesIO()
    image.save(file, format="PNG", compress_level=compress)
    return file.getvalue()


def picture_of(image: Float[Tensor, "3 height width"]) -> Image.Image:
    """Pixels in [0, 1] as a picture."""
    levels = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(levels.permute(1, 2, 0).cpu().numpy())


def thumbnail(image: Image.Image, side: int) -> Image.Image:
    """A square cut from the middle, at most so many pixels wide."""
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    square = image.crop((left, top, left + short, top + short))
    return square.resize((side, side), Image.Resampling.LANCZOS) if short > side else square


def masked_blocks(
    image: Float[Tensor, "3 height width"], masked: Bool[Tensor, " patches"], grid: PatchGrid
) -> Image.Image:
    """The picture with a veil over its masked patches, and lines between them."""
    zoom = max(1, round(SHOWN / image.shape[1]))
    high, wide = grid.patch_shape(*image.shape[1:])
    cells = masked.reshape(grid.rows, grid.cols).cpu().numpy()
    pixels = np.array(picture_of(image))
    hidden = cells.repeat(high, axis=0).repeat(wide, axis=1)
    pixels[hidden] = (1 - THICKNESS) * pixels[hidden] + THICKNESS * VEIL
    pixels = pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)
    high, wide = zoom * high, zoom * wide
    edge = np.zeros((high, wide), dtype=bool)
    edge[[0, -1]], edge[:, [0, -1]] = True, True
    lines = np.kron(cells, edge)
    pixels[lines] = (pixels[lines] + LINE) / 2
    return Image.fromarray(pixels)
