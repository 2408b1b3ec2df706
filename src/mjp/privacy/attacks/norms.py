"""Norms that can be differentiated twice under `torch.func.vmap`."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


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
    return _normed(input, tuple(range(-len(normalized_shape), 0)), eps, weight, bias)


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
    scale, shift = (one if one is None else one.reshape(shape) for one in (weight, bias))
    return _normed(input, others, eps, scale, shift)


def _normed(
    values: Tensor, dims: tuple[int, ...], eps: float, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    centred = values - values.mean(dim=dims, keepdim=True)
    found = centred * (centred.square().mean(dim=dims, keepdim=True) + eps).rsqrt()
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


_WRITTEN_OUT: dict[Callable[..., Any], Callable[..., Any]] = {
    F.layer_norm: layer_norm,
    F.batch_norm: batch_norm,
}
