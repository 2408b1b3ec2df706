"""`features_only=True`: a wrapped model that gives its feature maps, with a plan or without."""

from typing import Any

import torch
from jaxtyping import Float
from timm.layers import Format
from timm.models._features import FeatureGetterNet
from torch import Tensor

from mjp.jigsaw import JigsawPlan
from mjp.models.backbone import check_images


class MJPFeatures(FeatureGetterNet):
    """timm's feature extractor, whose forward call also takes a plan."""

    def forward(self, x: Tensor, plan: JigsawPlan | None = None) -> list[Tensor]:
        """Feature maps in timm's own layout for the family: NHWC for Swin, NCHW for others."""
        check_images(x)
        maps = self.model.forward_intermediates(
            x, indices=self.out_indices, norm=self.norm, intermediates_only=True, plan=plan
        )
        if self.output_fmt == Format.NHWC:
            return [one.permute(0, 2, 3, 1) for one in maps]
        return maps

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay, as they are called here."""
        return {f"model.{name}" for name in self.model.no_weight_decay()}

    def draw_plan(
        self, images: Float[Tensor, "batch chan height width"], generator: torch.Generator
    ) -> Any:
        """A plan for this batch by the model's configuration, or None."""
        return self.model.draw_plan(images, generator)

    def localization_loss(self, plan: JigsawPlan | None) -> Float[Tensor, ""]:
        """DAL of the model's position table."""
        return self.model.localization_loss(plan)
