"""Three corruptions whose packaged code is slow, made anew: the same to a level or so."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch.nn import functional as F

ZOOMS = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
"""End and step of the zoom factors at each severity."""
BRIGHTER = (0.1, 0.2, 0.3, 0.4, 0.5)
SATURATIONS = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))
"""Factor and offset of the saturation at each severity."""


def zoom_blur(picture: np.ndarray, severity: int) -> np.ndarray:
    """The mean of the picture and of ever larger zooms into its middle.

    At some sizes, scipy's zoom rounds its way past the last row or column and leaves it black; this
    does not.
    """
    end, step = ZOOMS[severity - 1]
    factors = np.arange(1, end, step)
    image = torch.from_numpy(picture.astype(np.float32) / 255).permute(2, 0, 1)[None]
    height, width = picture.shape[:2]
    total = image.clone()
    for factor in factors:
        high, wide = (int(np.ceil(side / factor)) for side in (height, width))
        top, left = (height - high) // 2, (width - wide) // 2
        part = image[:, :, top : top + high, left : left + wide]
        size = (round(high * factor), round(wide * factor))
        # Corners on corners, as scipy.ndimage.zoom samples.
        zoomed = F.interpolate(part, size, mode="bilinear", align_corners=True)
        zoomed = zoomed[:, :, :height, :width]
        total[:, :, : zoomed.shape[2], : zoomed.shape[3]] += zoomed
    mean = (total / (len(factors) + 1)).clamp(0, 1)
    return (mean[0].permute(1, 2, 0) * 255).numpy().astype(np.uint8)


def brightness(picture: np.ndarray, severity: int) -> np.ndarray:
    """The picture with a higher value in HSV: hue and saturation stay, so colours are scaled."""
    image = picture / 255
    value = image.max(axis=2, keepdims=True)
    brighter = np.clip(value + BRIGHTER[severity - 1], 0, 1)
    scaled = image * (brighter / np.where(value > 0, value, 1))
    return (np.clip(np.where(value > 0, scaled, brighter), 0, 1) * 255).astype(np.uint8)


def saturate(picture: np.ndarray, severity: int) -> np.ndarray:
    """The picture with another saturation in HSV: distances from the value are scaled."""
    factor, offset = SATURATIONS[severity - 1]
    image = picture / 255
    value = image.max(axis=2, keepdims=True)
    spread = value - image.min(axis=2, keepdims=True)
    old = spread / np.where(value > 0, value, 1)
    new = np.clip(old * factor + offset, 0, 1)
    made = value - (value - image) * (new / np.where(old > 0, old, 1))
    # Grey has no hue; in HSV it is called red.
    red = value * np.concatenate((np.ones_like(new), 1 - new, 1 - new), axis=2)
    return (np.clip(np.where(old > 0, made, red), 0, 1) * 255).astype(np.uint8)


FAST: Mapping[str, Callable[[np.ndarray, int], np.ndarray]] = MappingProxyType(
    {"zoom_blur": zoom_blur, "brightness": brightness, "saturate": saturate}
)
