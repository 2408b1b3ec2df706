"""Tiny public models, and clients with pictures that have some structure."""

import torch
from PIL import Image

import mjp
from mjp.data.embedded import photograph
from mjp.jigsaw import sample_plan
from mjp.privacy.public import PublicModel

HEIGHT, WIDTH, PATCH, CLASSES = 48, 64, 8, 7
"""A grid of 6x8 patches, never square."""


def public(width: int = 96, dtype: torch.dtype = torch.float32, **config) -> PublicModel:
    """A ViT of two blocks, wider than it has patches."""
    torch.manual_seed(3)
    model = mjp.create_model(
        "vit_tiny_patch16_224",
        mjp.MJPConfig(**config),
        img_size=(HEIGHT, WIDTH),
        patch_size=PATCH,
        embed_dim=width,
        depth=2,
        num_heads=4,
        num_classes=CLASSES,
    )
    return PublicModel.of(model.eval().to(dtype))


def pictures(*names: str, size=(HEIGHT, WIDTH), dtype=torch.float32) -> torch.Tensor:
    """Photographs in [0, 1]."""
    import numpy as np

    small = [photograph(name).resize(size[::-1], Image.Resampling.LANCZOS) for name in names]
    return torch.stack(
        [torch.from_numpy(np.array(one)).permute(2, 0, 1).to(dtype) / 255 for one in small]
    )


def plan(model: PublicModel, ratio: float, batch: int = 1, seed: int = 0) -> mjp.JigsawPlan:
    return sample_plan(
        model.grid, batch=batch, ratio=ratio, generator=torch.Generator().manual_seed(seed)
    )


def decibels(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float(-10 * (found.double() - truth.double()).square().mean().log10())
