"""Intervals against scipy and against what is known of planted data."""

import math

import numpy as np
import pytest
from scipy import stats

from mjp.core.statistics import Estimate, estimates


def test_intervals_are_scipys_of_student():
    values = np.random.default_rng(0).normal(3, 2, (40, 2))
    for column, estimate in zip(values.T, estimates(values), strict=True):
        interval = stats.ttest_1samp(column, 0).confidence_interval(0.95)
        assert estimate.mean == pytest.approx(column.mean())
        assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("images", [4, 16, 150])
def test_intervals_cover_the_truth_in_at_least_93_of_100_samples(images):
    samples = np.random.default_rng(images).normal(20, 5, (images, 4000))
    covering = [estimate.low <= 20 <= estimate.high for estimate in estimates(samples)]
    assert 0.93 <= np.mean(covering) <= 0.97


def test_several_draws_for_an_image_count_as_one_observation():
    each = (np.random.default_rng(2).random(300) < 0.5).astype(float)
    thrice = np.repeat(each[:, None], 4, axis=1).mean(axis=1, keepdims=True)
    assert estimates(thrice)[0] == estimates(each[:, None])[0]


def test_a_constant_has_an_interval_of_no_width_and_exactly_its_value():
    assert estimates(np.ones((37, 1)))[0] == Estimate(1.0, 1.0, 1.0)


def test_a_single_value_has_no_interval():
    estimate = estimates(np.array([[3.0]]))[0]
    assert estimate.mean == 3
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)


def test_the_interval_of_a_share_stays_within_0_and_100_percent():
    (estimate,) = estimates(np.array([[1.0], [1.0], [0.0]]))
    assert estimate.high > 1
    assert estimate.percent() == Estimate(100 * estimate.mean, 0.0, 100.0)
    assert math.isnan(estimates(np.array([[0.5]]))[0].percent().low)
