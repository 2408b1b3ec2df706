"""Fills in what the equations of an attack leave open, with the most natural picture there is.

The prior is what photographs have in common: first and second differences between neighbouring
pixels are mostly near zero and now and then large, colours change less than brightness and where
brightness does, and pixels lie in [0, 1]. As an energy: the sum over places of |differences|^p with
p < 1, in brightness and two opponent colours together. It is minimised by reweighted least squares,
each solved by preconditioned conjugate gradients, for many pictures at once.
"""

from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from mjp.privacy.public import PublicModel

OPPONENT = ((1 / 3, 1 / 3, 1 / 3), (0.5, 0.0, -0.5), (-0.25, 0.5, -0.25))
"""Brightness, red against blue, green against both, from red, green and blue."""
EXPONENT = 0.5
"""p; the smaller, the more the prior prefers few large differences to many small ones."""
KINDS = (1.0, 1.0, 3.0, 3.0, 3.0)
"""Weights of first differences, across and down, and of second ones."""
COLOUR = 2.7
"""Weight of differences of colour beside those of brightness."""
BOUNDS = 100.0
"""Weight of leaving [0, 1]."""
SCHEDULE = ((0.1, 4, 15), (0.03, 6, 15), (0.01, 8, 15), (0.005, 8, 15))
"""Differences below the first number count as noise; then so many rounds of reweighting, of so many
steps each."""
SOLVED = 1e-8
"""The share of the squared residual at which a quadratic counts as solved."""
NOISE_WEIGHT = 10.0
"""How much the prior counts against the noise."""


class Unknowns:
    """Pictures that fit an attack's equations, by free numbers: patches are base + free · span.

    Args:
        start: the free numbers to start from.
        base: pixels as (channel, row, column) of each patch.
        span: None where every pixel is free.
        gram, right: gram · free = right holds up to noise of one; None where all holds exactly.
    """

    def __init__(
        self,
        public: PublicModel,
        start: Float[Tensor, "batch patches free"],
        base: Float[Tensor, "batch patches values"] | float = 0.0,
        span: Float[Tensor, "batch m values"] | None = None,
        gram: Float[Tensor, "batch patches patches"] | None = None,
        right: Float[Tensor, "batch patches values"] | None = None,
    ) -> None:
        self.public, self.start = public, start
        self._base, self._span, self._gram, self._right = base, span, gram, right
        self._spectrum = None if gram is None else torch.linalg.eigh(gram)

    def picture(self, free: Tensor) -> Tensor:
        """The picture of these numbers."""
        return self._join(self._base + (free if self._span is None else free @ self._span))

    def change(self, free: Tensor) -> Tensor:
        """The linear part of `picture`."""
        return self._join(free if self._span is None else free @ self._span)

    def back(self, pixels: Tensor) -> Tensor:
        """The transpose of `change`."""
        patches = self.public.grid.split(pixels).flatten(2)
        return patches if self._span is None else patches @ self._span.mT

    def misfit(self, free: Tensor) -> Tensor | float:
        """The gradient of half the squared misfit of the equations."""
        return 0.0 if self._right is None else self.curvature(free) - self._right

    def curvature(self, direction: Tensor) -> Tensor | float:
        """The change of `misfit` along a direction."""
        return 0.0 if self._gram is None else self._gram @ direction

    def precondition(self, residual: Tensor, stiffness: Tensor) -> Tensor:
        """Nearly the inverse of the energy's curvature."""
        if self._spectrum is None:
            return residual / stiffness[:, :, None]
        values, vectors = self._spectrum
        own = (values.clamp_min(0) + 8 * stiffness.mean(dim=1, keepdim=True))[:, :, None]
        return vectors @ ((vectors.mT @ residual) / own)

    def _join(self, patches: Tensor) -> Tensor:
        return self.public.grid.join(patches.unflatten(2, (3, *self.public.surface.patch)))


def spanned(
    public: PublicModel,
    base: Float[Tensor, "batch patches values"],
    span: Float[Tensor, "batch m values"],
) -> Unknowns:
    """Every patch is known but for a combination of a few known patches, the same for all."""
    cells = span.double().flatten(0, 1).unflatten(1, (3, *public.surface.patch))
    # How differences see these patches, each alone on a black ground.
    seen = [
        part.flatten(1).unflatten(0, span.shape[:2]) for part in _differences(pad(cells, [2] * 4))
    ]
    smoothness = sum(kind * rows @ rows.mT for kind, rows in zip(KINDS, seen, strict=True))
    values, vectors = torch.linalg.eigh(smoothness)
    largest = values[:, -1:].clamp_min(torch.finfo(torch.float64).tiny)
    usable = values > 1e-10 * largest
    scale = torch.where(usable, values, 1.0).rsqrt() * usable
    # In this basis the smoothness of one patch alone is 1 in all directions.
    span = ((vectors * scale[:, None, :]).mT @ span.double()).float()
    start = span.new_zeros(*base.shape[:2], span.shape[1])
    return Unknowns(public, start, base.float(), span)


def noisy(
    public: PublicModel,
    tokens: Float[Tensor, "batch patches dim"],
    target: Float[Tensor, "batch dim values"],
    noise: Float[Tensor, " batch"],
    first: Float[Tensor, "batch patches values"],
) -> Unknowns:
    """All patches are unknown; the equations tokensᵀ · patches = target hold up to noise.

    Args:
        target: for pixels, not for normalised values.
        noise: standard deviation of an entry of the target.
        first: the picture to start from.
    """
    scale = (1 / (NOISE_WEIGHT * noise.square()))[:, None, None]
    gram = scale * tokens @ tokens.mT
    return Unknowns(public, first, gram=gram, right=scale * tokens @ target)


def complete(
    unknowns: Unknowns, tell: Callable[[float], None]
) -> Float[Tensor, "batch 3 height width"]:
    """The most natural of the pictures."""
    free = unknowns.start
    for small, rounds, steps in SCHEDULE:
        for _ in range(rounds):
            free = free + _round(unknowns, free, small, steps)
            tell(1 / sum(rounds for _, rounds, _ in SCHEDULE))
    return unknowns.picture(free)


def _round(unknowns: Unknowns, free: Tensor, small: float, steps: int) -> Tensor:
    """One reweighting: the step to the minimum of the quadratic that touches the energy here."""
    picture = unknowns.picture(free)
    found = _differences(picture)
    # Of each squared difference, so that the quadratic touches the energy; colours together.
    sizes = [part.square().sum(dim=1, keepdim=True) + small**2 for part in found]
    weights = [
        kind * (EXPONENT / 2) * size.pow(EXPONENT / 2 - 1)
        for kind, size in zip(KINDS, sizes, strict=True)
    ]
    outside = BOUNDS * ((picture < 0) | (picture > 1)).to(picture.dtype)

    def bent(parts: list[Tensor], beyond: Tensor) -> Tensor:
        """What weighted differences and what lies outside add up to, by free numbers."""
        weighted = [weight * part for weight, part in zip(weights, parts, strict=True)]
        return unknowns.back(_undo_differences(weighted) + outside * beyond)

    def curvature(direction: Tensor) -> Tensor:
        change = unknowns.change(direction)
        return bent(_differences(change), change) + unknowns.curvature(direction)

    stiffness = _stiffness(unknowns.public, weights, picture)
    residual = -(bent(found, picture - picture.clamp(0, 1)) + unknowns.misfit(free))
    return _conjugate_gradients(
        curvature, residual, lambda r: unknowns.precondition(r, stiffness), steps
    )


def _conjugate_gradients(
    curvature: Callable[[Tensor], Tensor],
    residual: Tensor,
    precondition: Callable[[Tensor], Tensor],
    steps: int,
) -> Tensor:
    """Solves for each item of the batch on its own, which stands still once it is solved.

    Going on would divide noise by noise, and on a CPU numbers near zero take a hundred times as
    long as others.
    """
    found = torch.zeros_like(residual)
    better = precondition(residual)
    direction = better
    size = _dot(residual, better)
    enough = SOLVED * size
    for _ in range(steps):
        open_ones = size > enough
        if size.device.type == "cpu" and not bool(open_ones.any()):
            break
        direction = torch.where(open_ones, direction, 0.0)
        bent = curvature(direction)
        length = torch.where(open_ones, size / _dot(direction, bent), 0.0)
        found = found + length * direction
        residual = residual - length * bent
        better = precondition(residual)
        after = _dot(residual, better)
        direction = better + torch.where(open_ones, after / size, 0.0) * direction
        size = after
    return found


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(dim=(1, 2), keepdim=True)


@cache
def _colours(dtype: torch.dtype, device: torch.device) -> Float[Tensor, "3 3"]:
    matrix = torch.tensor(OPPONENT, dtype=dtype, device=device)
    matrix[1:] *= COLOUR
    return matrix


def _differences(picture: Float[Tensor, "batch 3 height width"]) -> list[Tensor]:
    """Of brightness and colours: first ones across and down; second ones across, down and mixed."""
    colours = _colours(picture.dtype, picture.device)
    picture = (colours @ picture.flatten(2)).reshape(picture.shape)
    across, down = picture.diff(dim=3), picture.diff(dim=2)
    return [across, down, across.diff(dim=3), down.diff(dim=2), across.diff(dim=2)]


def _undo_differences(parts: list[Tensor]) -> Tensor:
    """The transpose of `_differences`."""
    across, down, across2, down2, mixed = parts
    across = across + _undo(across2, 3) + _undo(mixed, 2)
    picture = _undo(across, 3) + _undo(down + _undo(down2, 2), 2)
    colours = _colours(picture.dtype, picture.device)
    return (colours.mT @ picture.flatten(2)).reshape(picture.shape)


def _undo(part: Tensor, dim: int) -> Tensor:
    """The transpose of a difference: what it sends to every place."""
    before, after = ((1, 0), (0, 1)) if dim == 3 else ((0, 0, 1, 0), (0, 0, 0, 1))
    return pad(part, before) - pad(part, after)


def _stiffness(
    public: PublicModel, weights: list[Tensor], picture: Tensor
) -> Float[Tensor, "batch patches"]:
    """The mean weight in each patch."""
    height, width = picture.shape[2:]
    total = picture.new_zeros(len(picture), 1, height, width)
    for one in weights:
        total = total + pad(one, (0, width - one.shape[3], 0, height - one.shape[2]))
    return public.grid.split(total).flatten(2).mean(dim=2)
