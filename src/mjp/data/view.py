"""`View`: how pictures are cut for a model in evaluation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image
from timm.data import create_transform


@dataclass(frozen=True)
class View:
    """Resize and crop: what of a picture a model sees.

    Args:
        size: height and width in pixels.
        crop: share of the resized picture's side that the crop keeps.
        mode: timm's way of cropping: center, squash or border.
    """

    size: tuple[int, int]
    crop: float = 1.0
    interpolation: str = "bicubic"
    mode: str = "center"

    def transform(self) -> Callable[[Image.Image], Any]:
        """timm's evaluation transform, up to bytes."""
        transform: Callable[[Image.Image], Any] = create_transform(
            (3, *self.size),
            is_training=False,
            use_prefetcher=True,
            interpolation=self.interpolation,
            crop_pct=self.crop,
            crop_mode=self.mode,
        )
        return transform
