"""Dense absolute localization (DAL): a regressor from position embedding to grid coordinate."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mjp.jigsaw import PatchGrid
from mjp.models.config import Localization

Places = Float[Tensor, "patches 2"]
Share = Float[Tensor, " patches"]


class Locator(nn.Module):
    """Predicts row and column of each position from its embedding alone.

    `mlp` is the paper's NLN (Linear-ReLU-Linear), `linear` its LN, `pca` the projection on the two
    leading principal directions, which has no parameters.
    """

    def __init__(self, kind: Localization, dim: int) -> None:
        super().__init__()
        self.kind = kind
        self.layers: nn.Module = nn.Identity()
        if kind == "mlp":
            self.layers = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 2))
        elif kind == "linear":
            self.layers = nn.Linear(dim, 2)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialises linear layers as timm's ViT does."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, table: Float[Tensor, "patches dim"], target: Places, share: Share) -> Places:
        # bf16 resolves coordinates near 13 to a sixteenth only, so autocast stays out of here.
        with torch.autocast(table.device.type, enabled=False):
            if self.kind == "pca":
                return principal_projection(table, target, share)
            return self.layers(table)


def known_share(
    masked: Bool[Tensor, "batch patches"] | None, grid: PatchGrid, like: Tensor
) -> Share:
    """How much each position counts: equally among an image's unmasked ones, images equally."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    if masked is None:
        masked = torch.zeros(1, grid.num_patches, dtype=torch.bool, device=like.device)
    known = (~masked).to(dtype)
    share = known / known.sum(dim=1, keepdim=True).clamp(min=1)
    return share.sum(dim=0) / max(1, masked.shape[0])


def localization_loss(predicted: Places, target: Places, share: Share) -> Float[Tensor, ""]:
    """Mean L1 distance between predicted and true coordinates, each position by its share."""
    # |row error| + |column error|; the reference code takes the mean of the two, half of it.
    distance = (predicted - target).abs().sum(dim=1)
    return (share * distance).sum()  # A matrix product would be coarsened by autocast.


@dataclass(frozen=True, eq=False)
class LossTerms:
    """Classification loss, localization loss (DAL) and the weight λ of the latter."""

    classification: Float[Tensor, ""]
    localization: Float[Tensor, ""]
    weight: float

    @property
    def total(self) -> Float[Tensor, ""]:
        """What is minimised: classification + λ · localization."""
        return self.classification + self.weight * self.localization


def principal_projection(
    table: Float[Tensor, "patches dim"], target: Places, share: Share
) -> Places:
    """Projects the table on its two leading principal directions, around the grid's centre.

    Each direction is given to the coordinate it agrees with and turned to grow with it. Their
    gradient is that of implicit differentiation; a solver's own divides by the gaps between all
    eigenvalues and breaks down where two small ones meet. (The solver runs on the host, which waits
    for the GPU; a GPU's own makes it wait longer for so small a matrix.)
    """
    table = table.float() if table.dtype in (torch.float16, torch.bfloat16) else table
    target = target.to(table.dtype)
    weight = (share / share.sum().clamp(min=1e-12)).to(table.dtype)[:, None]
    centred = table - (weight * table).sum(dim=0)
    middle = (weight * target).sum(dim=0)
    covariance = (weight * centred).T @ centred
    with torch.no_grad():
        # A table with NaN gives NaN, which training tells by its step; the solver would raise.
        solved = torch.linalg.eigh(covariance.nan_to_num(0.0, 0.0, 0.0).cpu())
        values, vectors = (one.to(covariance.device) for one in solved)
        leading = vectors[:, [-1, -2]]
        agreement = (centred @ leading).T @ (weight * (target - middle))
        strength = agreement.abs() / values[[-1, -2], None].clamp(min=1e-12).sqrt()
        swapped = strength[0, 0] + strength[1, 1] < strength[0, 1] + strength[1, 0]
        order = torch.stack((swapped, ~swapped)).long()
        sign = torch.where(agreement[order].diagonal() < 0, -1.0, 1.0).to(table.dtype)
    directions = []
    for component in (-1, -2):
        fixed = vectors[:, component]
        gap = values[component] - values
        inverse = torch.where(gap.abs() > 1e-6 * values[-1].abs(), gap.reciprocal(), 0.0)
        turn = vectors @ (inverse * (vectors.T @ (covariance @ fixed)))
        directions.append(fixed + (turn - turn.detach()))
    return centred @ torch.stack(directions, dim=1)[:, order] * sign + middle
