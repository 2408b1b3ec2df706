"""`Subject`: a model to be measured, what it is shown, and how a jigsaw reaches it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from timm.data import resolve_model_data_config
from timm.layers import to_2tuple
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.core.records import Scalar
from mjp.core.team import Precision
from mjp.data.batch import ImageFormat
from mjp.data.decoding import View
from mjp.jigsaw import JigsawPlan, PatchGrid
from mjp.models.backbone import MJPBackbone
from mjp.models.facts import model_facts

JigsawMode = Literal["auto", "pixels"]
DEFAULT_PATCH = 16  # Side of the patches that move, for models that have no patches of their own.


def run_once(
    model: Any, images: Float[Tensor, "batch 3 height width"], plan: JigsawPlan | None
) -> tuple[Tensor, Tensor]:
    """Logits, and the feature before the classifier; the plan is for a model that takes one."""
    tokens = model.forward_features(images, **({} if plan is None else {"plan": plan}))
    return model.forward_head(tokens), model.forward_head(tokens, pre_logits=True)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model to be measured."""

    label: str
    model: Any
    view: View
    inputs: ImageFormat
    patch: tuple[int, int]
    plans_inside: bool  # Whether the model takes the plan itself; else the pixels are moved before.
    identity: dict[str, Scalar]
    precision: Precision = "fp32"
    runner: Callable[..., tuple[Tensor, Tensor]] = run_once

    @classmethod
    def of(
        cls,
        label: str,
        model: Any,
        *,
        size: tuple[int, int] | None = None,
        crop: float | None = None,
        patch: int | None = None,
        jigsaw: JigsawMode = "auto",
        precision: Precision = "fp32",
    ) -> "Subject":
        """The model as it describes itself, but for what is given.

        Args:
            jigsaw: `auto` gives an MJP model the plan; `pixels` moves the pixels for every model.
        """
        described = resolve_model_data_config(model)
        channels, *sides = described["input_size"]
        if channels != 3:
            raise ConfigError(f"{label} takes images of {channels} channels, not 3")
        view = View(
            size=size or image_size_of(model) or tuple(sides),
            crop=float(described["crop_pct"] if crop is None else crop),
            interpolation=described["interpolation"],
            mode=described.get("crop_mode") or "center",
        )
        inside = isinstance(model, MJPBackbone) and jigsaw == "auto"
        if inside and patch is not None and (patch, patch) != tuple(model.patch_shape()):
            raise ConfigError(
                f"{label} moves patches of {model.patch_shape()}; --patch {patch} is for a jigsaw "
                "in pixel space: add --jigsaw pixels"
            )
        return cls(
            label=label,
            model=model,
            view=view,
            inputs=ImageFormat(view.size, tuple(described["mean"]), tuple(described["std"])),
            patch=(patch, patch) if patch is not None else _patch_of(model),
            plans_inside=inside,
            identity=model_facts(label, model),
            precision=precision,
        )

    @property
    def grid(self) -> PatchGrid:
        """The patches that a jigsaw moves; an error where the images cannot be cut into such."""
        return PatchGrid.of(*self.view.size, self.patch)

    @property
    def jigsaw(self) -> str:
        """How a jigsaw reaches the model, in words."""
        positions = self.model.mjp_config.positions if self.plans_inside else "own"
        if positions == "none":
            return "no positions"
        unknown = positions == "unknown" and self.model.position_table() is not None
        return "unknown positions" if unknown else "pixels"

    def facts(self) -> dict[str, Scalar]:
        """What of the subject decides its numbers, for records."""
        return {
            **self.identity,
            "jigsaw": self.jigsaw,
            "patch": "x".join(map(str, self.patch)),
            "image_size": "x".join(map(str, self.view.size)),
            "crop": self.view.crop,
            "interpolation": self.view.interpolation,
            "precision": self.precision,
        }

    def on(self, device: torch.device, *, compiled: bool = False) -> "Subject":
        """The subject with its model on a device, ready to run."""
        runner = torch.compile(self.runner) if compiled else self.runner
        return replace(self, model=self.model.to(device), runner=runner)

    def normalized(
        self, images: UInt8[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch 3 height width"]:
        """Levels as the model takes them."""
        return self.inputs.normalize(images)

    def answers(
        self, images: Float[Tensor, "batch 3 height width"], plan: JigsawPlan | None = None
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch dim"]]:
        """Logits, and the feature before the classifier, of the images or of their jigsaw."""
        if plan is not None and not self.plans_inside:
            images, plan = plan.apply(images), None
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            logits, feature = self.runner(self.model, images, plan)
        return logits.float(), feature.float()

    def logits(
        self, images: UInt8[Tensor, "batch 3 height width"], batch: int, tell: Callable[[int], None]
    ) -> Float[Tensor, "batch classes"]:
        """Logits of images in levels, so many at a time; tells how many are done."""
        logits = []
        for part in images.split(batch):
            logits.append(self.answers(self.normalized(part))[0])
            tell(len(part))
        return torch.cat(logits)


def by_view(subjects: Iterable[Subject]) -> dict[View, list[Subject]]:
    """The subjects that are shown the same cut of a picture, so that it is decoded once."""
    groups: dict[View, list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(subject.view, []).append(subject)
    return groups


def image_size_of(model: Any) -> tuple[int, int] | None:
    """Height and width of the images that a model was made for, as far as it says."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    for place in (model, getattr(model, "config", None)):
        size = size or getattr(place, "img_size", None) or getattr(place, "image_size", None)
    return None if size is None else _two(size)


def _patch_of(model: Any) -> tuple[int, int]:
    if isinstance(model, MJPBackbone):
        return model.patch_shape()
    side = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    # Only where patches stay patches through the model; a Swin's 4x4 tokens are merged.
    return _two(DEFAULT_PATCH if side is None or getattr(model, "blocks", None) is None else side)


def _two(sides: Any) -> tuple[int, int]:
    high, wide = to_2tuple(sides)
    return int(high), int(wide)
