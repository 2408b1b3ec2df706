"""Corruptions: as the package makes them, the same for the same seed, kept as ImageNet-C's."""

import io

import imagecorruptions
import numpy as np
import pytest
import torch
from PIL import Image
from skimage.data import astronaut

from mjp.core.errors import ConfigError, DataError
from mjp.core.team import Team
from mjp.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    FAST,
    SEVERITIES,
    CorruptingDecoder,
    corrupt,
    find_prepared,
)
from mjp.data.decoding import Decoder, Reader, View
from mjp.data.source import FolderSource
from tests.data.pictures import write_folder

PHOTOGRAPH = np.asarray(Image.fromarray(astronaut()).resize((56, 40)))
SIZE = (32, 48)
ALONE = Team(0, 1, torch.device("cpu"))


@pytest.fixture
def source(tmp_path):
    write_folder(tmp_path / "set", count=5)
    return FolderSource(tmp_path / "set")


def test_names_are_the_packages_in_its_order():
    assert list(CORRUPTIONS) == imagecorruptions.get_corruption_names("common")
    assert list(EXTRA_CORRUPTIONS) == imagecorruptions.get_corruption_names("validation")


@pytest.mark.parametrize("name", [*CORRUPTIONS, *EXTRA_CORRUPTIONS])
def test_a_corruption_is_the_packages_for_the_same_seed(name):
    for severity in (1, 5):
        np.random.seed(5)
        made = corrupt(PHOTOGRAPH, name, severity, seed=7)
        assert np.random.rand() == np.random.RandomState(5).rand(), "the global generator is used"
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


def test_bad_names_are_refused():
    with pytest.raises(ConfigError, match="did you mean gaussian_noise"):
        corrupt(PHOTOGRAPH, "gausian_noise", 1, 0)


def versions(source, name="gaussian_noise", seed=0, workers=0, **more):
    decoder = CorruptingDecoder(source, View(SIZE), name, seed, **more)
    (block,) = Reader(decoder, ALONE, workers)
    return block.images


def test_what_an_image_gets_depends_on_seed_and_number_alone(source):
    whole = versions(source)
    assert whole.shape == (5, 5, 3, *SIZE)
    decoder = CorruptingDecoder(source, View(SIZE), "gaussian_noise", 0)
    assert torch.equal(whole[3], decoder.shown(source.picture(3), 3))
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
    (block,) = Reader(Decoder(again, View(SIZE).transform()), ALONE, 0)
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
