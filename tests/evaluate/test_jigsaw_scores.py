"""Accuracy, consistency and Diff. Norm. against a slow second way, and what they must not depend
on."""

import numpy as np
import pytest
import torch

import mjp
from mjp.core.seeds import generator_for
from mjp.core.team import Team
from mjp.data.decoding import BLOCK
from mjp.data.source import FolderSource
from mjp.evaluate.accuracy import JigsawScorer, to_differences, to_records
from mjp.evaluate.evaluation import Rows, gather
from mjp.models.subject import Subject
from tests.data.pictures import write_folder
from tests.evaluate.subjects import ALONE, blocks, rows_of, settings, subject, tiny

SETTINGS = settings(0.1, 0.5, 0.9, draws=2, seed=3)
CLASSES = torch.arange(3)


@pytest.fixture
def source(tmp_path):
    write_folder(tmp_path / "set", count=11)
    return FolderSource(tmp_path / "set")


class Scores:
    """The columns of the rows by their names."""

    def __init__(self, rows, options):
        self.rows = rows
        self.top1, self.top5 = rows.values[:, :2].T
        shape = (len(rows.values), len(options.ratios), options.draws, 3)
        self.correct, self.same, self.moved = np.moveaxis(rows.values[:, 2:].reshape(shape), -1, 0)


def scores_of(one, source, options=SETTINGS, **more):
    scorer = JigsawScorer(one, options, CLASSES, **more)
    return Scores(rows_of(scorer, source, one.view), options)


def pixels_of(one, source):
    """The images as the model takes them, one by one and without a loader."""
    cut = one.view.transform()
    levels = torch.stack([torch.as_tensor(cut(source.picture(i))) for i in range(len(source))])
    mean, std = (torch.tensor(v)[:, None, None] for v in (one.inputs.mean, one.inputs.std))
    return (levels / 255 - mean) / std


def test_scores_are_those_of_images_taken_one_by_one(source):
    one = subject("J")
    found = scores_of(one, source)
    images, labels = pixels_of(one, source), torch.from_numpy(source.labels)
    for draw in range(2):
        generator = generator_for(3, "evaluation jigsaw 0.5", rank=draw, step=0)
        plans = mjp.sample_plan(mjp.PatchGrid(4, 6), BLOCK, 0.5, generator)
        for index in range(len(source)):
            image, plan = images[index : index + 1], plans[index : index + 1]
            with torch.no_grad():
                clean, jigsaw = one.model(image), one.model(image, plan=plan)
                features = [
                    one.model.forward_head(
                        one.model.forward_features(image, plan=p), pre_logits=True
                    )
                    for p in (None, plan)
                ]
            assert found.top1[index] == (clean.argmax() == labels[index])
            assert found.same[index, 1, draw] == (clean.argmax() == jigsaw.argmax())
            assert found.correct[index, 1, draw] == (jigsaw.argmax() == labels[index])
            distance = (features[0] - features[1]).norm().item()
            assert found.moved[index, 1, draw] == pytest.approx(distance, rel=1e-4)


@pytest.mark.parametrize("batch", [1, 4, 11])
def test_scores_do_not_depend_on_how_many_are_computed_at_a_time(source, batch):
    one, steps = subject("J"), []
    whole = scores_of(one, source)
    scorer = JigsawScorer(one, SETTINGS, CLASSES, batch)
    (rows,) = gather([scorer], blocks(source, one.view), len(source), ALONE, steps.append)
    parts = Scores(rows, SETTINGS)
    assert (whole.same == parts.same).all()
    assert 0 < whole.same.mean() < 1
    np.testing.assert_allclose(whole.moved, parts.moved, rtol=1e-4)
    assert sum(steps) == len(source) * 7 == 11 * 7
    assert max(steps) == batch


def test_processes_share_the_blocks_and_their_sum_is_exact(source, monkeypatch):
    monkeypatch.setattr("mjp.data.decoding.BLOCK", 4)
    monkeypatch.setattr("mjp.data.decoding.UNIT", 2)
    one = subject("J")
    whole = scores_of(one, source).rows
    readable, values = np.zeros(len(source)), np.zeros_like(whole.values)
    for rank in range(3):
        alone = Team(rank, 1, ALONE.device)  # So that it does not sum up itself.
        part = blocks(source, one.view, Team(rank, 3, ALONE.device))
        scorer = JigsawScorer(one, SETTINGS, CLASSES)
        (rows,) = gather([scorer], part, len(source), alone, lambda _: None)
        readable, values = readable + rows.readable, values + rows.values
    assert (readable == 1).all()
    np.testing.assert_array_equal(values, whole.values)


def test_a_plain_models_jigsaw_in_pixels_is_the_same_as_on_its_tokens(source):
    # Moving pixel patches before a stride-P embedding equals moving tokens after it.
    inside, outside = subject("A"), subject("A", jigsaw="pixels")
    assert inside.plans_inside
    assert not outside.plans_inside
    assert inside.jigsaw == outside.jigsaw == "pixels"
    one, other = scores_of(inside, source), scores_of(outside, source)
    assert (one.same == other.same).all()
    np.testing.assert_allclose(one.moved, other.moved, rtol=1e-3, atol=1e-4)


def test_a_model_without_positions_is_perfectly_consistent(source):
    found = scores_of(subject("B"), source)
    assert (found.same == 1).all()
    assert found.moved.max() < 1e-3


def test_equal_logits_are_the_same_class_with_and_without_a_jigsaw(source):
    one = subject("A")
    one.model.head.weight.data.zero_()
    one.model.head.bias.data.zero_()
    assert (scores_of(one, source).same == 1).all()


def test_unknown_positions_reach_the_model_only_where_they_are_wanted(source):
    inside, outside = subject("J"), subject("J", jigsaw="pixels")
    assert inside.jigsaw == "unknown positions"
    assert outside.jigsaw == "pixels"
    assert not np.allclose(scores_of(inside, source).moved, scores_of(outside, source).moved)


def test_only_the_classes_of_the_data_compete_where_that_is_asked_for(source):
    one = Subject.of("tiny", tiny("A", classes=9))
    outputs = torch.tensor([8, 2, 5])
    options = settings(0.5, draws=1, among="data")
    rows = rows_of(JigsawScorer(one, options, outputs), source, one.view)
    with torch.no_grad():
        best = one.model(pixels_of(one, source))[:, outputs].argmax(dim=1).numpy()
    np.testing.assert_array_equal(rows.values[:, 0], best == source.labels)


def test_records_hold_the_means_in_percent_with_intervals_around_them(source):
    one = subject("J")
    found = scores_of(one, source)
    accuracy, *jigsaws = to_records(found.rows, 24, SETTINGS, one.facts())
    assert accuracy.values["top1"] == pytest.approx(100 * found.top1.mean())
    assert accuracy.conditions["jigsaw"] == "unknown positions"
    assert [record.conditions["ratio"] for record in jigsaws] == [0.1, 0.5, 0.9]
    for place, record in enumerate(jigsaws):
        values = record.values
        assert values["consistency"] == pytest.approx(100 * found.same[:, place].mean())
        assert values["diff_norm"] == pytest.approx(found.moved[:, place].mean(), rel=1e-5)
        assert values["consistency_low"] <= values["consistency"] <= values["consistency_high"]
        assert values["patches_moved"] == round(record.conditions["ratio"] * 24)


def test_a_difference_is_taken_image_by_image(source):
    one, two = subject("A"), subject("J")
    first, second = scores_of(one, source), scores_of(two, source)
    facts = one.facts(), two.facts()
    records = to_differences(first.rows, second.rows, SETTINGS, *facts)
    assert len(records) == len({record.key() for record in records}) == 10
    values = {(r.conditions["value"], r.conditions["ratio"]): r.values for r in records}
    expected = 100 * (second.same[:, 2].mean() - first.same[:, 2].mean())
    assert values["consistency", 0.9]["difference"] == pytest.approx(expected)
    assert records[0].conditions["than_mjp_positions"] == "own"
    for record in to_differences(first.rows, first.rows, SETTINGS, facts[0], facts[0]):
        assert set(record.values.values()) == {0}
    unread = Rows(np.arange(11) > 0, first.rows.values)
    some = to_differences(first.rows, unread, SETTINGS, *facts)
    assert {record.values["difference"] for record in some} == {0}


@pytest.mark.unchecked
@pytest.mark.parametrize("variant", ["A", "J"])
def test_a_compiled_model_scores_the_same(source, monkeypatch, variant):
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **k: real(*a, backend="eager", **k))
    plain, compiled = subject(variant), subject(variant).on(ALONE.device, compiled=True)
    assert compiled.runner is not plain.runner
    one, other = scores_of(plain, source), scores_of(compiled, source)
    assert (one.same == other.same).all()
    np.testing.assert_allclose(one.moved, other.moved, rtol=1e-4)
