"""Confidence over some of a model's classes, and what is made of it; ties included."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mjp.data.source import FolderSource
from mjp.evaluate.confidence import (
    ConfidenceScorer,
    calibration_error,
    natural_values,
    outlier_values,
    response_rate_accuracy,
)
from mjp.models.subject import Subject
from tests.data.pictures import write_folder
from tests.evaluate.subjects import blocks, rows_of, tiny

levels = st.integers(0, 8).map(lambda number: number / 8)  # Few levels, so that there are ties.
answers = st.lists(st.tuples(levels, st.booleans()), min_size=1, max_size=40)


def test_confidence_is_the_largest_softmax_among_those_that_compete(tmp_path):
    write_folder(tmp_path, count=7)
    source, one = FolderSource(tmp_path), Subject.of("m", tiny("J", classes=9))
    competing = torch.tensor([8, 1, 4, 6])
    scorer = ConfidenceScorer(one, competing, torch.tensor([2, -1, 0]), batch=3)
    confidence, correct = rows_of(scorer, source, one.view).read().T
    (block,) = blocks(source, one.view)
    with torch.no_grad():
        shares = one.model(one.normalized(block.images))[:, competing].softmax(dim=1)
    np.testing.assert_allclose(confidence, shares.max(dim=1).values, rtol=1e-4)
    chosen = competing[shares.argmax(dim=1)]
    assert correct.tolist() == (chosen == torch.tensor([4, -1, 8])[source.labels]).tolist()


def test_intervals_hold_their_values_on_planted_answers():
    rng = np.random.default_rng(0)
    confidence = rng.random(2000)
    correct = rng.random(2000) < confidence  # Perfectly calibrated.
    values = natural_values(np.stack((confidence, correct), axis=1), 0)
    for name in ("accuracy", "aurra", "calibration_error"):
        assert values[f"{name}_low"] <= values[name] <= values[f"{name}_high"], name
    assert values["calibration_error_low"] < 1
    assert values["aurra"] > values["accuracy"]
    overconfident = natural_values(np.stack((np.sqrt(confidence), correct), axis=1), 0)
    assert overconfident["calibration_error_low"] > values["calibration_error_high"]


def test_outliers_are_those_of_low_confidence():
    rng = np.random.default_rng(1)
    low, high = 0.6 * rng.random(300), 0.4 + 0.6 * rng.random(700)
    values = outlier_values(low, high, 0)
    assert 90 < values["auroc_low"] < values["auroc"] < values["auroc_high"]
    threshold = np.sort(low)[284]  # The first that finds 95 % of the 300.
    assert values["fpr95"] == pytest.approx(100 * np.mean(high <= threshold))
    assert outlier_values(high, low, 0)["auroc"] < 10
    apart = outlier_values(low / 2, high, 0)
    assert [apart[name] for name in ("aupr", "auroc", "fpr95")] == pytest.approx([100, 100, 0])


@given(answers)
def test_response_rate_accuracy_averages_over_all_orders_of_equal_confidence(found):
    confidence, correct = np.array(found, float).T
    rng = np.random.default_rng(0)
    means = []
    for _ in range(400):
        shuffle = rng.permutation(len(found))
        order = shuffle[np.argsort(-confidence[shuffle], kind="stable")]
        means.append(np.mean(np.cumsum(correct[order]) / np.arange(1, len(order) + 1)))
    spread = np.std(means) / 20
    value = response_rate_accuracy(confidence, correct)
    assert value == pytest.approx(np.mean(means), abs=6 * spread + 1e-9)


@given(answers, st.integers(1, 12))
def test_calibration_error_is_that_of_a_loop_over_bins(found, size):
    confidence, correct = np.array(found, float).T
    order = np.argsort(confidence, kind="stable")
    count = max(1, len(order) // size)
    total = 0.0
    for number in range(count):
        stop = (number + 1) * size if number < count - 1 else len(order)
        rows = order[number * size : stop]
        total += len(rows) * (confidence[rows].mean() - correct[rows].mean()) ** 2
    value = calibration_error(confidence, correct, size)
    assert value == pytest.approx(np.sqrt(total / len(order)), abs=1e-9)
