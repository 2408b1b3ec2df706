"""Dense absolute localization (DAL): a regressor from position embedding to grid coordinate."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mjp.models.config import Localization


class Locator(nn.Module):
    """Predicts row and column of each position from its embedding alone.

    `mlp` is the paper's NLN (Linear-ReLU-Linear), `linear` its LN, `pca` the projection on the two
    leading principal directions, which has no parameters.
    """

    def __init__(self, kind: Localization, dim: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "mlp":
            self.layers: nn.Module = nn.Sequential(
                nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 2)
            )
        elif kind == "linear":
            self.layers = nn.Linear(dim, 2)
        else:
            self.layers = nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(
        self, table: Float[Tensor, "patches dim"], target: Float[Tensor, "patches 2"]
    ) -> Float[Tensor, "patches 2"]:
        # bf16 resolves coordinates near 13 to a sixteenth only, so autocast stays out of here.
        with torch.autocast(table.device.type, enabled=False):
            if self.kind == "pca":
                return principal_projection(table, target)
            return self.layers(table)


def localization_loss(
    predicted: Float[Tensor, "patches 2"],
    target: Float[Tensor, "patches 2"],
    masked: Bool[Tensor, "batch patches"] | None,
) -> Float[Tensor, ""]:
    """Mean L1 distance over each image's unmasked positions, then over the images.

    An image with no position left unmasked counts as 0. The distance is |row error| + |column
    error|; the reference code takes the mean of the two, half of it.
    """
    distance = (predicted - target).abs().sum(dim=1)
    if masked is None:
        return distance.mean()
    known = (~masked).to(distance.dtype)
    share = known / known.sum(dim=1, keepdim=True).clamp(min=1)
    return share.mean(dim=0) @ distance


def principal_projection(
    table: Float[Tensor, "patches dim"], target: Float[Tensor, "patches 2"]
) -> Float[Tensor, "patches 2"]:
    """Projects the table on its two leading principal directions.

    Directions have no sign of their own: each is turned so that its projection grows with its
    target coordinate, whatever sign the solver gave. Their gradient is that of implicit
    differentiation, exact for separate eigenvalues; a solver's own backward pass divides by the
    gaps between all eigenvalues and breaks down where two of the small ones meet.
    """
    table = table.float() if table.dtype in (torch.float16, torch.bfloat16) else table
    centred = table - table.mean(dim=0)
    covariance = centred.T @ centred
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(covariance)
        offsets = target.to(table.dtype) - target.to(table.dtype).mean(dim=0)
    projected = []
    for component, order in ((0, -1), (1, -2)):
        fixed = vectors[:, order]
        gap = values[order] - values
        inverse = torch.where(gap.abs() > 1e-6 * values[-1].abs(), gap.reciprocal(), 0.0)
        turn = vectors @ (inverse * (vectors.T @ (covariance @ fixed)))
        direction = fixed + (turn - turn.detach())
        agreement = offsets[:, component] @ (centred.detach() @ fixed)
        projected.append(table @ direction * torch.where(agreement < 0, -1.0, 1.0))
    return torch.stack(projected, dim=1)
