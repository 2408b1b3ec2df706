"""The client: computes what is shared from its images."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mjp.core.errors import ConfigError
from mjp.core.ranges import check_at_least, check_count
from mjp.jigsaw import JigsawPlan
from mjp.models.backbone import MJPBackbone, check_images, check_plan
from mjp.privacy.public import PublicModel, as_public
from mjp.privacy.update import SharedUpdate


def share(
    model: nn.Module | PublicModel,
    images: Float[Tensor, "batch 3 height width"],
    labels: Int64[Tensor, " batch"],
    plan: JigsawPlan | None = None,
    *,
    local_steps: int = 1,
    learning_rate: float | None = None,
    localization_weight: float = 0.0,
) -> SharedUpdate:
    """What a client sends after training on these images: gradients of the mean cross-entropy.

    The model stays as it is, its gradients too.

    Args:
        images: as the model takes them, normalised.
        plan: the client's jigsaw; a model without MJP gets the shuffled pixels.
        local_steps: steps of gradient descent on the batch before anything is sent; what is sent
            is then the sum of them over learning rate and steps, a mean gradient.
        localization_weight: λ of the localization loss that an MJP client adds.
    """
    public = as_public(model)
    _check(public, images, labels, plan)
    check_count("local_steps", local_steps)
    if local_steps > 1 and learning_rate is None:
        raise ConfigError("several local steps need a learning_rate, such as 0.01")
    if learning_rate is not None:
        check_at_least("learning_rate", learning_rate, 0.0)
    start = _parameters(public.model)
    current = dict(start)
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for _ in range(local_steps):
        one = grad(client_loss)(current, public, images, labels, plan, localization_weight)
        total = {name: total[name] + one[name] for name in total}
        if local_steps > 1:
            current = {name: current[name] - learning_rate * one[name] for name in current}
    gradients = {name: value / local_steps for name, value in total.items()}
    return SharedUpdate(
        gradients,
        batch=len(images),
        local_steps=local_steps,
        learning_rate=learning_rate,
        localization_weight=localization_weight,
    )


def share_each(
    model: nn.Module | PublicModel,
    images: Float[Tensor, "batch 3 height width"],
    labels: Int64[Tensor, " batch"],
    plan: JigsawPlan | None = None,
    *,
    localization_weight: float = 0.0,
    at_a_time: int = 16,
) -> Iterator[SharedUpdate]:
    """What as many clients send as there are images, each with one image; computed together."""
    public = as_public(model)
    _check(public, images, labels, plan)
    parameters = _parameters(public.model)

    def one(image: Tensor, label: Tensor, masked: Tensor | None, source: Tensor | None) -> Any:
        own = None
        if plan is not None:
            own = JigsawPlan(plan.grid, masked[None], source[None])  # type: ignore[index]
        return grad(client_loss)(
            parameters, public, image[None], label[None], own, localization_weight
        )

    if plan is not None and plan.pixels is not None:
        images, plan = plan.apply(images), None
    for start in range(0, len(images), at_a_time):
        part = slice(start, start + at_a_time)
        arguments = (
            images[part],
            labels[part],
            None if plan is None else plan.masked[part],
            None if plan is None else plan.source[part],
        )
        dims = tuple(None if one is None else 0 for one in arguments)
        # The fused attention kernels have no rule for one gradient per image.
        with sdpa_kernel(SDPBackend.MATH):
            stacked = vmap(one, in_dims=dims, randomness="different")(*arguments)
        for place in range(len(images[part])):
            yield SharedUpdate(
                {name: value[place] for name, value in stacked.items()},
                localization_weight=localization_weight,
            )


def client_loss(
    parameters: dict[str, Tensor],
    public: PublicModel,
    images: Tensor,
    labels: Tensor,
    plan: JigsawPlan | None,
    localization_weight: float,
) -> Tensor:
    """The client's loss as a function of the parameters."""
    client = _Client(public, localization_weight)
    named = {f"public_model.{name}": value for name, value in parameters.items()}
    return functional_call(client, named, (images, labels, plan))


class _Client(nn.Module):
    """Forward pass and loss in one module, so that both can be called with other parameters."""

    def __init__(self, public: PublicModel, localization_weight: float) -> None:
        super().__init__()
        self.public_model = public.model
        self._public = public
        self._weight = localization_weight

    def forward(self, images: Tensor, labels: Tensor, plan: JigsawPlan | None) -> Tensor:
        logits = self._public.logits(images, plan)
        loss = nn.functional.cross_entropy(logits, labels)
        if self._weight and isinstance(self.public_model, MJPBackbone):
            loss = loss + self._weight * self.public_model.localization_loss(plan)
        return loss


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    """What is trained; the locator only where its loss is part of the client's."""
    return {name: one.detach() for name, one in model.named_parameters() if one.requires_grad}


def _check(public: PublicModel, images: Tensor, labels: Tensor, plan: JigsawPlan | None) -> None:
    check_images(images)
    check_plan(plan)
    if tuple(images.shape[2:]) != public.size:
        raise ConfigError(
            f"the images are of {tuple(images.shape[2:])} pixels, the model takes {public.size}"
        )
    if labels.shape != images.shape[:1] or labels.is_floating_point():
        raise ConfigError(
            f"{len(images)} images need as many whole numbers as labels, got {tuple(labels.shape)}"
        )
