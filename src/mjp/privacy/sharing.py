"""The client: computes what is shared from its images."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mjp.core.configuration import check_at_least, check_count
from mjp.core.errors import ConfigError
from mjp.jigsaw import JigsawPlan
from mjp.models.backbone import MJPBackbone, check_images, check_plan
from mjp.privacy.public import Loss, PublicModel, as_public, logits_of
from mjp.privacy.update import SharedUpdate

Inputs = dict[str, Tensor]
Labels = Tensor | Mapping[str, Tensor] | None
"""Classes of images, or all else that a task's batch has beside `images`, by name.

Entries without dimensions are of the whole batch, such as `localization_weight`.
"""


def share(
    model: nn.Module | PublicModel,
    images: Float[Tensor, "batch 3 height width"],
    labels: Labels,
    plan: JigsawPlan | None = None,
    *,
    local_steps: int = 1,
    learning_rate: float | None = None,
    localization_weight: float = 0.0,
    loss: Loss | None = None,
) -> SharedUpdate:
    """What a client sends after training on these images: gradients of the mean loss.

    The model stays as it is, its gradients too.

    Args:
        images: as the model takes them, normalised.
        plan: the client's jigsaw; a model without MJP gets the shuffled pixels.
        local_steps: steps of gradient descent on the batch before anything is sent; what is sent
            is then the sum of them over learning rate and steps, a mean gradient.
        localization_weight: λ of the localization loss that an MJP client adds; beside a `loss`,
            the λ that is in it.
        loss: what is minimised, as `task.loss`; by default cross entropy, and λ times the
            localization loss.
    """
    public = as_public(model, loss)
    batch = _batch(public, images, labels, plan, localization_weight)
    check_count("local_steps", local_steps)
    if local_steps > 1 and learning_rate is None:
        raise ConfigError("several local steps need a learning_rate, such as 0.01")
    if learning_rate is not None:
        check_at_least("learning_rate", learning_rate, 0.0)
    start = _trained(public.model)
    current = dict(start)
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for _ in range(local_steps):
        step = grad(client_loss)(current, public, batch, plan, localization_weight)
        total = {name: total[name] + step[name] for name in total}
        if local_steps > 1:
            current = {name: current[name] - learning_rate * step[name] for name in current}
    return SharedUpdate(
        {name: value / local_steps for name, value in total.items()},
        batch=len(images),
        local_steps=local_steps,
        learning_rate=learning_rate,
        localization_weight=localization_weight,
    )


def share_each(
    model: nn.Module | PublicModel,
    images: Float[Tensor, "batch 3 height width"],
    labels: Labels,
    plan: JigsawPlan | None = None,
    *,
    localization_weight: float = 0.0,
    loss: Loss | None = None,
    at_a_time: int = 16,
) -> Iterator[SharedUpdate]:
    """What as many clients send as there are images, each with one image; computed together."""
    public = as_public(model, loss)
    batch = _batch(public, images, labels, plan, localization_weight)
    parameters = _trained(public.model)

    def gradients(one: Inputs) -> Inputs:
        alone = {name: value[None] if batch[name].dim() else value for name, value in one.items()}
        own = None
        if plan is not None:
            own = JigsawPlan(plan.grid, alone.pop("plan.masked"), alone.pop("plan.source"))
        return grad(client_loss)(parameters, public, alone, own, localization_weight)

    if plan is not None and plan.pixels is not None:
        batch["images"], plan = plan.apply(images), None
    if plan is not None:
        batch |= {"plan.masked": plan.masked, "plan.source": plan.source}
    dims = {name: 0 if value.dim() else None for name, value in batch.items()}
    for start in range(0, len(images), at_a_time):
        part = slice(start, start + at_a_time)
        # The fused attention kernels have no rule for one gradient per image.
        with sdpa_kernel(SDPBackend.MATH):
            some = {name: one[part] if one.dim() else one for name, one in batch.items()}
            stacked = vmap(gradients, in_dims=(dims,), randomness="different")(some)
        for place in range(len(images[part])):
            yield SharedUpdate(
                {name: value[place] for name, value in stacked.items()},
                localization_weight=localization_weight,
            )


def labels_of(labels: Labels, part: slice) -> Labels:
    """The labels of some of the images."""
    if labels is None or isinstance(labels, Tensor):
        return None if labels is None else labels[part]
    return {name: value[part] if value.dim() else value for name, value in labels.items()}


def client_loss(
    parameters: dict[str, Tensor],
    public: PublicModel,
    batch: Inputs,
    plan: JigsawPlan | None,
    localization_weight: float,
) -> Tensor:
    """The client's loss as a function of the parameters."""
    client = _Client(public, localization_weight)
    named = {f"public_model.{name}": value for name, value in parameters.items()}
    return functional_call(client, named, (batch, plan))


class _Client(nn.Module):
    """Forward pass and loss in one module, so that both can be called with other parameters."""

    def __init__(self, public: PublicModel, localization_weight: float) -> None:
        super().__init__()
        self.public_model = public.model
        self._loss = public.loss
        self._weight = localization_weight

    def forward(self, batch: Inputs, plan: JigsawPlan | None) -> Tensor:
        model: Any = self.public_model
        if self._loss is not None:
            return self._loss(model, batch, plan)["loss"]
        loss = nn.functional.cross_entropy(
            logits_of(model, batch["images"], plan), batch["targets"]
        )
        if self._weight and isinstance(model, MJPBackbone):
            loss = loss + self._weight * model.localization_loss(plan)
        return loss


def _trained(model: nn.Module) -> dict[str, Tensor]:
    """What is trained; the locator only where its loss is part of the client's."""
    return {name: one.detach() for name, one in model.named_parameters() if one.requires_grad}


def as_targets(public: PublicModel, labels: Tensor) -> Tensor:
    """Labels as the loss takes them: a task's has a probability for each class."""
    if public.loss is None or labels.is_floating_point():
        return labels
    dtype = next(public.model.parameters()).dtype
    return nn.functional.one_hot(labels, public.num_classes()).to(dtype)


def _batch(
    public: PublicModel, images: Tensor, labels: Labels, plan: JigsawPlan | None, weight: float
) -> Inputs:
    """Images and labels as a loss takes them, once they are found to fit."""
    check_images(images)
    check_plan(plan)
    if tuple(images.shape[2:]) != public.size:
        raise ConfigError(
            f"the images are of {tuple(images.shape[2:])} pixels, the model takes {public.size}"
        )
    if public.loss is None and not (
        isinstance(labels, Tensor)
        and labels.shape == images.shape[:1]
        and not labels.is_floating_point()
    ):
        shape = tuple(labels.shape) if isinstance(labels, Tensor) else None
        raise ConfigError(f"{len(images)} images need as many whole numbers as labels, got {shape}")
    if isinstance(labels, Tensor):
        labels = {"targets": as_targets(public, labels)}
    for name, values in (labels or {}).items():
        if values.dim() and len(values) != len(images):
            raise ConfigError(f"{len(images)} images need as many {name}, got {len(values)}")
    return {"localization_weight": images.new_tensor(weight), **(labels or {}), "images": images}
