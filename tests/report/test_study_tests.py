"""Statistics of a study against SciPy, simulation and numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from mjp.report.study_tests import Comparison, Estimate, apart, paired, paired_percent, spread


def seeds(*values):
    return {str(place): value for place, value in enumerate(values)}


def test_mean_and_standard_deviation_are_those_of_a_sample():
    found = spread([1.0, 2.0, 6.0])
    assert (found.mean, found.sd, found.count) == (3.0, pytest.approx(math.sqrt(7)), 3)
    assert spread([5.0]).sd is None


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_the_interval_over_seeds_is_scipys_of_paired_samples(count):
    draw = np.random.default_rng(count)
    ours, theirs = draw.normal(60, 1, count), draw.normal(59, 1, count)
    found = paired(seeds(*ours), seeds(*theirs))
    wanted = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.difference == pytest.approx((ours - theirs).mean())
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert (found.over, found.count) == ("seeds", count)


def test_two_seeds_by_hand():
    """Differences 1 and 3: mean 2, half width 12.706 times the standard error of 1."""
    found = paired({"0": 2.0, "1": 5.0}, {"0": 1.0, "1": 2.0})
    assert (found.low, found.high) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)
    assert not found.clear


def test_seeds_that_agree_to_the_digit_make_nothing_certain():
    found = paired({"0": 95.0, "1": 94.0, "2": 93.5}, {"0": 94.5, "1": 93.5, "2": 93.0})
    assert (found.difference, found.low, found.high, found.clear) == (0.5, None, None, False)
    assert found.basis == "3 seeds, paired, all with this difference, so without an interval"


def test_only_seeds_that_both_have_count_and_one_is_too_few():
    assert paired({"0": 1.0, "1": 2.0, "7": 9.0}, {"1": 1.0, "0": 1.0, "8": 5.0}).count == 2
    assert paired({"0": 1.0, "1": 2.0}, {"1": 1.0, "2": 1.0}) is None


def test_percent_is_of_the_other_seed_by_seed():
    found = paired_percent(seeds(10.2, 20.2), seeds(10.0, 20.0))
    assert found.difference == pytest.approx(1.5)
    assert paired_percent(seeds(1.0, 1.0), seeds(0.0, 1.0)) is None


def test_estimates_apart_add_in_squares_each_with_its_own_side():
    found = apart(Estimate(10, 7, 11), Estimate(4, 3, 8), 500)
    assert found.difference == 6
    assert (found.low, found.high) == (6 - 5, 6 + math.hypot(1, 1))


def test_the_interval_apart_holds_the_truth_as_often_as_it_says():
    draw, half, hits = np.random.default_rng(0), 1.96, 0
    for _ in range(2000):
        a, b = draw.normal(3, 1), draw.normal(1, 1)
        found = apart(Estimate(a, a - half, a + half), Estimate(b, b - half, b + half), 1)
        hits += found.low <= 2 <= found.high
    assert 0.93 < hits / 2000 < 0.97


@pytest.mark.parametrize(
    ("low", "high", "clear"),
    [(0.1, 1.0, True), (-1.0, -0.1, True), (-0.1, 0.1, False), (0.0, 1.0, False), (None, 1, False)],
)
def test_clear_is_what_leaves_zero_out(low, high, clear):
    assert Comparison(0.5, low, high, "images", 10).clear is clear


def test_what_an_interval_is_over_is_said():
    assert Comparison(1, 0, 2, "seeds", 3).basis == "3 seeds, paired"
    told = Comparison(1, 0, 2, "seeds", 3, tested=3, agreeing=2).basis
    assert told == "3 seeds, paired; clear over images in 2 of 3"
    assert Comparison(1, 0, 2, "images", 10000).basis == "10,000 images, paired, one seed"
    assert "not paired" in Comparison(1, 0, 2, "images apart", 16).basis
    assert Comparison(1, None, None, "nothing", 0).basis == "one seed, no interval"
    told = Comparison(1, None, None, "other seeds", 0).basis
    assert told == "different seeds, no interval"
