"""Every metric against scikit-learn or a slow second implementation, ties included."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from mjp.evaluate import metrics

levels = st.integers(0, 8).map(lambda number: number / 8)  # Few levels, so that there are ties.
two_kinds = st.tuples(st.lists(levels, min_size=1, max_size=30), st.lists(levels, min_size=1))
answers = st.lists(st.tuples(levels, st.booleans()), min_size=1, max_size=40)


def labelled(one, other):
    scores = np.array([*one, *other])
    return np.array(one), np.array(other), scores, np.r_[np.ones(len(one)), np.zeros(len(other))]


@given(two_kinds)
def test_false_alarm_rate_is_that_of_scikit_learns_first_threshold_at_95_percent(kinds):
    outliers, inliers, scores, labels = labelled(*kinds)
    false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
    expected = false[np.argmax(true >= 0.95 - 1e-12)]
    assert metrics.false_alarm_rate(outliers, inliers) == pytest.approx(expected)


def test_a_perfect_detector_has_perfect_numbers_and_a_reversed_one_the_worst():
    low, high = np.linspace(0, 0.4, 20), np.linspace(0.6, 1, 30)
    assert metrics.area_under_roc(high, low) == pytest.approx(1)
    assert metrics.average_precision(high, low) == pytest.approx(1)
    assert metrics.false_alarm_rate(high, low) == 0
    assert metrics.area_under_roc(low, high) == 0
    assert metrics.false_alarm_rate(low, high) == 1


@given(answers)
def test_response_rate_accuracy_averages_over_all_orders_of_equal_confidence(found):
    confidence, correct = (np.array(column) for column in zip(*found, strict=True))
    rng = np.random.default_rng(0)
    means = []
    for _ in range(400):
        shuffle = rng.permutation(len(found))
        order = shuffle[np.argsort(-confidence[shuffle], kind="stable")]
        means.append(np.mean(np.cumsum(correct[order]) / np.arange(1, len(order) + 1)))
    spread = np.std(means) / 20
    value = metrics.response_rate_accuracy(confidence.astype(float), correct)
    assert value == pytest.approx(np.mean(means), abs=6 * spread + 1e-9)


def test_response_rate_accuracy_of_planted_answers():
    confidence = np.array([0.9, 0.8, 0.7, 0.6])
    correct = np.array([True, True, False, False])
    expected = (1 + 1 + 2 / 3 + 2 / 4) / 4
    assert metrics.response_rate_accuracy(confidence, correct) == pytest.approx(expected)
    assert metrics.response_rate_accuracy(confidence[::-1].copy(), correct) < expected


@given(answers, st.integers(1, 12))
def test_calibration_error_is_that_of_a_loop_over_bins(found, size):
    confidence, correct = (np.array(column, float) for column in zip(*found, strict=True))
    order = np.argsort(confidence, kind="stable")
    count = max(1, len(order) // size)
    total = 0.0
    for number in range(count):
        stop = (number + 1) * size if number < count - 1 else len(order)
        rows = order[number * size : stop]
        total += len(rows) * (confidence[rows].mean() - correct[rows].mean()) ** 2
    value = metrics.calibration_error(confidence, correct > 0, size)
    assert value == pytest.approx(np.sqrt(total / len(order)), abs=1e-9)


def test_calibration_error_of_planted_answers():
    confidence = np.r_[np.full(100, 0.2), np.full(100, 0.9)]
    correct = np.r_[np.arange(100) < 20, np.arange(100) < 90]
    assert metrics.calibration_error(confidence, correct) == pytest.approx(0)
    overconfident = np.r_[np.full(100, 0.5), np.full(100, 0.9)]
    expected = np.sqrt(0.3**2 / 2)
    assert metrics.calibration_error(overconfident, correct) == pytest.approx(expected)


def test_alexnet_itself_has_an_mce_of_one():
    errors = {name: [error] * 5 for name, error in metrics.ALEXNET_ERRORS.items()}
    assert metrics.mean_corruption_error(errors) == pytest.approx(1)
    halved = {name: [error / 4, 3 * error / 4] for name, error in metrics.ALEXNET_ERRORS.items()}
    assert metrics.mean_corruption_error(halved) == pytest.approx(0.5)


def test_mce_is_over_all_fifteen_corruptions():
    errors = {name: [0.5] for name in list(metrics.ALEXNET_ERRORS)[1:]}
    with pytest.raises(ValueError, match="gaussian_noise is missing"):
        metrics.mean_corruption_error(errors)
