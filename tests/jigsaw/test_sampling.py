import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mjp import ConfigError, PatchGrid, sample_plan

GRIDS = st.sampled_from([(1, 1), (3, 17), (17, 3), (1, 9), (2, 2), (8, 8), (14, 14), (5, 24)])


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None)
@given(
    size=GRIDS,
    ratio=st.floats(0, 1),
    batch=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    shape=st.sampled_from(["block", "scatter"]),
)
def test_exactly_the_asked_share_is_masked_and_permuted(size, ratio, batch, seed, shape):
    grid = PatchGrid(*size)
    plan = sample_plan(grid, batch, ratio, seeded(seed), shape=shape)
    places = torch.arange(grid.num_patches).expand(batch, -1)
    assert (plan.masked.sum(dim=1) == round(ratio * grid.num_patches)).all()
    assert torch.equal(plan.source.sort(dim=1).values, places)
    assert torch.equal(plan.source[~plan.masked], places[~plan.masked])
    assert plan.masked.gather(1, plan.source).equal(plan.masked)


def test_the_same_generator_state_gives_the_same_plan_and_the_next_draw_another():
    grid = PatchGrid(14, 14)
    generator = seeded()
    state = generator.get_state()
    first = sample_plan(grid, 4, 0.27, generator)
    second = sample_plan(grid, 4, 0.27, generator)
    generator.set_state(state)
    again = sample_plan(grid, 4, 0.27, generator)
    assert first.source.equal(again.source)
    assert first.masked.equal(again.masked)
    assert not first.masked.equal(second.masked)
    assert len({tuple(row.tolist()) for row in first.masked}) == 4  # One for each image.


@pytest.mark.parametrize("shape", ["block", "scatter"])
def test_all_permutations_of_the_masked_patches_are_equally_likely(shape):
    # Three masked patches of four: six permutations, given the mask.
    plan = sample_plan(PatchGrid(2, 2), 24_000, 0.75, seeded(), shape=shape)
    seen = Counter()
    for masked, source in zip(plan.masked.tolist(), plan.source.tolist(), strict=True):
        places = [place for place in range(4) if masked[place]]
        seen[tuple(places.index(source[place]) for place in places)] += 1
    assert set(seen) == set(itertools.permutations(range(3)))
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_scattered_patches_are_masked_independently_of_their_neighbours():
    plan = sample_plan(PatchGrid(6, 5), 20_000, 0.5, seeded(), shape="scatter")
    masked = plan.masked.double()
    assert (masked.mean(dim=0) - 0.5).abs().max() < 0.02
    covariance = torch.cov(masked.T)
    expected = -0.25 / 29  # Fifteen of thirty, without replacement.
    off = covariance[~torch.eye(30, dtype=torch.bool)]
    assert (off - expected).abs().max() < 0.02


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch": -1}, "batch must be a whole number of at least 0"),
        ({"ratio": float("nan")}, "ratio must be a number between 0 and 1"),
        ({"ratio": True}, "ratio must be a number between 0 and 1"),
        ({"device": "cuda"}, "the generator is on cpu, the plan is wanted on cuda"),
        ({"shape": "blocks"}, "shape must be one of block, scatter; got 'blocks'"),
        ({"grid": (4, 2)}, "grid must be a PatchGrid"),
        ({"pixels": 0}, "pixels must be at least one pixel"),
        ({"generator": 7}, "must be a torch.Generator, got int"),
    ],
)
def test_other_wrong_arguments_are_refused(arguments, words):
    good = {"grid": PatchGrid(4, 2), "batch": 1, "ratio": 0.5, "generator": seeded()}
    with pytest.raises(ConfigError, match=words):
        sample_plan(**{**good, **arguments})
