"""Intervals against scipy's bootstrap and against what is known of planted data."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from mjp.core.bootstrap import Estimate, estimates


def test_intervals_are_those_of_scipys_percentile_bootstrap():
    values = np.random.default_rng(0).normal(3, 2, (400, 2))
    found = estimates(values, seed=0, resamples=4000)
    for column, one in enumerate(found):
        drawn = bootstrap(
            (values[:, column],), np.mean, method="percentile", n_resamples=4000, rng=1
        )
        interval = drawn.confidence_interval
        assert one.mean == pytest.approx(values[:, column].mean())
        assert (one.low, one.high) == pytest.approx((interval.low, interval.high), abs=0.02)


def test_intervals_cover_the_truth_in_about_95_of_100_samples():
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        one = estimates((rng.random((150, 1)) < 0.7).astype(float), seed, resamples=300)[0]
        hits += one.low <= 0.7 <= one.high
    assert 178 <= hits <= 199


def test_several_draws_for_an_image_count_as_one_observation():
    each = (np.random.default_rng(2).random(300) < 0.5).astype(float)
    once = estimates(each[:, None], seed=0)[0]
    thrice = np.repeat(each[:, None], 3, axis=1).mean(axis=1, keepdims=True)
    assert estimates(thrice, seed=0)[0] == once


def test_a_constant_has_an_interval_of_no_width_and_exactly_its_value():
    assert estimates(np.ones((37, 1)), seed=0)[0] == Estimate(1.0, 1.0, 1.0)


def test_the_same_seed_gives_the_same_interval_and_another_one_another():
    values = np.random.default_rng(3).random((100, 1))
    assert estimates(values, seed=4) == estimates(values, seed=4)
    assert estimates(values, seed=4) != estimates(values, seed=5)


def test_many_images_are_resampled_in_pieces(monkeypatch):
    values = np.random.default_rng(5).random((1000, 2))
    whole = estimates(values, seed=0, resamples=50)
    monkeypatch.setattr("mjp.core.bootstrap.CHUNK", 3000)
    pieces = estimates(values, seed=0, resamples=50)
    for one, other in zip(whole, pieces, strict=True):
        assert (one.low, one.high) == pytest.approx((other.low, other.high))
