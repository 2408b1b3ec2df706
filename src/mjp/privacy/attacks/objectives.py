"""What a search minimises: how far gradients are from a target, and penalties on candidates.

Penalties are of pixels in [0, 1], so that a weight means the same for every model.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mjp.jigsaw import PatchGrid

Candidates = Float[Tensor, "candidates batch chan height width"]
Penalties = Float[Tensor, " candidates"]
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


def total_variation(pixels: Candidates) -> Penalties:
    """Mean absolute difference of neighbouring pixels, along rows plus along columns."""
    return sum(
        (pixels.diff(dim=dim).abs().flatten(1).mean(dim=1) for dim in (3, 4)),
        start=pixels.new_zeros(len(pixels)),
    )


def patch_borders(pixels: Candidates, grid: PatchGrid) -> Penalties:
    """How much larger the jumps between patches are than those inside patches.

    GradViT penalises the jumps themselves; a picture has some everywhere, so that only what the
    borders have too much is counted here.
    """
    high, wide = grid.patch_shape(*pixels.shape[3:])
    penalty = pixels.new_zeros(len(pixels))
    for dim, side in ((3, high), (4, wide)):
        jumps = pixels.diff(dim=dim).abs().movedim(dim, 1).flatten(2).mean(dim=2)
        last = torch.arange(1, jumps.shape[1] + 1, device=pixels.device) % side == 0
        if bool(last.any()) and not bool(last.all()):
            inside = jumps[:, ~last].mean(dim=1).detach()
            penalty = penalty + (jumps[:, last].mean(dim=1) - inside).clamp(min=0)
    return penalty


def spread(
    pixels: Float[Tensor, "observations restarts batch chan height width"],
) -> Float[Tensor, "observations restarts"]:
    """How far each restart is from the mean of all restarts on the same update."""
    mean = pixels.detach().mean(dim=1, keepdim=True)
    return (pixels - mean).square().flatten(2).mean(dim=2)
