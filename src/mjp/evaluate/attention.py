"""Maps of the last self-attention: how much the class token looks at each patch, in each head."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mjp.core.errors import UnsupportedModelError
from mjp.jigsaw import PatchGrid


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention to the patches.

    Args:
        heads: weights of each head; they sum to what the head spends on patches, not on class,
            distillation and register tokens.
        query: what looks: the class token, or all patches where there is none.
    """

    heads: Float[Tensor, "batch heads rows cols"]
    query: str

    @property
    def mean(self) -> Float[Tensor, "batch rows cols"]:
        """The mean over the heads."""
        return self.heads.mean(dim=1)

    def spread(self) -> Float[Tensor, "batch heads"]:
        """How many patches each head looks at, in effect: the exponential of its entropy."""
        flat = self.heads.flatten(2).double()
        share = flat / flat.sum(dim=2, keepdim=True).clamp(min=1e-30)
        return (-(share * share.clamp(min=1e-30).log()).sum(dim=2)).exp().float()


@torch.inference_mode()
def attention_maps(
    model: Any, images: Float[Tensor, "batch 3 height width"], grid: PatchGrid
) -> AttentionMaps:
    """The last block's attention, for any ViT of timm's or of ours.

    Fused attention never forms its weights, so it is switched off in that block for this call.

    Args:
        grid: of the model's patches in these images.
    """
    attention = last_attention(model)
    with _watched(attention) as seen:
        model.forward_features(images)
    if not seen:
        raise UnsupportedModelError(
            f"the {type(attention).__name__} of this {type(model).__name__} does not show its "
            "weights"
        )
    weights = seen[-1].float()
    if not torch.allclose(weights.sum(dim=-1), weights.new_ones(()), atol=0.02):
        raise UnsupportedModelError(
            f"the {type(attention).__name__} of this {type(model).__name__} changes its weights "
            "after the softmax, so they are no shares of attention"
        )
    if weights.dim() != 4 or weights.shape[-1] < grid.num_patches:
        raise UnsupportedModelError(
            f"the last attention of this {type(model).__name__} has weights of shape "
            f"{tuple(weights.shape)}, not one for each of {grid} patches: it does not look at the "
            "whole image"
        )
    prefix = weights.shape[-1] - grid.num_patches
    has_class_token = getattr(model, "cls_token", None) is not None and prefix > 0
    query = weights[:, :, 0] if has_class_token else weights[:, :, prefix:].mean(dim=2)
    return AttentionMaps(
        query[:, :, prefix:].unflatten(2, (grid.rows, grid.cols)),
        "class token" if has_class_token else "mean over all patches",
    )


def attention_grid(model: Any, size: tuple[int, int]) -> PatchGrid:
    """The grid of a model's tokens in images of this height and width."""
    embed = getattr(model, "patch_embed", None)
    if embed is None or getattr(embed, "grid_size", None) is None:
        raise UnsupportedModelError(
            f"this {type(model).__name__} does not say what grid its tokens lie on"
        )
    if getattr(model, "dynamic_img_size", False):
        rows, cols = embed.dynamic_feat_size(size)
    else:
        rows, cols = embed.grid_size
    return PatchGrid(int(rows), int(cols))


def last_attention(model: Any) -> Any:
    """The self-attention of the last block; an error for models without a global one."""
    blocks = getattr(model, "blocks", None)
    last = blocks[-1] if isinstance(blocks, (nn.Sequential, nn.ModuleList)) and blocks else None
    attention = getattr(last, "attn", None)
    if attention is None or not hasattr(attention, "attn_drop"):
        raise UnsupportedModelError(
            f"a {type(model).__name__} has no last self-attention over all patches; maps are for "
            "ViTs"
        )
    return attention


@contextmanager
def _watched(attention: Any) -> Iterator[list[Tensor]]:
    """What goes through the attention's dropout inside: its weights, once they are formed."""
    seen: list[Tensor] = []
    fused = getattr(attention, "fused_attn", None)
    hook = attention.attn_drop.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    if fused is not None:
        attention.fused_attn = False
    try:
        yield seen
    finally:
        hook.remove()
        if fused is not None:
            attention.fused_attn = fused
