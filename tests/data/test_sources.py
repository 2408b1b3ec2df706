"""Every source keeps one contract; each also says clearly what is wrong with its files."""

import pickle
import resource
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from mjp.core.errors import ConfigError, DataError
from mjp.data.archives import HubSource, ParquetSource, TarSource
from mjp.data.config import DataSettings
from mjp.data.embedded import DigitsSource, PositionsSource
from mjp.data.opening import open_both, open_images
from mjp.data.source import FolderSource, drawn, of_classes
from tests.data.pictures import CLASSES, encoded, pixels, write_folder, write_parquet, write_tar


class SourceContract:
    """What training relies on, inherited by the test of every source."""

    count: int
    classes: tuple[str, ...]

    @pytest.fixture
    def source(self, tmp_path):
        return self.open(tmp_path)

    def open(self, folder: Path):
        raise NotImplementedError

    def test_has_its_images_its_classes_and_a_label_for_each(self, source):
        assert len(source) == self.count
        assert source.classes == self.classes
        assert source.labels.shape == (self.count,)
        assert {source[index].label for index in range(8)} <= set(range(len(self.classes)))
        assert [source[i].label for i in range(8)] == source.labels[:8].tolist()
        assert len({source.name_of(index) for index in range(self.count)}) == self.count

    def test_every_image_decodes_to_rgb_the_same_each_time(self, source):
        for index in (0, 1, self.count - 1):
            once, again = source.picture(index), source.picture(index)
            assert once.mode == "RGB"
            assert np.array_equal(np.asarray(once), np.asarray(again))

    def test_an_order_visits_every_image_once_and_follows_its_generator(self, source):
        first, second = (source.order(torch.Generator().manual_seed(1)) for _ in range(2))
        assert first.sort().values.equal(torch.arange(self.count))
        assert first.equal(second)
        assert not first.equal(source.order(torch.Generator().manual_seed(2)))

    def test_a_stream_gives_the_images_asked_for(self, source):
        order = source.order(torch.Generator().manual_seed(3))[3 : 3 + 20]
        for index, sample in zip(order.tolist(), source.stream(order), strict=True):
            assert sample.label == source.labels[index]
            assert np.array_equal(np.asarray(sample.decode()), np.asarray(source.picture(index)))

    def test_survives_being_sent_to_another_process(self, source):
        source.picture(0)
        copy = pickle.loads(pickle.dumps(source))
        assert np.array_equal(np.asarray(copy.picture(1)), np.asarray(source.picture(1)))


class TestFolder(SourceContract):
    count, classes = 12, CLASSES

    def open(self, folder):
        write_folder(folder)
        (folder / "ant" / "notes.txt").write_text("no picture")
        return FolderSource(folder)

    def test_finds_pictures_in_folders_below_a_class(self, tmp_path):
        write_folder(tmp_path)
        (tmp_path / "ant" / "deeper").mkdir()
        (tmp_path / "ant" / "deeper" / "one.webp").write_bytes(encoded(50))
        assert len(FolderSource(tmp_path)) == 13


class TestManyParquetFiles(SourceContract):
    count, classes = 30, CLASSES

    @pytest.fixture(autouse=True)
    def window(self, monkeypatch):
        """Holds four or so of the twelve row groups."""
        monkeypatch.setattr("mjp.data.archives.WINDOW_BYTES", 12_000)

    def open(self, folder):
        files = [folder / f"train-{number}.parquet" for number in range(3)]
        for number, path in enumerate(files):
            write_parquet(path, range(10 * number, 10 * number + 10), group=3)
        return ParquetSource(files, readers=2)

    def test_a_stream_reads_each_row_group_once_and_holds_few_at_a_time(self, source, monkeypatch):
        reads, held = [], []
        read, room = ParquetSource._read, ParquetSource._room
        monkeypatch.setattr(
            ParquetSource, "_read", lambda self, group: reads.append(group) or read(self, group)
        )
        monkeypatch.setattr(
            ParquetSource, "_room", lambda self, now: held.append(len(now)) or room(self, now)
        )
        assert sum(1 for _ in source.stream(source.order(torch.Generator().manual_seed(0)))) == 30
        assert sorted(reads) == list(range(12))
        assert max(held) < 9

    def test_rows_of_different_groups_are_mixed(self, source):
        order = source.order(torch.Generator().manual_seed(0)).tolist()
        together = sum(abs(one - other) == 1 for one, other in pairwise(order))
        assert together < 12


class TestParquetWithoutNames(SourceContract):
    count, classes = 12, ("0", "1", "2")

    def open(self, folder):
        write_parquet(folder / "all.parquet", range(12), names=False)
        return ParquetSource([folder / "all.parquet"])

    def test_holds_the_pictures_that_were_written(self, source):
        assert np.array_equal(np.asarray(source.picture(7)), pixels(7))


class TestTars(SourceContract):
    count, classes = 12, ("0", "1", "2")

    def open(self, folder):
        shards = [folder / "train-0.tar", folder / "train-1.tar"]
        write_tar(shards[0], range(7))
        write_tar(shards[1], range(7, 12))
        return TarSource(shards)

    def test_gives_what_timms_reader_of_webdatasets_gives(self, source, tmp_path):
        from timm.data.readers.reader_wds import ReaderWds

        reader = ReaderWds(
            root=str(tmp_path), split="train-{0..1}.tar", num_samples=12, is_training=False
        )
        theirs = [(np.asarray(image.convert("RGB")), label) for image, label in reader]
        assert len(theirs) == 12
        for index, (image, label) in enumerate(theirs):
            assert source.labels[index] == label
            assert np.array_equal(np.asarray(source.picture(index)), image)


class TestHub(SourceContract):
    count, classes = 12, CLASSES

    def open(self, folder):
        write_parquet(folder / "data" / "train-00000-of-00001.parquet", range(12))
        return HubSource(str(folder / "data"), "train")


class TestDigits(SourceContract):
    count, classes = 1438, tuple("0123456789")

    def open(self, folder):
        return DigitsSource("train")

    def test_the_splits_share_no_image(self, source):
        val = DigitsSource("val")
        assert len(val) + len(source) == 1797
        train = {source[index].content.tobytes() for index in range(len(source))}
        shared = sum(val[index].content.tobytes() in train for index in range(len(val)))
        assert shared == 0


class TestPositions(SourceContract):
    count = 90
    classes = PositionsSource("train", 9).classes

    def open(self, folder):
        return PositionsSource("train", 90)

    def test_an_image_does_not_depend_on_the_size_of_the_set(self, source):
        larger = PositionsSource("train", 200)
        assert np.array_equal(larger[17].content, source[17].content)
        assert not np.array_equal(PositionsSource("val", 90)[17].content, source[17].content)
        assert not np.array_equal(
            PositionsSource("train", 90, seed=1)[17].content, source[17].content
        )

    def test_the_class_is_in_the_place_of_the_disc_and_in_nothing_else(self):
        """Seen as bags of patches all classes look alike; seen as images they do not."""
        source = PositionsSource("train", 1800)
        images = np.stack([source[index].content for index in range(1800)]).astype(float)
        patches = images.reshape(1800, 12, 4, 12, 4, 3).std(axis=(2, 4, 5)).reshape(1800, 144)
        bags = np.sort(patches, axis=1)[:, [10, 70, 120, 135, 143]]
        spread = bags.std(axis=0)
        for label in range(9):
            chosen = source.labels == label
            gap = np.abs(bags[chosen].mean(axis=0) - bags.mean(axis=0))
            assert (gap < 4 * spread / np.sqrt(chosen.sum())).all()
        contrast = np.stack([patches[source.labels == label].mean(axis=0) for label in range(9)])
        assert (contrast.max(axis=0) - contrast.min(axis=0)).max() > 3


def open_root(root: Path, **more):
    return open_both(DataSettings(root=str(root), **more))


def test_auto_finds_out_what_the_root_holds(tmp_path):
    write_folder(tmp_path / "f" / "train")
    write_parquet(tmp_path / "p" / "data" / "train-0.parquet", range(6))
    write_tar(tmp_path / "t" / "train-0.tar", range(6))
    write_folder(tmp_path / "a" / "train")
    write_tar(tmp_path / "a" / "train.tar", range(6))  # The archive that the folders came from.
    write_parquet(tmp_path / "d" / "x" / "y" / "z" / "train-0.parquet", range(6))
    write_tar(tmp_path / "e" / "x" / "y" / "z" / "train-0.tar", range(6))
    kinds = [type(open_images(str(tmp_path / name), split="train")) for name in "fptade"]
    expected = [FolderSource, ParquetSource, TarSource, FolderSource, ParquetSource, TarSource]
    assert kinds == expected


@pytest.mark.parametrize("write", [write_parquet, write_tar])
def test_a_split_is_a_word_a_pattern_or_for_none_the_validation_part(write, tmp_path):
    ending = {write_parquet: "parquet", write_tar: "tar"}[write]
    write(tmp_path / f"train-0.{ending}", range(6))
    assert len(open_images(str(tmp_path))) == 6, "the only file there is"
    write(tmp_path / f"train-1.{ending}", range(5))
    write(tmp_path / "deep" / f"validation.{ending}", range(4))
    sizes = {"train": 11, f"*-1.{ending}": 5, f"deep/*.{ending}": 4, None: 4}
    for split, size in sizes.items():
        assert len(open_images(str(tmp_path), split=split)) == size
    assert len(open_images(str(tmp_path / f"train-1.{ending}"))) == 5
    with pytest.raises(DataError, match=r"no file .* matches '\*test\*.*There is validation"):
        open_images(str(tmp_path), split="test")


def test_embedded_sets_have_their_two_parts():
    train, val = open_both(DataSettings(source="positions", size=50, train="a", val="b"))
    assert (train.name, len(train)) == ("positions (train)", 50)
    assert (val.name, len(val)) == ("positions (val)", 10)
    assert open_images("digits").name == "digits (val)"
    assert open_images("digits", split="train").name == "digits (train)"


def test_both_splits_share_their_classes(tmp_path):
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "val", 2, ("bee", "cat"))
    train, val = open_root(tmp_path)
    assert val.classes == train.classes == CLASSES
    assert val.labels.tolist() == [1, 2]


def test_a_root_that_cannot_be_one_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"needs data: name its folder with --data.root"):
        open_both(DataSettings())
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file"):
        with pytest.raises(DataError, match=f"data.root .*{name} is not a folder"):
            open_root(tmp_path / name)
    with pytest.raises(ConfigError, match=r"embedded and has no data\.root"):
        DataSettings(source="digits", root="x")
    with pytest.raises(DataError, match="cannot be had"):
        open_root(tmp_path, source="hub")


ROWS = ([encoded(0), encoded(1)], pa.binary())
DEEP = {"huggingface": "[" * 100_000 + "]" * 100_000}
NO_TAR = r"train.tar cannot be read as an uncompressed tar"


def image_table(root, content=ROWS[0], kind=ROWS[1], labels=(0, 1), metadata=None, width=None):
    """A training table of two rows, each column as its maker likes."""
    image = pa.StructArray.from_arrays([pa.array(content, kind)], ["bytes"])
    label = pa.array(labels, width or (pa.uint64() if max(labels) > 2**63 else pa.int64()))
    table = pa.table({"image": image, "label": label}).replace_schema_metadata(metadata)
    pq.write_table(table, root / "train.parquet")


def tar_with_size(root: Path, field: bytes) -> None:
    """A tar whose first header says, in twelve bytes, that its file has this size."""
    write_tar(root / "train.tar", range(2))
    content = bytearray((root / "train.tar").read_bytes())
    content[124:136] = field
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    (root / "train.tar").write_bytes(content)


def folders_with(root: Path, name: str, files: int) -> None:
    """Two splits with one more class in one of them."""
    for split in ("train", "val"):
        write_folder(root / split)
    (root / name).mkdir()
    write_folder((root / name).parent, files, ((root / name).name,))


def numbered(root: Path, labels: list, split: str = "train") -> None:
    write_parquet(root / f"{split}.parquet", range(len(labels)), labels)


def write(root: Path, ending: str, content: bytes) -> None:
    (root / f"train.{ending}").write_bytes(content)


def tar_of(root: Path, *labels: bytes) -> None:
    write_tar(root / "train.tar", range(len(labels)), list(labels))


WRONG = {
    r"class folder .*train/dog holds no pictures": (folders_with, "train/dog", 0),
    r"val has classes that training does not know: dog": (folders_with, "val/dog", 1),
    r"train has no subfolders; expected one for each class": (
        lambda root: (root / "train").mkdir(),
    ),
    r"row 1 .*has label 3, but there are 3 classes, 0 to 2": (numbered, [0, 3, 1]),
    r"row 1 .*has label -1": (numbered, [0, None, 1]),
    r"train.parquet holds no images": (numbered, []),
    r"train.parquet cannot be read as Parquet": (write, "parquet", b"not a table"),
    r"has no column 'image'; it has img": (
        lambda root: pq.write_table(pa.table({"img": [1]}), root / "train.parquet"),
    ),
    r"no file .* matches '\*train\*.parquet'.*There is val.parquet": (numbered, [0], "val"),
    r"column 'image' of .* is struct<bytes: int64>; expected": (image_table, [1, 2], pa.int64()),
    r"column 'image' of .* is struct<bytes: string>; ex": (image_table, ["a", "b"], pa.string()),
    r"metadata 'huggingface' of too many levels": (image_table, *ROWS, [0, 1], DEEP),
    r"'label' cannot be read: .*18446744073709551615": (image_table, *ROWS, [0, 2**64 - 1]),
    r"label 200000000 and no names of classes": (image_table, *ROWS, [0, 200_000_000]),
    r"row group 0 holds 3 MiB of images in 2 rows": (image_table, [bytes(3 * 2**20), encoded(0)]),
    NO_TAR: (write, "tar", b"not a tar" * 100),
    r"001.cls in .*train.tar holds b'bee', not the number": (tar_of, b"0", b"bee"),
    r"has label 200000000 and no names": (tar_of, b"0", b"200000000"),
    r"001.cls in .* holds b'9+', not the number of a class": (tar_of, b"0", b"9" * 60),
    NO_TAR + r".*": (tar_with_size, b"\x80" + b"\xff" * 11),
    NO_TAR + r": .*a size of -": (tar_with_size, b"\xff" * 11 + b"\0"),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_with_data_is_said_in_one_line_at_once(words, tmp_path, monkeypatch):
    monkeypatch.setattr("mjp.data.archives.LARGEST_IMAGE", 2**20)
    make, *how = WRONG[words]
    make(tmp_path, *how)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(DataError, match=words) as raised:
        open_root(tmp_path)
    assert time.process_time() - start < 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 100 * 1024
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"GIF but not really", r"cannot be read as a picture"),
        (encoded(1)[:60], r"cannot be read as a picture"),
        (encoded(1, (40, 40)), r"cannot be read as a picture: .*decompression bomb"),
        (None, "No such file"),
    ],
)
def test_a_picture_that_cannot_be_read_is_named(content, words, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    write_folder(tmp_path)
    source, file = FolderSource(tmp_path), tmp_path / "ant" / "000.png"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"ant/000.png " + words):
        source.picture(0)


def test_a_subset_gives_the_same_pictures_in_order(tmp_path):
    write_parquet(tmp_path / "a.parquet", range(30))
    source = open_images(str(tmp_path / "a.parquet"))
    few = drawn(source, 8, torch.Generator().manual_seed(0))
    assert drawn(source, 100, torch.Generator()) is source
    names = [source.name_of(index) for index in range(30)]
    places = [names.index(few.name_of(index)) for index in range(len(few))]
    assert len(few) == 8
    assert places == sorted(set(places))
    for place, sample in enumerate(few.stream(torch.arange(8))):
        assert sample.content == source[places[place]].content == few[place].content


def test_images_of_some_classes_are_found_by_name_or_by_order(tmp_path):
    write_folder(tmp_path, count=12)
    source = FolderSource(tmp_path)
    cats = of_classes(source, ("cat", "dog"))
    assert [source.classes[label] for label in cats.labels] == ["cat"] * 4
    second = of_classes(source, ("y",), in_order=("x", "y", "z"))
    assert set(second.labels.tolist()) == {1}
    source.classes = ("2", "0", "1")  # As folders that are numbers are sorted.
    assert set(of_classes(source, ("y",), in_order=("x", "y", "z")).labels.tolist()) == {2}
    with pytest.raises(DataError, match="none of the 1 classes"):
        of_classes(source, ("q",))
