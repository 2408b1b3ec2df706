"""Statistics of a study against simulation and numbers worked out by hand."""

import math

import numpy as np
import pytest

from mjp.report.study_tests import Comparison, Estimate, apart, spread, together


def test_mean_and_standard_deviation_are_those_of_a_sample():
    found = spread([1.0, 2.0, 6.0])
    assert (found.mean, found.sd, found.count) == (3.0, pytest.approx(math.sqrt(7)), 3)
    assert spread([5.0]).sd is None


def test_estimates_apart_add_in_squares_each_with_its_own_side():
    found = apart(Estimate(10, 7, 11), Estimate(4, 3, 8), 500)
    assert found.difference == 6
    assert (found.low, found.high) == pytest.approx((6 - 5, 6 + math.hypot(1, 1)))


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
    told = Comparison(1, 0, 2, "seeds", 1, against=3, pooled=4, freedom=6).basis
    assert told == "1 seed against 3, noise of 4 runs, 6 degrees of freedom"
    assert Comparison(1, 0, 2, "images", 10000).basis == "10,000 images, paired, of one seed"
    assert "not paired" in Comparison(1, 0, 2, "images apart", 16).basis
    assert Comparison(1, None, None, "nothing", 0).basis == "one seed, no interval"
    told = Comparison(1, None, None, "other seeds", 0).basis
    assert told == "different seeds, no interval"


def test_several_comparisons_say_once_what_they_are_over():
    one, two = (
        Comparison(1, 0, 2, "seeds", count, against=2, pooled=4, freedom=3) for count in (1, 2)
    )
    assert together([one, two]) == "1 to 2 seeds each, noise of 4 runs, 3 degrees of freedom"
    assert together([two, two]) == "2 seeds each, noise of 4 runs, 3 degrees of freedom"
    images = Comparison(1, 0, 2, "images", 10)
    assert together([two, images]) == f"{two.basis} or {images.basis}"
