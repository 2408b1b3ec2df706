"""Errors under corruption are counted rightly, and averaged as mCE is."""

import numpy as np
import pytest
import torch

from mjp.data.corruptions import CORRUPTIONS, SEVERITIES, CorruptingDecoder
from mjp.data.decoding import Reader
from mjp.data.source import FolderSource
from mjp.evaluate.corruptions import (
    ALEXNET_ERRORS,
    CLEAN,
    ErrorScorer,
    WrongAnswers,
    corruption_record,
    summary_record,
)
from mjp.evaluate.evaluation import gather
from mjp.models.subject import Subject
from tests.data.pictures import write_folder
from tests.evaluate.subjects import ALONE, tiny


@pytest.mark.parametrize("among_data", [False, True], ids=["all", "data"])
def test_errors_are_counted_for_each_version_among_the_classes_that_compete(tmp_path, among_data):
    write_folder(tmp_path, count=5)
    source = FolderSource(tmp_path)
    one = Subject.of("wide", tiny("J", classes=7))
    outputs = torch.tensor([5, 2, 6])
    scorer = ErrorScorer(one, 5, outputs, batch=7, among_data=among_data)
    (block,) = Reader(CorruptingDecoder(source, one.view, "contrast", 0), ALONE, 0)
    (rows,) = gather([scorer], [block], len(source), ALONE, lambda _: None)
    images = block.images.flatten(0, 1)
    with torch.no_grad():
        logits = one.model(one.normalized(images)).unflatten(0, (5, 5))
    best = outputs[logits[..., outputs].argmax(dim=2)] if among_data else logits.argmax(dim=2)
    wrong = best != outputs[torch.from_numpy(source.labels)][:, None]
    np.testing.assert_array_equal(rows.read(), wrong.numpy())


def test_alexnet_itself_has_an_mce_of_100():
    outcomes = {
        name: WrongAnswers((np.full(4, error / 2), np.full(4, 3 * error / 2)))
        for name, error in ALEXNET_ERRORS.items()
    }
    values = summary_record(outcomes, {"imagenet": True}, paired=True).values
    assert values["mce"] == pytest.approx(100)


def test_mce_and_its_interval_are_over_images_that_all_corruptions_share():
    rng = np.random.default_rng(0)
    outcomes = {
        name: WrongAnswers(tuple((rng.random(200) < error).astype(float) for _ in SEVERITIES))
        for name, error in ALEXNET_ERRORS.items()
    }
    clean = {CLEAN: WrongAnswers((np.array([1.0, 0, 0, 0]),))}
    values = summary_record({**outcomes, **clean}, {"imagenet": True}, paired=True).values
    errors = {name: np.mean(outcome.errors) for name, outcome in outcomes.items()}
    shares = [error / ALEXNET_ERRORS[name] for name, error in errors.items()]
    assert values["mce"] == pytest.approx(100 * np.mean(shares))
    assert values["mean_error"] == pytest.approx(100 * np.mean(list(errors.values())))
    by_image = np.mean(
        [outcomes[name].by_image() / ALEXNET_ERRORS[name] for name in CORRUPTIONS], axis=0
    )
    half = 1.971957 * by_image.std(ddof=1) / np.sqrt(200)  # Student's t of 199.
    for end, sign in (("low", -1), ("high", 1)):
        expected = values["mce"] + sign * 100 * half
        assert values[f"mce_{end}"] == pytest.approx(expected, rel=1e-5)
    assert values["clean_error"] == 25
    assert values["corruptions"] == 15
    assert "mce" not in summary_record(outcomes, {"imagenet": False}, paired=True).values
    apart = summary_record(outcomes, {"imagenet": True}, paired=False)
    assert '"mce_low": null' in apart.to_json()
    some = summary_record({"fog": outcomes["fog"]}, {"imagenet": True}, paired=True).values
    assert "mean_error" not in some


def test_sets_of_different_sizes_have_errors_but_no_interval():
    outcome = WrongAnswers((np.ones(3), np.zeros(4), np.ones(3), np.ones(3), np.ones(3)))
    record = corruption_record("fog", outcome, {"imagenet": True})
    assert record.values["error"] == pytest.approx(80)
    assert record.values["error_2"] == 0
    assert record.values["relative_to_alexnet"] == pytest.approx(80 / ALEXNET_ERRORS["fog"])
    assert '"error_low": null' in record.to_json()
