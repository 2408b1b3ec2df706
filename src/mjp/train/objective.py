"""The module that training calls: a model with its losses, so that all of it is one graph."""

from contextlib import nullcontext
from typing import Any, Literal

import torch
from jaxtyping import Float
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn

from mjp.jigsaw import JigsawPlan
from mjp.models.vit import give_prefix_only


class Objective(nn.Module):
    """Images and targets to the loss terms; images alone to logits.

    Args:
        precision: bf16 runs the model under autocast; the losses are computed in single precision.
    """

    def __init__(self, model: Any, precision: Literal["fp32", "bf16"]) -> None:
        super().__init__()
        give_prefix_only(model)  # Only logits are asked for here.
        self.model = model
        self.precision = precision
        self.criterion = SoftTargetCrossEntropy()

    def forward(
        self,
        images: Float[Tensor, "batch chan height width"],
        targets: Float[Tensor, "batch classes"] | None = None,
        plan: JigsawPlan | None = None,
    ) -> Any:
        """Classification and localization loss; logits where there are no targets."""
        with self._autocast(images.device):
            logits = self.model(images, plan=plan)
            if targets is None:
                return logits.float()
            localization = self.model.localization_loss(plan)
        return self.criterion(logits.float(), targets), localization.float()

    def _autocast(self, device: torch.device) -> Any:
        if self.precision == "bf16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()
