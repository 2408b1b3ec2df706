"""One tiny model of each supported kind: depth 2, images of 64x32, never square."""

from dataclasses import dataclass, field
from typing import Any

import timm
import torch
from torch import nn

HEIGHT, WIDTH, CLASSES = 64, 32, 7


@dataclass(frozen=True)
class Kind:
    """A timm architecture with arguments that make it tiny."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    image_size: tuple[int, int] = (HEIGHT, WIDTH)
    has_positions: bool = True

    def build(self, **more: Any) -> nn.Module:
        return timm.create_model(self.name, num_classes=CLASSES, **{**self.arguments, **more})

    def images(self, batch: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(batch, 3, *self.image_size, dtype=dtype)


TINY = {"img_size": (HEIGHT, WIDTH), "depth": 2, "embed_dim": 48, "num_heads": 3}
TINY_SWIN = {
    "img_size": (HEIGHT, WIDTH),
    "depths": (2, 2),
    "embed_dim": 24,
    "num_heads": (2, 4),
    "window_size": 4,
}

VITS = {
    "plain": Kind("vit_tiny_patch16_224", TINY),
    "distilled": Kind("deit_tiny_distilled_patch16_224", TINY),
    "deit3": Kind("deit3_small_patch16_224", TINY),
    "registers": Kind("vit_tiny_patch16_224", {**TINY, "reg_tokens": 3}),
    "registers without positions": Kind(
        "vit_tiny_patch16_224", {**TINY, "reg_tokens": 3, "no_embed_class": True}
    ),
    "average pooling": Kind(
        "vit_tiny_patch16_224", {**TINY, "class_token": False, "global_pool": "avg"}
    ),
    "attention pooling": Kind("vit_tiny_patch16_224", {**TINY, "global_pool": "map"}),
    "norm before the blocks": Kind("vit_tiny_patch16_224", {**TINY, "pre_norm": True}),
    "dynamic size": Kind("vit_tiny_patch16_224", {**TINY, "dynamic_img_size": True}, (48, 80)),
    "dynamic distilled": Kind(
        "deit_tiny_distilled_patch16_224", {**TINY, "dynamic_img_size": True}, (48, 80)
    ),
    "dynamic padding": Kind(
        "vit_tiny_patch16_224",
        {**TINY, "dynamic_img_size": True, "dynamic_img_pad": True},
        (50, 70),
    ),
}
OTHERS = {
    "swin": Kind("swin_tiny_patch4_window7_224", TINY_SWIN, has_positions=False),
    "resnet": Kind("resnet18", has_positions=False),
}
KINDS = VITS | OTHERS
