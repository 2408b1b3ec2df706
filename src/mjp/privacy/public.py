"""`PublicModel`: the model that every client has, and so the attacker."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from mjp.core.errors import ConfigError
from mjp.jigsaw import JigsawPlan, PatchGrid
from mjp.models.backbone import MJPBackbone
from mjp.models.subject import image_size_of
from mjp.models.surface import Surface, SurfaceNames, find_surface

Loss = Callable[[nn.Module, dict[str, Tensor], JigsawPlan | None], dict[str, Tensor]]
"""What clients minimise: of the model, a batch and its jigsaw; the entry `loss`."""


@dataclass(frozen=True, eq=False)
class PublicModel:
    """Architecture, weights, input format and loss of the model that is trained: all of it public.

    Args:
        surface: where patch embedding, positions and classifier are.
        size: height and width of its images.
        mean, std: how pixels in [0, 1] are normalised, for each channel.
        loss: what clients minimise; None for that of a classifier.
    """

    model: Any
    surface: Surface
    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    loss: Loss | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        *,
        names: SurfaceNames | None = None,
        size: tuple[int, int] | None = None,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
        loss: Loss | None = None,
    ) -> "PublicModel":
        """The model as it describes itself, but for what is given.

        Any `nn.Module` with a patch embedding will do; what is not found by itself is named.
        """
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be a torch module, got {type(model).__name__}")
        told = resolve_model_data_config(model) if hasattr(model, "pretrained_cfg") else {}
        size = size or image_size_of(model) or tuple(told.get("input_size", ())[1:]) or None
        if size is None:
            raise ConfigError(
                f"this {type(model).__name__} does not say what size its images are; give size="
            )
        if not all(0 < value < math.inf for value in std or ()):
            raise ConfigError(f"std must be three numbers above 0, got {std}")
        if not all(math.isfinite(value) for value in mean or ()):
            raise ConfigError(f"mean must be three numbers, got {mean}")
        return cls(
            model=model,
            surface=find_surface(model, size, names),
            size=(int(size[0]), int(size[1])),
            mean=tuple(mean or told.get("mean", (0.5, 0.5, 0.5))),
            std=tuple(std or told.get("std", (0.5, 0.5, 0.5))),
            loss=loss,
        )

    @property
    def grid(self) -> PatchGrid:
        return self.surface.grid

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def normalized(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch 3 height width"]:
        """Pixels in [0, 1] as the model takes them."""
        mean, std = self._colours(images)
        return (images - mean) / std

    def pixels(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch 3 height width"]:
        """What the model takes, as pixels; in [0, 1] where they are of a picture."""
        mean, std = self._colours(images)
        return images * std + mean

    def _colours(self, images: Tensor) -> Tensor:
        both = torch.tensor((self.mean, self.std), dtype=images.dtype, device=images.device)
        return both[:, None, :, None, None]

    def split(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch patches values"]:
        """Images as the patch embedding reads them, a row for each patch."""
        patches = self.grid.split(images)
        if self.surface.layout == "hwc":
            patches = patches.permute(0, 1, 3, 4, 2)
        return patches.flatten(2)

    def cells(
        self, patches: Float[Tensor, "batch patches values"]
    ) -> Float[Tensor, "batch patches 3 high wide"]:
        """Rows that the patch embedding reads, as small pictures."""
        high, wide = self.surface.patch
        if self.surface.layout == "hwc":
            return patches.unflatten(2, (high, wide, 3)).permute(0, 1, 4, 2, 3)
        return patches.unflatten(2, (3, high, wide))

    def join(
        self, patches: Float[Tensor, "batch patches values"]
    ) -> Float[Tensor, "batch 3 height width"]:
        """The inverse of `split`."""
        return self.grid.join(self.cells(patches))

    def logits(
        self, images: Tensor, plan: JigsawPlan | None = None
    ) -> Float[Tensor, "batch classes"]:
        """The model's answers to normalised images, or to their jigsaw."""
        return logits_of(self.model, images, plan)

    @torch.no_grad()
    def features(
        self, images: Float[Tensor, "batch 3 height width"], at_a_time: int = 64
    ) -> Float[Tensor, "batch dim"]:
        """What the model sees in normalised images; its logits where it tells no more."""
        found = []
        for part in images.split(at_a_time):
            if hasattr(self.model, "forward_features") and hasattr(self.model, "forward_head"):
                tokens = self.model.forward_features(part)
                found.append(self.model.forward_head(tokens, pre_logits=True))
            else:
                found.append(self.logits(part))
        return torch.cat(found)

    @torch.no_grad()
    def num_classes(self) -> int:
        """How many classes the model tells apart."""
        dtype = next(self.model.parameters()).dtype
        image = torch.zeros(1, 3, *self.size, dtype=dtype, device=self.device)
        return self.logits(image).shape[1]

    @torch.no_grad()
    def predicted(
        self, images: Float[Tensor, "batch 3 height width"], at_a_time: int = 32
    ) -> Int64[Tensor, " batch"]:
        """The classes that the model takes pictures for, of pixels in [0, 1]."""
        parts = images.split(at_a_time)
        return torch.cat([self.logits(self.normalized(part)).argmax(dim=1) for part in parts])


def as_public(model: nn.Module | PublicModel, loss: Loss | None = None) -> PublicModel:
    """The model as a public one, if it is not yet.

    Args:
        loss: in place of its own, if it is given.
    """
    public = model if isinstance(model, PublicModel) else PublicModel.of(model)
    return public if loss is None else replace(public, loss=loss)


def logits_of(
    model: Any, images: Tensor, plan: JigsawPlan | None = None
) -> Float[Tensor, "batch classes"]:
    """A model's answers to normalised images, or to their jigsaw."""
    if plan is not None and isinstance(model, MJPBackbone):
        found = model(images, plan=plan)
    else:
        found = model(images if plan is None else plan.apply(images))
    return getattr(found, "logits", found)  # transformers' models give an object.
