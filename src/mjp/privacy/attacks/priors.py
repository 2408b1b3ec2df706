"""What pictures look like, as penalties on candidates: smooth, also across the borders of patches.

All of pixels in [0, 1], so that a weight means the same for every model.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mjp.jigsaw import PatchGrid

Candidates = Float[Tensor, "candidates batch chan height width"]
Penalties = Float[Tensor, " candidates"]


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
