"""The ViT and DeiT family of timm: absolute positions, one token per patch."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from timm.layers import Attention, PatchEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn
from torch.nn import functional as F

from mjp.core.errors import ConfigError, UnsupportedModelError
from mjp.jigsaw import JigsawPlan, PatchGrid
from mjp.models.backbone import PositionTables, Rebound, check_images, check_plan


class _ViTPositions(PositionTables):
    """Unknown positions through timm's one seam for positions, `_pos_embed`."""

    timm_modules = ("vision_transformer", "deit")
    family = "ViT and DeiT"
    blocks: Any
    index_embed: nn.Parameter | None

    def _prepare_positions(self) -> None:
        if type(self.patch_embed) is not PatchEmbed or self.patch_embed.grid_size is None:
            raise UnsupportedModelError(
                f"this model embeds its patches with a {type(self.patch_embed).__name__}; mjp "
                "supports ViTs that cut an image of a known size into patches (timm's PatchEmbed); "
                "for others, build it with img_size and dynamic_img_size=True"
            )
        config = self.mjp_config
        if config.absolute_positions == "added":
            raise ConfigError("absolute_positions='added' is for Swin; a ViT has a table anyway")
        self.index_embed = None
        if config.positions == "none":
            self.pos_embed = None
        elif self.pos_embed is None:
            raise ConfigError(
                "this ViT has no position table; use positions='none' with localization=None, or "
                "build it with pos_embed='learn'"
            )
        elif config.positions == "indexed":
            self.index_embed = nn.Parameter(torch.empty_like(self.pos_embed))
        if config.first_block == "bare":
            kind = type(self.blocks[0])
            if kind is not Block:
                raise UnsupportedModelError(
                    f"first_block='bare' is for timm's Block; this model's is a {kind.__name__}"
                )
            # A list of its own: the model that was wrapped keeps its blocks.
            self.blocks = nn.Sequential(BareBlock(self.blocks[0]), *self.blocks[1:])

    def patch_shape(self) -> tuple[int, int]:
        return self.patch_embed.patch_size

    def grid_of(self, images: Float[Tensor, "batch chan height width"]) -> PatchGrid:
        height, width = images.shape[2:]
        if self.patch_embed.dynamic_img_pad:
            return PatchGrid(*self.patch_embed.dynamic_feat_size((height, width)))
        return PatchGrid.of(height, width, self.patch_embed.patch_size)

    def fixed_grid(self) -> PatchGrid | None:
        return None if self.dynamic_img_size else self.position_grid()

    def timm_arguments(self) -> dict[str, Any]:
        arguments = {
            "img_size": list(self.patch_embed.img_size),
            "patch_size": list(self.patch_embed.patch_size),
            "in_chans": self.patch_embed.proj.in_channels,
            "num_classes": self.num_classes,
            "global_pool": self.global_pool,
            "embed_dim": self.embed_dim,
            "depth": len(self.blocks),
            "class_token": self.cls_token is not None,
            "no_embed_class": self.no_embed_class,
            "reg_tokens": self.num_reg_tokens,
            "fc_norm": not isinstance(self.fc_norm, nn.Identity),
            "dynamic_img_size": self.dynamic_img_size,
            "dynamic_img_pad": self.patch_embed.dynamic_img_pad,
            "drop_rate": self.head_drop.p,
            "pos_drop_rate": self.pos_drop.p,
            "patch_drop_rate": getattr(self.patch_drop, "prob", 0.0),
        }
        if (attention := getattr(self.blocks[0], "attn", None)) is not None:  # Not parallel ones.
            arguments |= {
                "num_heads": attention.num_heads,
                "qkv_bias": attention.qkv.bias is not None,
                "attn_drop_rate": attention.attn_drop.p,
                "proj_drop_rate": attention.proj_drop.p,
                "drop_path_rate": getattr(self.blocks[-1].drop_path1, "drop_prob", 0.0),
            }
        return arguments

    def fit_weights(self, state: dict[str, Tensor], grid: PatchGrid | None) -> Mapping[str, Tensor]:
        if self.pos_embed is None:
            state.pop("pos_embed", None)
        for name in ("pos_embed", "index_embed"):
            self.resize_table(state, name, grid)
        if "pos_embed" in state and state["pos_embed"].shape != self.pos_embed.shape:
            return state
        return checkpoint_filter_fn(state, self, adapt_layer_scale=True)

    def forward(self, x: Tensor, *args: Any, plan: JigsawPlan | None = None, **more: Any) -> Any:
        """timm's forward pass; with a plan, of the jigsaw with its unknown positions.

        Hooks on the blocks see tokens where they were, not where the plan puts them, whenever
        nothing in the output depends on it; `forward_features` always moves them.
        """
        check_images(x)
        check_plan(plan, args)
        if plan is None:
            return self.timm_class.forward(self, x, *args, **more)
        # Attention is permutation equivariant: where no token knows its place, moving the masked
        # tokens among each other changes neither logits nor any gradient, so it is left out. It
        # is not where the caller reads the order of the tokens or masks their attention.
        unseen = self.mjp_config.positions in ("unknown", "none") and self.global_pool != ""
        model, x = self.prepare(x, plan, move=bool(args or more) or not unseen)
        return self.forward_head(self.timm_class.forward_features(model, x, *args, **more))

    def prepare(
        self, images: Tensor, plan: JigsawPlan | None, move: bool = True
    ) -> tuple[Any, Tensor]:
        if plan is None:
            return self, images
        plan.check_fits(images.shape[0], self.grid_of(images), images.device)
        if plan.pixels is not None:
            images, move = plan.apply(images), False
        return Rebound(self, "_pos_embed", partial(self._pos_embed, plan=plan, move=move)), images

    def _pos_embed(
        self, x: Tensor, plan: JigsawPlan | None = None, move: bool = True
    ) -> Float[Tensor, "batch tokens dim"]:
        """timm's seam: puts class, distillation and register tokens in front, adds positions."""
        if plan is not None and move:
            x = plan.apply_to_tokens(x.flatten(1, -2)).reshape(x.shape)
        if self.pos_embed is None or (plan is None and self.index_embed is None):
            return super()._pos_embed(x)
        table = self.pos_embed if self.index_embed is None else self.pos_embed + self.index_embed
        if self.dynamic_img_size:
            table = self.resample(table, self.patch_embed.grid_size, (x.shape[1], x.shape[2]))
        x = x.flatten(1, -2)
        positions = table[:, self.num_placed_prefix :]
        if plan is not None and self.unknown_position is not None:
            # Equation of step 3: E_unk where the mask is set, the position's own elsewhere.
            positions = torch.where(plan.masked[:, :, None], self.unknown_position, positions)
        x = x + positions
        tokens = (self.cls_token, getattr(self, "dist_token", self.reg_token))
        prefix = [token.expand(x.shape[0], -1, -1) for token in tokens if token is not None]
        if prefix:
            first = torch.cat(prefix, dim=1)
            if self.num_placed_prefix:
                first = first + table[:, : self.num_placed_prefix]
            x = torch.cat([first, x], dim=1)
        return self.pos_drop(x)

    @property
    def num_placed_prefix(self) -> int:
        return 0 if self.no_embed_class else self.num_prefix_tokens


class MJPVisionTransformer(_ViTPositions, VisionTransformer):
    """timm's VisionTransformer with MJP."""

    timm_class = VisionTransformer


class MJPVisionTransformerDistilled(_ViTPositions, VisionTransformerDistilled):
    """timm's distilled DeiT with MJP."""

    timm_class = VisionTransformerDistilled


class BareBlock(nn.Module):
    """A transformer block whose input reaches the rest of the network through q, k and v alone.

    The analytic attack of the APRIL paper does not hold with a norm or residual around them.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.attn, self.norm2, self.mlp, self.ls2 = block.attn, block.norm2, block.mlp, block.ls2
        self.drop_path1, self.drop_path2 = nn.Identity(), block.drop_path2

    def forward(
        self, x: Tensor, attn_mask: torch.Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        more = {"is_causal": True} if is_causal else {}
        x = self.attn(x, attn_mask=attn_mask, **more)
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class PrefixBlock(Block):
    """timm's block that reads all tokens and, in training, gives the first few alone.

    Every gradient stays, where the head reads no others. Outside of training it is timm's.
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


def give_prefix_only(model: Any) -> None:
    """Lets a ViT's last block compute, in training, what the head reads; others are left alone."""
    *_, block = getattr(model, "blocks", None) or [None]
    plain = type(block) is Block and type(block.attn) is Attention
    if plain and getattr(block.attn, "gate", None) is None and model.global_pool == "token":
        block.__class__ = PrefixBlock
        block.given = 1 if getattr(model, "dist_token", None) is None else 2
