"""`Imitation`: what a client would have shared, had its images been these; differentiable."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.func import grad, replace_all_batch_norm_modules_, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from mjp.jigsaw import JigsawPlan
from mjp.privacy.public import PublicModel
from mjp.privacy.sharing import as_targets, client_loss
from mjp.privacy.update import SharedUpdate


class Imitation:
    """A client as the attacker imagines it: the public model, and the protocol of an update.

    Args:
        update: what the client sent; its parameters, local steps and losses are imitated.
    """

    def __init__(self, public: PublicModel, update: SharedUpdate) -> None:
        self.public = replace(public, model=_still(public.model))
        self.names = matched_names(update)
        # Of several steps at an unknown rate the first is all that can be imitated.
        self._steps = update.local_steps if update.learning_rate is not None else 1
        self._rate = update.learning_rate or 0.0
        self._localization_weight = update.localization_weight
        parameters = dict(self.public.model.named_parameters())
        trained = [name for name, one in parameters.items() if one.requires_grad]
        wanted = self.names if self._steps == 1 else [*{*self.names, *trained}]
        self._start = {name: parameters[name].detach() for name in wanted}

    @property
    def dtype(self) -> torch.dtype:
        return next(self.public.model.parameters()).dtype

    def gradients(
        self,
        images: Float[Tensor, "candidates batch 3 height width"],
        labels: Shaped[Tensor, "candidates batch *classes"],
        masked: Bool[Tensor, "candidates patches"] | None,
    ) -> dict[str, Tensor]:
        """The gradient that each candidate batch gives, by name, all computed together.

        Args:
            images: normalised.
            labels: classes, or a probability of each.
            masked: the patches behind MJP's unknown embedding.
        """
        labels = as_targets(self.public, labels)
        dims = (0, 0, None if masked is None else 0)
        # The fused attention kernels cannot be differentiated twice.
        with sdpa_kernel(SDPBackend.MATH), WrittenOutNorms():
            return vmap(self._one, in_dims=dims)(images, labels, masked)

    def _one(self, images: Tensor, labels: Tensor, masked: Tensor | None) -> dict[str, Tensor]:
        plan = None
        if masked is not None:
            # Attention does not see the order of masked patches, so the attacker needs none.
            order = torch.arange(len(masked), device=masked.device).repeat(len(images), 1)
            plan = JigsawPlan(self.public.grid, masked.repeat(len(images), 1), order)
        weight = images.new_tensor(self._localization_weight)
        batch = {"images": images, "targets": labels, "localization_weight": weight}
        current = self._start
        found: list[dict[str, Tensor]] = []
        for step in range(self._steps):
            if step:
                rate, last = self._rate, found[-1]
                current = {name: current[name] - rate * last[name] for name in current}
            found.append(
                grad(client_loss)(
                    current,
                    self.public,
                    batch,
                    plan,
                    self._localization_weight,
                )
            )
        if len(found) == 1:
            return found[0]
        return {name: torch.stack([one[name] for one in found]).mean(dim=0) for name in self.names}


def matched_names(update: SharedUpdate) -> list[str]:
    """The parameters whose gradient depends on the images; the locator's does not."""
    return [name for name in update.gradients if not name.startswith("locator.")]


def _still(model: nn.Module) -> nn.Module:
    """A copy in at least single precision that draws no randomness and keeps no statistics."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.training:
            replace_all_batch_norm_modules_(module)
        else:
            module.training = False  # Not eval(), which would reach the batch norms inside.
    if next(model.parameters()).dtype in (torch.float16, torch.bfloat16):
        model = model.float()
    return model


class WrittenOutNorms(TorchFunctionMode):
    """Inside this context every layer norm and every batch norm of batch statistics is written out.

    At the level of functions, so that it reaches whatever module calls them. Under
    `torch.func.vmap`, torch's own rules for both take mean and deviation for constants when the
    gradient of the norm's weight is differentiated again: silently wrong, and for layer norm so
    are third derivatives, which local steps need. See pytorch/pytorch#175754 and
    pytorch/functorch#534; torch 2.15 has both.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _WRITTEN_OUT.get(func, func)(*args, **(kwargs or {}))


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """As `torch.nn.functional.layer_norm`."""
    found = _standardised(input, tuple(range(-len(normalized_shape), 0)), eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """As `torch.nn.functional.batch_norm`; of running statistics it is torch's own."""
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    others = tuple(dim for dim in range(input.dim()) if dim != 1)
    shape = (-1, *(1 for _ in others[1:]))
    found = _standardised(input, others, eps)
    found = found if weight is None else found * weight.reshape(shape)
    return found if bias is None else found + bias.reshape(shape)


def _standardised(values: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    centred = values - values.mean(dim=dims, keepdim=True)
    return centred * (centred.square().mean(dim=dims, keepdim=True) + eps).rsqrt()


_WRITTEN_OUT: dict[Callable[..., Any], Callable[..., Any]] = {
    F.layer_norm: layer_norm,
    F.batch_norm: batch_norm,
}
