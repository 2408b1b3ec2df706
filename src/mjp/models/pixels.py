"""Backbones whose jigsaw moves the pixels of the input image, in patches of a configured size."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.jigsaw import JigsawPlan, PatchGrid
from mjp.models.backbone import MJPBackbone, check_images, check_plan
from mjp.models.config import MJPConfig


class PixelJigsaw(MJPBackbone):
    """For a backbone that can see where a patch lies without being told its position."""

    def _adopt(self, config: MJPConfig) -> None:
        if getattr(config, "first_block", "as_built") == "bare":
            raise ConfigError("first_block='bare' is for ViT, whose blocks are all alike")
        super()._adopt(config)

    def patch_shape(self) -> tuple[int, int]:
        return self.mjp_config.jigsaw_patch, self.mjp_config.jigsaw_patch

    def grid_of(self, images: Float[Tensor, "batch chan height width"]) -> PatchGrid:
        return PatchGrid.of(images.shape[2], images.shape[3], self.patch_shape())

    def forward(
        self,
        x: Float[Tensor, "batch chan height width"],
        *args: Any,
        plan: JigsawPlan | None = None,
        **kwargs: Any,
    ) -> Any:
        """timm's forward pass; with a plan, of the jigsaw."""
        check_images(x)
        check_plan(plan, args)
        return self.forward_head(self.forward_features(x, *args, plan=plan, **kwargs))

    def forward_features(
        self, x: Tensor, *args: Any, plan: JigsawPlan | None = None, **kwargs: Any
    ) -> Tensor:
        check_plan(plan, args)
        return super().forward_features(self._shuffled(x, plan), *args, **kwargs)

    def forward_intermediates(
        self, x: Tensor, *args: Any, plan: JigsawPlan | None = None, **kwargs: Any
    ) -> Any:
        check_plan(plan, args)
        return super().forward_intermediates(self._shuffled(x, plan), *args, **kwargs)

    def _shuffled(self, images: Tensor, plan: JigsawPlan | None) -> Tensor:
        if plan is None:
            return images
        plan.check_fits(images.shape[0], self.grid_of(images), images.device)
        return plan.apply(images)
