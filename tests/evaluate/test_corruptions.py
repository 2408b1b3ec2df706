"""Corruptions: as the package makes them, the same for the same seed, counted rightly."""

import io

import imagecorruptions
import numpy as np
import pytest
import torch
from PIL import Image
from skimage.data import astronaut

from mjp.core.errors import ConfigError, DataError
from mjp.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    FAST,
    SEVERITIES,
    CorruptingDecoder,
    corrupt,
    find_prepared,
)
from mjp.data.decoding import Reader, View
from mjp.data.source import FolderSource
from mjp.evaluate.corruptions import (
    ALEXNET_ERRORS,
    CLEAN,
    ErrorScorer,
    Outcome,
    corruption_record,
    summary_record,
)
from mjp.evaluate.evaluation import gather
from mjp.models.subject import Subject
from tests.data.pictures import write_folder
from tests.evaluate.subjects import ALONE, SIZE, blocks, tiny

PHOTOGRAPH = np.asarray(Image.fromarray(astronaut()).resize((56, 40)))


@pytest.fixture
def source(tmp_path):
    write_folder(tmp_path / "set", count=5)
    return FolderSource(tmp_path / "set")


def test_names_are_the_packages_in_its_order():
    assert list(CORRUPTIONS) == imagecorruptions.get_corruption_names("common")
    assert list(EXTRA_CORRUPTIONS) == imagecorruptions.get_corruption_names("validation")
    assert tuple(ALEXNET_ERRORS) == CORRUPTIONS


@pytest.mark.parametrize("name", [*CORRUPTIONS, *EXTRA_CORRUPTIONS])
def test_a_corruption_is_the_packages_for_the_same_seed(name):
    for severity in (1, 5):
        made = corrupt(PHOTOGRAPH, name, severity, seed=7)
        assert made.shape == PHOTOGRAPH.shape
        assert made.dtype == np.uint8
        np.random.seed(7)
        more = {"seed": 7} if name in ("impulse_noise", "glass_blur") else {}
        theirs = imagecorruptions.corrupt(PHOTOGRAPH, severity, name, **more)
        off = np.abs(made.astype(int) - theirs)
        assert off.max() <= (1 if name in FAST else 0)
        assert (off > 0).mean() < 0.08
        assert (made == corrupt(PHOTOGRAPH, name, severity, seed=7)).all()
        assert (made != PHOTOGRAPH).any()


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("levels", [0, 90, 255], ids=["black", "grey", "white"])
def test_fast_corruptions_are_the_packages_on_pictures_without_colour(name, levels):
    flat = np.full((33, 47, 3), levels, np.uint8)
    for severity in SEVERITIES:
        off = corrupt(flat, name, severity, 0).astype(int) - imagecorruptions.corrupt(
            flat, severity, name
        )
        assert np.abs(off).max() <= 1


@pytest.mark.parametrize("name", ["gaussian_noise", "impulse_noise", "glass_blur", "snow", "frost"])
def test_another_seed_makes_another_picture_and_the_global_generator_is_left_alone(name):
    np.random.seed(5)
    expected = np.random.RandomState(5).rand()
    one, other = (corrupt(PHOTOGRAPH, name, 3, seed) for seed in (1, 2))
    assert (one != other).any()
    assert np.random.rand() == expected


def test_nothing_is_printed_by_the_package_and_bad_names_are_refused(capsys):
    odd = np.asarray(Image.fromarray(PHOTOGRAPH).resize((45, 37)))
    for name in ("zoom_blur", "snow", "spatter"):
        for severity in SEVERITIES:
            corrupt(odd, name, severity, 0)
    assert capsys.readouterr().out == ""
    with pytest.raises(ConfigError, match="did you mean gaussian_noise"):
        corrupt(PHOTOGRAPH, "gausian_noise", 1, 0)


def versions(source, name="gaussian_noise", seed=0, workers=0, **more):
    decoder = CorruptingDecoder(source, View(SIZE), name, seed, **more)
    (block,) = Reader(source, decoder, ALONE, workers)
    return block.images


def test_what_an_image_gets_depends_on_seed_and_number_alone(source):
    whole = versions(source)
    assert whole.shape == (5, 5, 3, *SIZE)
    decoder = CorruptingDecoder(source, View(SIZE), "gaussian_noise", 0)
    assert torch.equal(whole[3], decoder._seeded(source.picture(3), 3))
    assert torch.equal(whole, versions(source, workers=2))
    assert not torch.equal(whole, versions(source, seed=1))


def test_pictures_go_through_jpeg_as_imagenet_cs_did(source):
    plain, through = versions(source, quality=None), versions(source, quality=85)
    buffer = io.BytesIO()
    Image.fromarray(plain[2, 4].permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=85)
    expected = np.asarray(Image.open(buffer).convert("RGB"))
    assert (through[2, 4].permute(1, 2, 0).numpy() == expected).all()


def test_kept_files_are_a_copy_of_imagenet_c_with_the_same_pictures(source, tmp_path):
    made = versions(source, keep=tmp_path / "c")
    folders = find_prepared(tmp_path / "c")
    assert list(folders) == ["gaussian_noise"]
    again = FolderSource(folders["gaussian_noise"][3])
    assert again.classes == source.classes
    (block,) = blocks(again, View(SIZE))
    order = torch.from_numpy(np.argsort(source.labels, kind="stable"))
    assert torch.equal(block.images, made[order, 3])


@pytest.mark.parametrize("name", ["../../out", "/out", ".hidden", "a/b", "a\\b", ""])
def test_a_class_that_cannot_be_a_folders_name_is_not_written(source, tmp_path, name):
    source.classes = (name, "bee", "cat")
    with pytest.raises(DataError, match="cannot be a folder's name"):
        CorruptingDecoder(source, View(SIZE), "fog", 0, keep=tmp_path / "c")


def test_archives_nest_corruptions_and_a_missing_severity_is_an_error(tmp_path):
    write_folder(tmp_path / "clean", count=4, classes=("snow", "sand"))  # Snow is a class here.
    for severity in (1, 2, 3, 4):
        (tmp_path / "blur" / "defocus_blur" / str(severity)).mkdir(parents=True)
    with pytest.raises(DataError, match=r"defocus_blur has no severity 5"):
        find_prepared(tmp_path)
    (tmp_path / "blur" / "defocus_blur" / "5").mkdir()
    assert [f.name for f in find_prepared(tmp_path)["defocus_blur"]] == list("12345")
    assert find_prepared(tmp_path / "nowhere") == find_prepared(tmp_path / "clean") == {}


@pytest.mark.parametrize("among_data", [False, True], ids=["all", "data"])
def test_errors_are_counted_for_each_version_among_the_classes_that_compete(source, among_data):
    one = Subject.of("wide", tiny("J", classes=7))
    outputs = torch.tensor([5, 2, 6])
    scorer = ErrorScorer(one, 5, outputs, batch=7, among_data=among_data)
    reader = Reader(source, CorruptingDecoder(source, one.view, "contrast", 0), ALONE, 0)
    (rows,) = gather([scorer], reader, len(source), ALONE, lambda _: None)
    images = versions(source, "contrast").flatten(0, 1)
    with torch.no_grad():
        logits = one.model(one.normalized(images)).unflatten(0, (5, 5))
    best = outputs[logits[..., outputs].argmax(dim=2)] if among_data else logits.argmax(dim=2)
    wrong = best != outputs[torch.from_numpy(source.labels)][:, None]
    np.testing.assert_array_equal(rows.read(), wrong.numpy())


def test_alexnet_itself_has_an_mce_of_100():
    outcomes = {
        name: Outcome((np.full(4, error / 2), np.full(4, 3 * error / 2)))
        for name, error in ALEXNET_ERRORS.items()
    }
    values = summary_record(outcomes, {"imagenet": True}, paired=True).values
    assert values["mce"] == pytest.approx(100)


def test_mce_and_its_interval_are_over_images_that_all_corruptions_share():
    rng = np.random.default_rng(0)
    outcomes = {
        name: Outcome(tuple((rng.random(200) < error).astype(float) for _ in SEVERITIES))
        for name, error in ALEXNET_ERRORS.items()
    }
    clean = {CLEAN: Outcome((np.array([1.0, 0, 0, 0]),))}
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
    outcome = Outcome((np.ones(3), np.zeros(4), np.ones(3), np.ones(3), np.ones(3)))
    record = corruption_record("fog", outcome, {"imagenet": True})
    assert record.values["error"] == pytest.approx(80)
    assert record.values["error_2"] == 0
    assert record.values["relative_to_alexnet"] == pytest.approx(80 / ALEXNET_ERRORS["fog"])
    assert '"error_low": null' in record.to_json()
