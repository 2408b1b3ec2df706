"""`adaptive_solve`: patch solve by an attacker who knows the defence.

Against MJP: masked positions get no gradient, so their rows of zeros tell the mask. With u for
unmasked and m for masked patches, dE = G_uᵀ X_u + G_mᵀ X_m, with G_u known. Where G_u says nothing
(the complement Q of its rows), Qᵀ dE = (Qᵀ G_mᵀ) X_m: its rows span the masked patches. Outside
that span the unmasked patches follow by least squares; inside, one equation for each patch comes
from the gradient of the unknown embedding, and the rest from what photographs look like
(`completion`). Masked patches lie in the span wherever they belong in the picture, so they are
completed in place: the shuffle hides nothing. Where they are few, they can even be told apart
(`separation`). Several gradients of one image under different masks leave next to nothing open.

Against rounding, noise, and more patches than width: the prior settles what the noise buries.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from mjp.privacy.attacks.completion import complete, noisy, spanned
from mjp.privacy.attacks.patch_solve import PatchSolve, equations, solve
from mjp.privacy.attacks.separation import put_into_place, separable, separate
from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Cases, Reading, Recovered
from mjp.privacy.update import Effort

AT_A_TIME = 16
"""Pictures that are completed together."""
CLEAR = 10.0
CLEAR_OF_MANY = 100.0
CLEAR_TOGETHER = 3.0
"""A direction of the masked patches counts if it stands out from the noise so many times. What does
not is left in the least squares, where it does less harm than one more direction that is open; the
more there are, the better is one less. Several updates leave hardly any open, there all count."""
MANY = 40
"""So many masked patches are many."""
LEAST_OF_SPAN = 0.5
"""Of which share of the masked patches the span must be seen to be of use; found by trying."""
ROUNDED = 0.3
"""Standard deviation of a number in steps of its rounding."""
PRECISE = 1e-3
"""Least squares with an expected error of a pixel below this need no prior."""


@dataclass(frozen=True, eq=False)
class Partial:
    """What one update tells of the patches, as x = base + c · span with c · row = right.

    Args:
        span: orthonormal rows, or rows of zeros where the masked patches have fewer directions.
    """

    base: Float[Tensor, "patches values"]
    span: Float[Tensor, "m values"]
    row: Float[Tensor, " m"]
    right: Float[Tensor, " patches"]


class AdaptiveSolve(PatchSolve):
    about = "patch_solve by an attacker who knows the defence: mask, span, image prior"
    knows_defence = True

    def run(self, public: PublicModel, cases: Cases, effort: Effort) -> Iterable[Recovered]:
        """Clients with equally many masked patches are attacked together."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, case in enumerate(cases):
            groups.setdefault(tuple(one.num_masked for one in case), []).append(place)
        images: dict[int, Tensor] = {}
        for places in groups.values():
            for start in range(0, len(places), AT_A_TIME):
                part = places[start : start + AT_A_TIME]
                tell = effort.part(len(part) / len(cases)).tell
                found = _recover(public, [cases[place] for place in part], tell)
                images |= zip(part, found, strict=True)
        return [Recovered(images[place][None]) for place in range(len(cases))]


def _recover(
    public: PublicModel, cases: Cases, tell: Callable[[float], None]
) -> Float[Tensor, "batch 3 height width"]:
    """The pictures of clients that sent equally many updates with equally large masks."""
    masked = [one.num_masked for one in cases[0]]
    if not any(masked) or any(_span_is_buried(public, number) for number in masked):
        return _whole(public, [first for first, *_ in cases], tell)
    alone = len(masked) == 1
    partials = [[partial(one, alone=alone) for one in case] for case in cases]
    reduced = [eliminated(several[0]) if alone else intersected(several) for several in partials]
    rows = max(len(span) for _, span in reduced)
    known = public.pixels(public.join(torch.stack([base for base, _ in reduced])))
    if rows == 0:
        tell(1.0)
        return known
    span = torch.stack([pad(span, (0, 0, 0, rows - len(span))) for _, span in reduced])
    unknowns = spanned(public, public.grid.split(known).flatten(2), _as_pixels(public, span))
    found = complete(unknowns, tell).clamp(0, 1)
    if not alone or not separable(masked[0], public.surface.patch):
        return found
    triples = zip(found, cases, partials, strict=True)
    return torch.stack([_separated(public, one, case[0], p[0]) for one, case, p in triples])


def _span_is_buried(public: PublicModel, masked: int) -> bool:
    """Whether Q has too few columns for the span of the masked patches, or none at all."""
    columns = public.surface.width - (public.grid.num_patches - masked)
    return columns < LEAST_OF_SPAN * masked


def _separated(
    public: PublicModel, picture: Float[Tensor, "3 height width"], reading: Reading, one: Partial
) -> Float[Tensor, "3 height width"]:
    """The picture with its masked patches told apart and put into place; small, so on the CPU."""
    assert reading.masked is not None
    span = _as_pixels(public, one.span[None])[0].cpu()
    shift = public.grid.split(public.pixels(torch.zeros_like(picture[None]))).flatten(2)[0, 0]
    patches = separate(span, one.row.cpu(), shift.cpu(), public.surface.patch)
    if not len(patches):
        return picture
    placed = put_into_place(patches.float(), picture.cpu(), reading.masked.cpu(), public.grid)
    return placed.to(picture.device)


def partial(reading: Reading, *, alone: bool = True) -> Partial:
    """What a single update tells of the patches.

    Args:
        alone: whether no other update of the same image is there.
    """
    tokens, patches = (one[0] for one in equations([reading]))
    if reading.masked is None:
        base = solve(tokens[None], patches[None])[0]
        empty = base.new_zeros(0)
        return Partial(base, base.new_zeros(0, base.shape[1]), empty, base.new_ones(base.shape[0]))
    masked: Bool[Tensor, " patches"] = reading.masked
    unknown = reading.unknown
    assert unknown is not None
    known = tokens[~masked]
    number = reading.num_masked
    whole = torch.linalg.qr(known.mT, mode="complete").Q
    outside = whole[:, known.shape[0] :]
    left, sizes, right = torch.linalg.svd(outside.mT @ patches, full_matrices=False)
    number = min(number, len(sizes))
    noise = sizes[number] if number < len(sizes) else sizes.new_zeros(())
    clearly = (CLEAR_OF_MANY if number > MANY else CLEAR) if alone else CLEAR_TOGETHER
    floor = torch.maximum(clearly * noise, 1e-13 * sizes[0])
    clear = sizes[:number] > floor
    clear[0] = True
    span = right[:number] * clear[:, None]
    solved = solve(known[None], patches[None])[0]
    amounts = solved @ span.mT
    seen = outside.mT @ unknown
    row = torch.where(clear, (left[:, :number].mT @ seen) / sizes[:number], 0.0)
    rest = solve(known[None], (unknown - outside @ seen)[None, :, None])[0, :, 0]
    base = solved.new_zeros(len(masked), solved.shape[1])
    base[~masked] = solved - amounts @ span
    right_side = solved.new_ones(len(masked))
    right_side[~masked] = amounts @ row - rest
    return Partial(base, span, row, right_side)


def eliminated(one: Partial) -> tuple[Tensor, Tensor]:
    """Base and span with the equation of the unknown embedding used up: one direction less."""
    size = one.row @ one.row
    if not len(one.row) or not bool(size > 0):
        return one.base, one.span
    base = one.base + torch.outer(one.right, (one.row / size) @ one.span)
    others = torch.linalg.qr(one.row[:, None], mode="complete").Q[:, 1:]
    return base, others.mT @ one.span


def intersected(several: list[Partial]) -> tuple[Tensor, Tensor]:
    """Base and span that are left by several updates of the same image under different masks."""
    values = several[0].base.shape[1]
    normal = several[0].base.new_zeros(values, values)
    target = torch.zeros_like(several[0].base)
    for one in several:
        normal = normal + torch.eye(values, dtype=normal.dtype, device=normal.device)
        normal = normal - one.span.mT @ one.span
        target = target + one.base
        size = one.row.norm()
        if len(one.row) and bool(size > 0):
            direction = (one.row / size) @ one.span
            normal = normal + torch.outer(direction, direction)
            target = target + torch.outer(one.right / size, direction)
    sizes, vectors = torch.linalg.eigh(normal)
    open_ones = sizes < 1e-6 * len(several)
    inverse = torch.where(open_ones, 0.0, 1 / sizes.clamp_min(1e-300))
    base = (target @ vectors * inverse) @ vectors.mT
    return base, vectors[:, open_ones].mT


def _whole(
    public: PublicModel, readings: list[Reading], tell: Callable[[float], None]
) -> Float[Tensor, "batch 3 height width"]:
    """Least squares, and the prior where noise or missing rank bury the picture.

    A mask, whose rows of G are zeros, is filled by the prior alone; what its patches add is noise.
    """
    tokens, patches = equations(readings)
    solved = solve(tokens, patches)
    found = public.pixels(public.join(solved))
    noise = _noise(tokens, patches, solved, readings[0].rounding)
    noise = max(public.std) * (noise + _hidden(tokens, readings[0].num_masked))
    smallest = torch.linalg.svdvals(tokens)[:, -1]
    if tokens.shape[1] > tokens.shape[2]:
        smallest = torch.zeros_like(smallest)
    doubtful = noise > PRECISE * smallest
    if not bool(doubtful.any()):
        tell(1.0)
        return found
    # In pixels in place of normalised values, the mean colour goes to the other side.
    scale = _as_pixels(public, torch.ones_like(patches[:, :1]))
    shift = public.grid.split(public.pixels(torch.zeros_like(found))).flatten(2)
    target = public.cells(patches).flatten(2) * scale + tokens.mT @ shift
    first = public.grid.split(found.clamp(0, 1)).flatten(2)
    filled = complete(noisy(public, tokens, target, noise, first), tell)
    return torch.where(doubtful[:, None, None, None], filled, found)


def _noise(
    tokens: Float[Tensor, "batch patches dim"],
    patches: Float[Tensor, "batch dim values"],
    solved: Float[Tensor, "batch patches values"],
    rounding: float,
) -> Float[Tensor, " batch"]:
    """Standard deviation of an entry of dE.

    Told from what least squares leave over; where they leave nothing, from how both sides were
    rounded: dE itself, and the token gradients, of which each entry sums up as many as there are
    patches.
    """
    spare = tokens.shape[2] - tokens.shape[1]
    own, token = (one.square().mean(dim=(1, 2)).sqrt() for one in (patches, tokens))
    expected = rounding * ROUNDED * (own + token * tokens.shape[1] ** 0.5)
    if spare <= 0:
        return expected
    left_over = patches - tokens.mT @ solved
    found = (left_over.square().sum(dim=(1, 2)) / (spare * patches.shape[2])).sqrt()
    return torch.maximum(found, 1e-12 * own)


def _hidden(tokens: Float[Tensor, "batch patches dim"], number: int) -> Float[Tensor, " batch"]:
    """What so many masked patches add to an entry of dE, if their gradients are as the others'."""
    known = tokens.shape[1] - number
    return number**0.5 * (tokens.square().sum(dim=(1, 2)) / (known * tokens.shape[2])).sqrt()


def _as_pixels(public: PublicModel, span: Float[Tensor, "batch m values"]) -> Tensor:
    """Changes of normalised patches as changes of pixels, channel first."""
    std = torch.tensor(public.std, dtype=span.dtype, device=span.device)
    return (public.cells(span) * std[:, None, None]).flatten(2)
