"""Differences over seeds against SciPy, textbook formulas and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mjp.report.study_fit import fit

NUMBERS = st.floats(-100, 100)


def runs(table):
    """Rows of numbers by run and seed; None where a seed was not run."""
    return {
        f"run {row}": {str(seed): one for seed, one in enumerate(line) if one is not None}
        for row, line in enumerate(table)
    }


def ends(found):
    return found.low, found.high


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_of_two_runs_alone_it_is_scipys_test_of_paired_samples(count):
    draw = np.random.default_rng(count)
    ours, theirs = draw.normal(60, 1, count), draw.normal(59, 1, count)
    found = fit(runs([ours, theirs])).difference("run 0", "run 1")
    wanted = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.difference == pytest.approx((ours - theirs).mean())
    assert ends(found) == pytest.approx((wanted.low, wanted.high))
    assert (found.over, found.count, found.pooled) == ("seeds", count, 0)
    assert found.basis == f"{count} seeds, paired"


def test_two_seeds_by_hand():
    """Differences 1 and 3: mean 2, half width 12.706 times the standard error of 1."""
    found = fit(runs([[2.0, 5.0], [1.0, 2.0]])).difference("run 0", "run 1")
    assert ends(found) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)
    assert not found.clear


def test_a_seed_that_only_one_of_two_runs_has_says_nothing():
    found = fit(runs([[2.0, 5.0, 9.0], [1.0, 2.0]])).difference("run 0", "run 1")
    assert ends(found) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)
    assert found.basis == "2 seeds, paired"


def test_of_complete_runs_the_noise_is_the_textbooks_of_randomized_blocks():
    """Mean square of what is left over after means of runs and of seeds, both worked out apart."""
    draw = np.random.default_rng(3)
    table = draw.normal(50, 2, (5, 1)) + draw.normal(0, 1, (1, 4)) + draw.normal(0, 0.3, (5, 4))
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    noise = math.sqrt((rest**2).sum() / (4 * 3))
    half = stats.t.ppf(0.975, 12) * noise * math.sqrt(2 / 4)
    found = fit(runs(table)).difference("run 4", "run 1")
    difference = table[4].mean() - table[1].mean()
    assert found.difference == pytest.approx(difference)
    assert ends(found) == pytest.approx((difference - half, difference + half))
    assert (found.count, found.against, found.pooled, found.freedom) == (4, 4, 5, 12)
    assert found.basis == "4 seeds each, noise of 5 runs, 12 degrees of freedom"


HOLES = [[1, 1, 1], [1, 1, None], [1, None, None], [None, 1, 1], [None, None, 1], [1, 1, 1]]


def test_the_interval_holds_the_truth_as_often_as_it_says_whatever_is_missing():
    draw = np.random.default_rng(0)
    hits = {(2, 0): 0, (4, 2): 0, (3, 1): 0, (0, 5): 0}  # (4, 2): of different seeds.
    rounds = 1500
    for _ in range(rounds):
        truth = draw.normal(0, 3, 6)
        table = truth[:, None] + draw.normal(0, 2, 3) + draw.normal(0, 0.5, (6, 3))
        holed = [
            [one if there else None for one, there in zip(line, own, strict=True)]
            for line, own in zip(table, HOLES, strict=True)
        ]
        found = fit(runs(holed))
        for one, other in hits:
            own = found.difference(f"run {one}", f"run {other}")
            hits[one, other] += own.low <= truth[one] - truth[other] <= own.high
    assert all(0.93 < count / rounds < 0.97 for count in hits.values()), hits


def test_a_run_of_one_seed_has_an_interval_wider_than_one_of_several():
    draw = np.random.default_rng(5)
    table = draw.normal(0, 1, (4, 3)).tolist()
    table[3] = [table[3][0], None, None]
    found = fit(runs(table))
    several, one = (found.difference(f"run {row}", "run 0") for row in (2, 3))
    assert one.high - one.low > several.high - several.low
    assert one.basis == "1 seed against 3, noise of 3 runs, 4 degrees of freedom"


@settings(max_examples=50, deadline=None)
@given(table=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=3, max_size=5),
       shift=NUMBERS, scale=st.floats(0.1, 10))  # fmt: skip
def test_what_a_seed_does_to_all_runs_alike_changes_nothing_and_units_scale(table, shift, scale):
    before = fit(runs(table)).difference("run 1", "run 0")
    moved = [[scale * one + (shift if seed == 1 else 0) for seed, one in enumerate(line)]
             for line in table]  # fmt: skip
    after = fit(runs(moved)).difference("run 1", "run 0")
    assert after.difference == pytest.approx(scale * before.difference, abs=1e-6)
    if before.low is not None and after.low is not None:
        assert after.low == pytest.approx(scale * before.low, abs=1e-5)


def test_runs_without_a_chain_of_common_seeds_are_not_compared():
    found = fit(runs([[1, 2, 4, None, None], [1, 3, 4, None, None], [None, None, None, 7, 9],
                      [None, None, None, 6, 9]]))  # fmt: skip
    assert found.difference("run 0", "run 1") is not None
    assert found.difference("run 0", "run 2") is None


def test_a_chain_of_common_seeds_is_enough():
    """Run 2 and run 3 have no seed in common, but both have one with the first two."""
    table = [[1.0, 3.0, 6.0], [2.0, 4.5, 7.0], [5.0, None, None], [None, 8.0, None]]
    found = fit(runs(table)).difference("run 3", "run 2")
    seeds = (table[0][1] - table[0][0] + table[1][1] - table[1][0]) / 2
    assert found.difference == pytest.approx(8.0 - 5.0 - seeds)


def test_one_degree_of_freedom_tells_nothing_of_runs_of_one_seed():
    found = fit(runs([[1.0, 2.0], [2.0, 2.5], [3.0, None]]))
    assert found.freedom == 1
    assert found.difference("run 2", "run 0") is None
    assert found.difference("run 1", "run 0") is not None
    assert fit(runs([[1.0], [2.0], [3.0]])) is None
    assert fit({}) is None


def test_runs_whose_seeds_no_other_has_tell_nothing_of_the_noise():
    table = [
        [1.0, 2.0, 4.0, None, None],
        [1.5, 2.6, 4.1, None, None],
        [3.0, None, None, None, None],
        [None, None, None, 7.0, 9.0],
        [None, None, 3.0, 8.0, None],
    ]
    found = fit(runs(table[:4])).difference("run 2", "run 0")
    assert (found.pooled, found.freedom) == (2, 2)
    # Run 4 has one seed in common with the first, one with run 3: a chain, and no noise.
    assert fit(runs(table)).difference("run 2", "run 0").pooled == 2


def test_seeds_that_agree_to_the_digit_make_nothing_certain():
    found = fit(runs([[95.0, 94.0, 93.5], [94.5, 93.5, 93.0]])).difference("run 0", "run 1")
    assert (found.low, found.high, found.clear) == (None, None, False)
    assert found.difference == pytest.approx(0.5)
    assert found.basis == "3 seeds, paired, without any noise, so without an interval"
