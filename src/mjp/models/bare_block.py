"""A first block without the norm and the residual around its attention."""

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from mjp.core.errors import UnsupportedModelError


class BareBlock(nn.Module):
    """A transformer block whose input reaches the rest of the network through q, k and v alone.

    This is what the analytic attack of the APRIL paper needs: with a norm or a residual around the
    attention its equation does not hold. The MLP keeps its norm and residual, which do not matter
    to it. No published accuracy is that of such a network.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.attn = block.attn
        self.norm2 = block.norm2
        self.mlp = block.mlp
        self.ls2 = block.ls2
        self.drop_path1 = nn.Identity()
        self.drop_path2 = block.drop_path2

    def forward(
        self, x: Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        more = {"is_causal": True} if is_causal else {}
        x = self.attn(x, attn_mask=attn_mask, **more)
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


def bare(block: nn.Module) -> BareBlock:
    """The block without norm and residual around its attention, with the same weights."""
    if isinstance(block, BareBlock):
        return block
    if type(block) is not Block:
        raise UnsupportedModelError(
            f"first_block='bare' is for timm's Block; this model's is a {type(block).__name__}"
        )
    return BareBlock(block)
