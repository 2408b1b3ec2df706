"""Tells masked patches apart of which only the span is known, and puts them into their places.

Linear algebra gives combinations of the masked patches, not the patches. But edges of different
patches lie in different places and are rare, so the patches are the directions of the span with the
sparsest edges that are still independent: independent component analysis, with the pixels' first
differences as its samples. The equation of the unknown embedding gives each its size and sign, and
the patches around a hole tell which one belongs there.
"""

import torch
from jaxtyping import Bool, Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mjp.jigsaw import PatchGrid
from mjp.privacy.attacks.completion import OPPONENT

SAMPLES_EACH = 60
"""Differences of pixels that it takes to tell one patch from the others: measured, not derived."""
EXPONENT = 0.7
"""Of the sparseness: the mean of |difference|^p at unit variance."""
SMALL = 0.05
"""Differences below this share of the standard deviation count as none."""
STARTS = 2
ITERATIONS = 300
OUTSIDE = 0.25
"""A patch that leaves [0, 1] by more than this has come out wrong."""
PASSES = 8
"""How often patches are put into places, each time with the others as neighbours."""


def separable(number: int, patch: tuple[int, int]) -> bool:
    """Whether so many patches of this size can be told apart; of more, too many come out wrong."""
    high, wide = patch
    return number * SAMPLES_EACH <= 3 * (high * (wide - 1) + (high - 1) * wide)


def separate(
    span: Float[Tensor, "m values"],
    row: Float[Tensor, " m"],
    shift: Float[Tensor, " values"],
    patch: tuple[int, int],
) -> Float[Tensor, "k 3 high wide"]:
    """The patches of a span, as pixels, in no order; those that came out wrong are left out.

    Args:
        span: combinations of the patches, in pixels about `shift`, channel first.
        row: coefficients c of a patch c · span satisfy c · row = 1.
        shift: pixels that belong to a patch of zeros.
    """
    used = span.abs().sum(dim=1) > 0
    span, row = span[used].double(), row[used].double()
    if not len(span):
        return span.new_zeros(0, 3, *patch)
    generator = torch.Generator().manual_seed(0)
    found = [_components(_edges(span, patch), generator) for _ in range(STARTS)]
    mixing = min(found, key=lambda one: one[1])[0]
    patches = (mixing / (mixing @ row)[:, None]) @ span + shift.double()
    right = (patches.amin(dim=1) >= -OUTSIDE) & (patches.amax(dim=1) <= 1 + OUTSIDE)
    return patches[right].clamp(0, 1).unflatten(1, (3, *patch))


def _edges(span: Float[Tensor, "m values"], patch: tuple[int, int]) -> Float[Tensor, "m samples"]:
    """First differences of brightness and opponent colours."""
    cells = span.unflatten(1, (3, *patch))
    colours = torch.tensor(OPPONENT, dtype=span.dtype)
    cells = torch.einsum("kc,mchw->mkhw", colours, cells)
    return torch.cat([cells.diff(dim=3).flatten(1), cells.diff(dim=2).flatten(1)], dim=1)


def _components(
    samples: Float[Tensor, "m samples"], generator: torch.Generator
) -> tuple[Float[Tensor, "m m"], float]:
    """The sparsest independent combinations, and how sparse they are."""
    number = len(samples)
    sizes, vectors = torch.linalg.eigh(samples @ samples.mT / samples.shape[1])
    whitening = (vectors / sizes.clamp_min(1e-12 * sizes[-1]).sqrt()).mT
    white = whitening @ samples
    start = torch.randn(number, number, generator=generator, dtype=samples.dtype)
    mixing = torch.linalg.qr(start).Q.contiguous().requires_grad_(True)
    search = torch.optim.LBFGS(
        [mixing],
        max_iter=ITERATIONS,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
    )

    def cost() -> Tensor:
        values = mixing @ white
        variance = values.square().mean(dim=1, keepdim=True)
        unit = values.square() / variance + SMALL**2
        sparseness = unit.pow(EXPONENT / 2).mean(dim=1).log() / EXPONENT
        return (sparseness + variance[:, 0].log() / 2).sum() - torch.linalg.slogdet(mixing)[1]

    def step() -> Tensor:
        search.zero_grad()
        with torch.enable_grad():
            value = cost()
            value.backward()
        return value

    search.step(step)
    with torch.no_grad():
        return mixing.detach() @ whitening, float(cost())


def put_into_place(
    patches: Float[Tensor, "k 3 high wide"],
    picture: Float[Tensor, "3 height width"],
    masked: Bool[Tensor, " patches"],
    grid: PatchGrid,
) -> Float[Tensor, "3 height width"]:
    """The picture with these patches where their edges fit best; other holes stay as they are."""
    cells = grid.split(picture[None])[0].clone()
    places = masked.nonzero().flatten().tolist()
    known = ~masked
    before: list[int] = []
    for _ in range(PASSES):
        costs = torch.stack([_misfit(patches, cells, known, place, grid) for place in places])
        holes, chosen = linear_sum_assignment(costs.numpy())
        if chosen.tolist() == before:
            break
        before = chosen.tolist()
        known = ~masked
        for hole, choice in zip(holes, chosen, strict=True):
            cells[places[hole]] = patches[choice]
            known[places[hole]] = True
    return grid.join(cells[None])[0]


def _misfit(
    patches: Float[Tensor, "k 3 high wide"],
    cells: Float[Tensor, "n 3 high wide"],
    known: Bool[Tensor, " n"],
    place: int,
    grid: PatchGrid,
) -> Float[Tensor, " k"]:
    """How badly each patch continues the known neighbours of a place."""
    row, col = divmod(place, grid.cols)
    sides = (
        (row, col - 1, patches[:, :, :, 0], (..., -1)),
        (row, col + 1, patches[:, :, :, -1], (..., 0)),
        (row - 1, col, patches[:, :, 0], (slice(None), -1)),
        (row + 1, col, patches[:, :, -1], (slice(None), 0)),
    )
    total = patches.new_zeros(len(patches))
    count = 0
    for there, beside, own, edge in sides:
        inside = 0 <= there < grid.rows and 0 <= beside < grid.cols
        if inside and bool(known[there * grid.cols + beside]):
            other = cells[there * grid.cols + beside][edge]
            # An edge of the picture may run along the border; it must not decide everything.
            total = total + (own - other).square().flatten(1).mean(dim=1).clamp_max(0.25)
            count += 1
    return total / max(count, 1)
