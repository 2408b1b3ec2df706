"""A last block that computes only the tokens that the head reads."""

from typing import Any

import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F


class PrefixBlock(Block):
    """timm's block that reads all tokens and, in training, gives the first few alone.

    These are the same as the whole block's, and so is every gradient: the other tokens of a last
    block are thrown away by a head that reads the class token. Outside of training it is timm's
    block: who looks at a trained model may look at any token.
    """

    given: int

    def forward(
        self, x: Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        if not self.training or attn_mask is not None or is_causal:
            return super().forward(x, attn_mask=attn_mask, is_causal=is_causal)
        first = x[:, : self.given]
        first = first + self.drop_path1(self.ls1(self._attention(self.norm1(x))))
        return first + self.drop_path2(self.ls2(self.mlp(self.norm2(first))))

    def _attention(self, x: Tensor) -> Tensor:
        """timm's attention with the queries of the first tokens."""
        attn: Any = self.attn
        weight, bias, dim = attn.qkv.weight, attn.qkv.bias, attn.attn_dim
        biases = (None, None) if bias is None else (bias[:dim], bias[dim:])
        shape = (len(x), -1, attn.num_heads, attn.head_dim)
        queries = F.linear(x[:, : self.given], weight[:dim], biases[0])
        keys, values = F.linear(x, weight[dim:], biases[1]).chunk(2, dim=-1)
        q, k, v = (one.reshape(shape).transpose(1, 2) for one in (queries, keys, values))
        dropout = attn.attn_drop.p if attn.training else 0.0
        out = F.scaled_dot_product_attention(attn.q_norm(q), attn.k_norm(k), v, dropout_p=dropout)
        out = attn.norm(out.transpose(1, 2).flatten(2))
        return attn.proj_drop(attn.proj(out))


def give_prefix_only(model: nn.Module) -> None:
    """Lets a ViT's last block compute, in training, what the head reads and no more.

    For whoever asks the model for logits and nothing else while it trains. Models that pool
    otherwise, or have other blocks, are left alone.
    """
    if getattr(model, "global_pool", None) != "token":
        return
    *_, block = getattr(model, "blocks", None) or [None]
    if type(block) is not Block or type(block.attn) is not Attention or _is_gated(block):
        return
    block.__class__ = PrefixBlock
    block.given = 1 if getattr(model, "dist_token", None) is None else 2


def _is_gated(block: Any) -> bool:
    return getattr(block.attn, "gate", None) is not None
