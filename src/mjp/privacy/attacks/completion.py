"""Fills in what the equations of an attack leave open, with the most natural picture there is.

The prior is what photographs have in common: first and second differences between neighbouring
pixels are mostly near zero and now and then large, colours change less than brightness and where
brightness does, and pixels lie in [0, 1]. As an energy: the sum over places of |differences|^p with
p < 1, in brightness and two opponent colours together. It is minimised by reweighted least squares,
each solved by preconditioned conjugate gradients, for many pictures at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from mjp.privacy.public import PublicModel

OPPONENT = ((1 / 3, 1 / 3, 1 / 3), (0.5, 0.0, -0.5), (-0.25, 0.5, -0.25))
"""Brightness, red against blue, green against both, from red, green and blue."""


SOLVED = 1e-8
"""The share of the squared residual at which a quadratic counts as solved."""


@dataclass(frozen=True)
class Prior:
    """What a natural picture is like.

    Args:
        exponent: p; the smaller, the more it prefers few large differences to many small ones.
        second: weight of second differences beside first ones.
        colour: weight of differences of colour beside those of brightness.
        bounds: weight of leaving [0, 1].
        schedule: differences below the first number count as noise; then so many rounds of
            reweighting, of so many steps each.
    """

    exponent: float = 0.5
    second: float = 3.0
    colour: float = 2.7
    bounds: float = 100.0
    schedule: tuple[tuple[float, int, int], ...] = (
        (0.1, 4, 15),
        (0.03, 6, 15),
        (0.01, 8, 15),
        (0.005, 8, 15),
    )

    @property
    def rounds(self) -> int:
        return sum(rounds for _, rounds, _ in self.schedule)


class Spanned:
    """Every patch is known but for a combination of a few known patches, the same for all.

    Args:
        base: what is known, pixels as (channel, row, column) of each patch.
        span: the patches that may be added, in any amounts.
    """

    def __init__(
        self,
        base: Float[Tensor, "batch patches values"],
        span: Float[Tensor, "batch m values"],
        public: PublicModel,
        prior: Prior,
    ) -> None:
        self._public = public
        values, vectors = torch.linalg.eigh(smoothness(public, prior, span.double()))
        largest = values[:, -1:].clamp_min(torch.finfo(torch.float64).tiny)
        usable = values > 1e-10 * largest
        scale = torch.where(usable, values, 1.0).rsqrt() * usable
        # In this basis the smoothness of one patch alone is 1 in all directions.
        self._span = ((vectors * scale[:, None, :]).mT @ span.double()).float()
        self._base = base.float()

    def start(self) -> Tensor:
        """The free numbers to start from."""
        return self._base.new_zeros(*self._base.shape[:2], self._span.shape[1])

    def picture(self, free: Tensor) -> Tensor:
        """The picture of these numbers."""
        return self._join(self._base + free @ self._span)

    def change(self, free: Tensor) -> Tensor:
        """The linear part of `picture`."""
        return self._join(free @ self._span)

    def back(self, pixels: Tensor) -> Tensor:
        """The transpose of `change`."""
        return self._public.grid.split(pixels).flatten(2) @ self._span.mT

    def misfit(self, free: Tensor) -> Tensor:
        """The gradient of half the squared misfit of the equations; 0 where they hold exactly."""
        return torch.zeros_like(free)

    def curvature(self, direction: Tensor) -> Tensor:
        """The change of `misfit` along a direction."""
        return torch.zeros_like(direction)

    def precondition(self, residual: Tensor, stiffness: Tensor) -> Tensor:
        """Nearly the inverse of the energy's curvature."""
        return residual / stiffness[:, :, None]

    def _join(self, patches: Tensor) -> Tensor:
        high, wide = self._public.surface.patch
        return self._public.grid.join(patches.unflatten(2, (3, high, wide)))


class Noisy:
    """All patches are unknown; the equations tokensᵀ · patches = target hold up to noise.

    Args:
        target: for pixels, not for normalised values.
        noise: standard deviation of an entry of the target.
        first: the picture to start from.
        weight: of the prior against the noise's.
    """

    def __init__(
        self,
        tokens: Float[Tensor, "batch patches dim"],
        target: Float[Tensor, "batch dim values"],
        noise: Float[Tensor, " batch"],
        first: Float[Tensor, "batch patches values"],
        public: PublicModel,
        weight: float,
    ) -> None:
        self._public = public
        scale = (1 / (weight * noise.square()))[:, None, None]
        self._gram = scale * tokens @ tokens.mT
        self._right = scale * tokens @ target
        self._values, self._vectors = torch.linalg.eigh(self._gram)
        self._first = first

    def start(self) -> Tensor:
        return self._first.clone()

    def picture(self, free: Tensor) -> Tensor:
        high, wide = self._public.surface.patch
        return self._public.grid.join(free.unflatten(2, (3, high, wide)))

    change = picture

    def back(self, pixels: Tensor) -> Tensor:
        return self._public.grid.split(pixels).flatten(2)

    def misfit(self, free: Tensor) -> Tensor:
        return self._gram @ free - self._right

    def curvature(self, direction: Tensor) -> Tensor:
        return self._gram @ direction

    def precondition(self, residual: Tensor, stiffness: Tensor) -> Tensor:
        own = (self._values.clamp_min(0) + 8 * stiffness.mean(dim=1, keepdim=True))[:, :, None]
        return self._vectors @ ((self._vectors.mT @ residual) / own)


Unknowns = Spanned | Noisy
"""A set of pictures that fit the equations, by free numbers."""


def complete(
    unknowns: Unknowns, public: PublicModel, prior: Prior, tell: Callable[[float], None]
) -> Float[Tensor, "batch 3 height width"]:
    """The most natural of the pictures."""
    free = unknowns.start()
    for small, rounds, steps in prior.schedule:
        for _ in range(rounds):
            free = free + _round(unknowns, public, prior, free, small, steps)
            tell(1 / prior.rounds)
    return unknowns.picture(free)


def _round(
    unknowns: Unknowns, public: PublicModel, prior: Prior, free: Tensor, small: float, steps: int
) -> Tensor:
    """One reweighting: the step to the minimum of the quadratic that touches the energy here."""
    picture = unknowns.picture(free)
    colours = _colours(prior, picture)
    found = _differences(colours @ picture.flatten(2), picture.shape)
    weights = _weights(found, prior, small)
    outside = prior.bounds * ((picture < 0) | (picture > 1)).to(picture.dtype)

    def bend(change: Tensor) -> Tensor:
        """The curvature of the quadratic, in pixels."""
        parts = _differences(colours @ change.flatten(2), change.shape)
        weighted = [weight * part for weight, part in zip(weights, parts, strict=True)]
        back = colours.mT @ _undo_differences(weighted).flatten(2)
        return back.reshape(change.shape) + outside * change

    weighted = [weight * part for weight, part in zip(weights, found, strict=True)]
    slope = (colours.mT @ _undo_differences(weighted).flatten(2)).reshape(picture.shape)
    slope = slope + outside * (picture - picture.clamp(0, 1))
    residual = -(unknowns.back(slope) + unknowns.misfit(free))
    stiffness = _stiffness(weights, public, picture)
    return _conjugate_gradients(
        lambda d: unknowns.back(bend(unknowns.change(d))) + unknowns.curvature(d),
        residual,
        lambda r: unknowns.precondition(r, stiffness),
        steps,
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


def _colours(prior: Prior, picture: Tensor) -> Float[Tensor, "3 3"]:
    matrix = torch.tensor(OPPONENT, dtype=picture.dtype, device=picture.device)
    matrix[1:] *= prior.colour
    return matrix


def _differences(flat: Tensor, shape: torch.Size) -> list[Tensor]:
    """First differences across and down; second ones across, down and mixed."""
    picture = flat.reshape(shape)
    across, down = picture.diff(dim=3), picture.diff(dim=2)
    return [across, down, across.diff(dim=3), down.diff(dim=2), across.diff(dim=2)]


def _undo_differences(parts: list[Tensor]) -> Tensor:
    """The transpose of `_differences`."""
    across, down, across2, down2, mixed = parts
    across = across + _undo(across2, 3) + _undo(mixed, 2)
    down = down + _undo(down2, 2)
    return _undo(across, 3) + _undo(down, 2)


def _undo(part: Tensor, dim: int) -> Tensor:
    """The transpose of a difference: what it sends to every place."""
    before, after = ((1, 0), (0, 1)) if dim == 3 else ((0, 0, 1, 0), (0, 0, 0, 1))
    return pad(part, before) - pad(part, after)


def _weights(parts: list[Tensor], prior: Prior, small: float) -> list[Tensor]:
    """Of each squared difference, so that the quadratic touches the energy; colours together."""
    p = prior.exponent
    kinds = (1.0, 1.0, prior.second, prior.second, prior.second)
    return [
        kind * (p / 2) * (part.square().sum(dim=1, keepdim=True) + small**2).pow(p / 2 - 1)
        for kind, part in zip(kinds, parts, strict=True)
    ]


def _stiffness(
    weights: list[Tensor], public: PublicModel, picture: Tensor
) -> Float[Tensor, "batch patches"]:
    """The mean weight in each patch."""
    height, width = picture.shape[2:]
    total = picture.new_zeros(len(picture), 1, height, width)
    for one in weights:
        total = total + pad(one, (0, width - one.shape[3], 0, height - one.shape[2]))
    return public.grid.split(total).flatten(2).mean(dim=2)


def smoothness(
    public: PublicModel, prior: Prior, patches: Float[Tensor, "batch m values"]
) -> Tensor:
    """How differences see some patches, each alone on a black ground: (batch, m, m)."""
    high, wide = public.surface.patch
    cells = patches.flatten(0, 1).unflatten(1, (3, high, wide))
    cells = pad(cells, (2, 2, 2, 2))
    seen = _differences(_colours(prior, cells) @ cells.flatten(2), cells.shape)
    kinds = (1.0, 1.0, prior.second, prior.second, prior.second)
    total = patches.new_zeros(patches.shape[0], patches.shape[1], patches.shape[1])
    for kind, part in zip(kinds, seen, strict=True):
        rows = part.flatten(1).unflatten(0, patches.shape[:2])
        total = total + kind * rows @ rows.mT
    return total
