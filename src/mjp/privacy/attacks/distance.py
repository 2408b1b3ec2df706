"""`Target`: gradients to come to, and how far others are from them."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Objective = Literal["l2", "cosine"]
Balance = Literal["whole", "layers"]


class Target:
    """Gradients of some observations, each parameter's given as rows.

    Args:
        objective: `l2` is the squared difference relative to the target's own square; `cosine` is
            1 - cosine, computed as half the squared difference of unit vectors, which single
            precision resolves finer.
        balance: `whole` compares all rows in one; `layers` each by itself, and takes the mean over
            a parameter's rows, then over parameters.
    """

    def __init__(
        self,
        gradients: list[Float[Tensor, "observations _ _"]],
        objective: Objective,
        balance: Balance,
    ) -> None:
        self._objective, self._balance = objective, balance
        self._gradients = [one[:, None] for one in gradients]
        self._rows = [one.shape[1] for one in gradients]
        self._tiny = torch.finfo(gradients[0].dtype).tiny ** 0.5
        sizes = self._sizes(self._gradients)
        shares = torch.cat([sizes.new_full((count,), 1 / count) for count in self._rows])
        # A parameter that the client did not use has no size to compare with: it does not count.
        weights = shares * (sizes > 0)
        self._weights = weights / weights.sum(dim=2, keepdim=True).clamp(min=self._tiny)
        if balance == "whole":
            self._weights = torch.ones_like(sizes)
        self._scales = self._scaled(sizes)
        if objective == "cosine":
            split = self._split(self._scales)
            units = zip(self._gradients, split, strict=True)
            self._gradients = [one / scale for one, scale in units]

    def distance(
        self, found: list[Float[Tensor, "observations restarts _ _"]]
    ) -> Float[Tensor, "observations restarts"]:
        """How far these are from the target; 0 where they are equal."""
        if self._objective == "l2":
            apart = self._sizes(
                [one - its for one, its in zip(found, self._gradients, strict=True)]
            )
            return (self._weights * (apart / self._scales).square()).sum(dim=2)
        scales = self._scaled(self._sizes(found))
        split = self._split(scales)
        units = [one / scale for one, scale in zip(found, split, strict=True)]
        apart = self._sizes([one - its for one, its in zip(units, self._gradients, strict=True)])
        return (self._weights * apart.square()).sum(dim=2) / 2

    def _sizes(self, gradients: list[Tensor]) -> Float[Tensor, "observations restarts rows"]:
        return torch.cat([torch.linalg.vector_norm(one, dim=3) for one in gradients], dim=2)

    def _scaled(self, sizes: Tensor) -> Tensor:
        """What to divide each row by; never 0."""
        if self._balance == "whole":
            sizes = torch.linalg.vector_norm(sizes, dim=2, keepdim=True).expand_as(sizes)
        return sizes.clamp(min=self._tiny)

    def _split(self, scales: Tensor) -> tuple[Tensor, ...]:
        """The rows' scales by parameter, as they divide its gradient."""
        return scales[..., None].split(self._rows, dim=2)
