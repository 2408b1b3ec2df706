"""Swin and ResNet: the jigsaw moves pixels; absolute positions only where a Swin is given them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.models.resnet import ResNet
from timm.models.swin_transformer import SwinTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from mjp.core.errors import ConfigError
from mjp.jigsaw import JigsawPlan, PatchGrid
from mjp.models.backbone import MJPBackbone, PositionTables, Rebound


class MJPSwinTransformer(PositionTables, SwinTransformer):
    """timm's SwinTransformer with MJP.

    With `absolute_positions="added"`, every 4x4 token gets a learned embedding of its place, and
    tokens inside masked patches get the unknown one instead.
    """

    timm_class = SwinTransformer
    timm_modules = ("swin_transformer",)
    family = "Swin"
    num_feature_maps = 4
    added_names = (*MJPBackbone.added_names, "pos_embed")

    def _prepare_positions(self) -> None:
        config = self.mjp_config
        if config.positions in ("none", "indexed"):
            raise ConfigError(
                f"positions={config.positions!r} is for ViT; a Swin takes 'unknown' or 'own'"
            )
        self.pos_embed = None
        if config.absolute_positions == "added":
            token_side = max(self.patch_embed.patch_size)
            if config.jigsaw_patch % token_side:
                raise ConfigError(
                    f"jigsaw_patch={config.jigsaw_patch} would cut through this Swin's "
                    f"{token_side}x{token_side} tokens; use a multiple of {token_side}"
                )
            weight = self.patch_embed.proj.weight
            empty = weight.new_empty(1, self.patch_embed.num_patches, weight.shape[0])
            self.pos_embed = nn.Parameter(empty)

    def fixed_grid(self) -> PatchGrid | None:
        if not self.patch_embed.strict_img_size:
            return None
        height, width = self.patch_embed.img_size
        return PatchGrid.of(height, width, self.patch_shape())

    def timm_arguments(self) -> dict[str, Any]:
        first = [stage.blocks[0] for stage in self.layers]
        windows = [list(block.window_size) for block in first]
        side = windows[0][0]
        return {
            "img_size": list(self.patch_embed.img_size),
            "patch_size": max(self.patch_embed.patch_size),
            "in_chans": self.patch_embed.proj.in_channels,
            "num_classes": self.num_classes,
            "embed_dim": self.embed_dim,
            "depths": [len(stage.blocks) for stage in self.layers],
            "num_heads": [block.attn.num_heads for block in first],
            "window_size": side if windows == [[side, side]] * len(windows) else windows,
            "strict_img_size": self.patch_embed.strict_img_size,
            "always_partition": first[0].always_partition,
            "drop_rate": self.head.drop.p,
            "attn_drop_rate": first[0].attn.attn_drop.p,
            "proj_drop_rate": first[0].attn.proj_drop.p,
            "drop_path_rate": getattr(self.layers[-1].blocks[-1].drop_path1, "drop_prob", 0.0),
        }

    def fit_weights(self, state: dict[str, Tensor], grid: PatchGrid | None) -> Mapping[str, Tensor]:
        fitted: dict[str, Tensor] = checkpoint_filter_fn(state, self)
        self.resize_table(fitted, "pos_embed", grid)
        return fitted

    def prepare(self, images: Tensor, plan: JigsawPlan | None) -> tuple[Any, Tensor]:
        model, images = super().prepare(images, plan)
        if self.pos_embed is not None:
            model = Rebound(self, "patch_embed", partial(self._embed, plan=plan))
        return model, images

    def _embed(self, images: Tensor, plan: JigsawPlan | None) -> Tensor:
        x = self.patch_embed(images)
        fine = PatchGrid(x.shape[1], x.shape[2])
        table = self.resample(self.pos_embed, self.patch_embed.grid_size, (fine.rows, fine.cols))
        if plan is not None and self.unknown_position is not None:
            masked = plan.grid.mask_on(fine, plan.masked)
            table = torch.where(masked[:, :, None], self.unknown_position, table)
        return x + table.reshape(-1, fine.rows, fine.cols, x.shape[-1])


class MJPResNet(MJPBackbone, ResNet):
    """timm's ResNet with the jigsaw."""

    timm_class = ResNet
    timm_modules = ("resnet",)
    family = "ResNet"
    num_feature_maps = 5

    def _prepare_positions(self) -> None:
        config = self.mjp_config
        if config.absolute_positions == "added" or config.positions in ("none", "indexed"):
            raise ConfigError(
                "a ResNet has no position embeddings to add, remove or index; only ratio, shape, "
                "pixels and jigsaw_patch act on it"
            )

    def timm_arguments(self) -> dict[str, Any]:
        stem = self.conv1 if isinstance(self.conv1, nn.Conv2d) else self.conv1[0]
        return {
            "in_chans": stem.in_channels,
            "num_classes": self.num_classes,
            "global_pool": self.global_pool.pool_type,
            "drop_rate": self.drop_rate,
        }


def use_small_stem(model: ResNet) -> None:
    """Makes a ResNet halve its images once before the first stage, by a 3x3 convolution alone."""
    first = next(model.conv1.parameters())
    stem = nn.Conv2d(model.in_chans, model.bn1.num_features, 3, stride=2, padding=1, bias=False)
    model.conv1 = stem.to(first.device, first.dtype)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    for feature in model.feature_info[1:]:  # The first is the stem's own, before pooling.
        feature["reduction"] //= 2
