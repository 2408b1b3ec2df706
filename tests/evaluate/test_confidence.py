"""Confidence over some of a model's classes, and what is made of it."""

import numpy as np
import pytest
import torch

from mjp.core.errors import DataError
from mjp.data.opening import open_images
from mjp.data.source import FolderSource, Subset, drawn, of_classes
from mjp.evaluate.confidence import (
    ConfidenceScorer,
    natural_values,
    outlier_values,
    places_among,
)
from mjp.models.subject import Subject
from tests.data.pictures import write_folder, write_parquet
from tests.evaluate.subjects import blocks, rows_of, tiny


def test_confidence_is_the_largest_softmax_among_those_that_compete(tmp_path):
    write_folder(tmp_path, count=7)
    source, one = FolderSource(tmp_path), Subject.of("m", tiny("J", classes=9))
    competing = torch.tensor([8, 1, 4, 6])
    places = places_among(torch.tensor([4, 0, 8]), competing)
    assert places.tolist() == [2, -1, 0]
    scorer = ConfidenceScorer(one, competing, places, batch=3)
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
    values = natural_values(confidence, correct, 0)
    for name in ("accuracy", "aurra", "calibration_error"):
        assert values[f"{name}_low"] <= values[name] <= values[f"{name}_high"], name
    assert values["calibration_error_low"] < 1
    assert values["aurra"] > values["accuracy"]
    overconfident = natural_values(np.sqrt(confidence), correct, 0)
    assert overconfident["calibration_error_low"] > values["calibration_error_high"]


def test_outliers_are_those_of_low_confidence():
    rng = np.random.default_rng(1)
    low, high = 0.6 * rng.random(300), 0.4 + 0.6 * rng.random(700)
    values = outlier_values(low, high, 0)
    assert values["auroc"] > 90
    assert values["auroc_low"] < values["auroc"] < values["auroc_high"]
    assert outlier_values(high, low, 0)["auroc"] < 10


def test_a_subset_gives_the_same_pictures_in_order(tmp_path):
    write_parquet(tmp_path / "a.parquet", range(30))
    source = open_images(str(tmp_path / "a.parquet"))
    few = drawn(source, 8, torch.Generator().manual_seed(0))
    assert len(few) == 8
    assert drawn(source, 100, torch.Generator()) is source
    indices = few._indices
    assert (np.diff(indices) > 0).all()
    for place, sample in enumerate(few.stream(torch.arange(8))):
        assert sample.content == source[int(indices[place])].content == few[place].content
    assert few.name_of(3) == source.name_of(int(indices[3]))


def test_images_of_some_classes_are_found_by_name_or_by_order(tmp_path):
    write_folder(tmp_path, count=12)
    source = FolderSource(tmp_path)
    cats = of_classes(source, ("cat", "dog"))
    assert [source.classes[label] for label in cats.labels] == ["cat"] * 4
    second = of_classes(source, ("y",), in_order=("x", "y", "z"))
    assert set(second.labels.tolist()) == {1}
    numbered = Subset(source, np.arange(12), "numbered")
    numbered.classes = ("2", "0", "1")
    assert set(of_classes(numbered, ("y",), in_order=("x", "y", "z")).labels.tolist()) == {2}
    with pytest.raises(DataError, match="none of the 1 classes"):
        of_classes(source, ("q",))
