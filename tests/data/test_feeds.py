"""Both feeds keep one contract: a batch depends on the seed and the step and on nothing else."""

from dataclasses import replace

import pytest
import torch

from mjp.core.errors import DataError
from mjp.data.batch import Batching, Finisher, ImageFormat
from mjp.data.config import AugmentSettings, DataSettings
from mjp.data.feed import WorkerFeed
from mjp.data.opening import open_both
from mjp.data.resident import ResidentFeed
from tests.data.pictures import encoded, write_folder, write_parquet

SIZE = (16, 12)
FORMAT = ImageFormat(SIZE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
STRONG = AugmentSettings(erasing=0.5, repeats=2, eval_crop=1.0)
SAMPLES, BATCH = 27, 8


class FeedContract:
    """What the training loop relies on."""

    kind: type

    @pytest.fixture
    def folder(self, tmp_path):
        write_folder(tmp_path / "train", SAMPLES)
        (tmp_path / "train" / "ant" / "000.png").write_bytes(encoded(0, (40, 25)))
        write_folder(tmp_path / "val", 13)
        return tmp_path

    def feed(self, folder, *, rank=0, processes=1, passes=1, augment=STRONG, **settings):
        settings = DataSettings(root=str(folder), **{"workers": 0, **settings})
        sources = open_both(settings)
        batching = Batching(BATCH, processes, rank, passes)
        finish = Finisher(augment, FORMAT, len(sources[0].classes), BATCH, 5)
        more = (settings, augment, FORMAT, batching, finish, 5, torch.device("cpu"))
        feed = self.kind(*sources, *more)
        feed.prepare(lambda what, done, total: None)
        return feed

    def test_batches_have_the_models_form(self, folder):
        batches = list(self.feed(folder).train(0, 3))
        assert [batch.step for batch in batches] == [0, 1, 2]
        for batch in batches:
            assert batch.inputs["images"].shape == (BATCH, 3, *SIZE)
            assert batch.inputs["images"].dtype == torch.float32
            torch.testing.assert_close(batch.inputs["targets"].sum(1), torch.ones(BATCH))
            assert batch.rows.sort().values.equal(torch.arange(BATCH))
        assert not batches[0].inputs["images"].equal(batches[1].inputs["images"])

    def test_a_feed_can_start_anywhere_with_any_number_of_workers(self, folder):
        whole = list(self.feed(folder).train(0, 6))
        rest = list(self.feed(folder, workers=2).train(4, 6))
        for one, other in zip(whole[4:], rest, strict=True):
            assert one.step == other.step
            assert one.inputs["images"].equal(other.inputs["images"])
            assert one.inputs["targets"].equal(other.inputs["targets"])

    @pytest.mark.parametrize(("processes", "passes"), [(2, 1), (1, 2), (2, 2)])
    def test_dividing_a_batch_changes_nothing_in_it(self, folder, processes, passes):
        alone = next(self.feed(folder).train(2, 3))
        images = torch.empty_like(alone.inputs["images"])
        targets = torch.empty_like(alone.inputs["targets"])
        for rank in range(processes):
            feed = self.feed(folder, rank=rank, processes=processes, passes=passes)
            parts = list(feed.train(2, 3))
            assert len(parts) == passes
            for part in parts:
                whole = part.rows.argsort()
                images[part.rows[whole]] = part.inputs["images"][whole]
                targets[part.rows[whole]] = part.inputs["targets"][whole]
        by_row = alone.rows.argsort()
        assert images.equal(alone.inputs["images"][by_row])
        torch.testing.assert_close(targets, alone.inputs["targets"][by_row])

    @pytest.mark.parametrize("processes", [1, 2, 3])
    def test_validation_counts_every_image_once(self, folder, processes):
        counted, labels, numbers = 0, [], set()
        for rank in range(processes):
            feed = self.feed(folder)
            feed.batching = Batching(6 * processes, processes, rank)
            batches = list(feed.validate())
            numbers.add(len(batches))
            for batch in batches:
                assert batch["images"].shape == (6, 3, *SIZE)
                counted += int(batch["counted"].sum())
                labels += batch["labels"][batch["counted"]].tolist()
        assert counted == 13
        assert sorted(labels) == sorted(number % 3 for number in range(13))
        assert len(numbers) == 1, "every process must get as many batches"

    def test_without_mixing_targets_are_smoothed_labels(self, folder):
        augment = replace(STRONG, mixup=0.0, cutmix=0.0, smoothing=0.3)
        batch = next(self.feed(folder, augment=augment).train(0, 1))
        assert batch.inputs["targets"].unique().tolist() == pytest.approx([0.1, 0.8])

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_corrupt_image_stops_the_feed_by_its_name(self, folder, workers):
        (folder / "train" / "bee" / "001.png").write_bytes(b"nonsense")
        with pytest.raises(DataError, match=r"^\S+bee/001.png .*--data.skip-corrupt") as raised:
            list(self.feed(folder, workers=workers).train(0, 30))
        assert "Traceback" not in str(raised.value)
        del raised  # Which holds the workers: they do not hear of it from the garbage collector.

    def test_corrupt_images_can_be_left_out_and_are_reported(self, folder):
        (folder / "train" / "bee" / "001.png").write_bytes(b"")
        (folder / "val" / "cat" / "002.png").write_bytes(b"junk")
        feed = self.feed(folder, skip_corrupt=True)
        assert len(list(feed.train(0, 30))) == 30
        assert sum(int(batch["counted"].sum()) for batch in feed.validate()) == 12
        assert len(feed.problems) == 2
        named = " ".join(feed.problems)
        assert "bee/001.png is empty" in named
        assert "cat/002.png cannot be read" in named


class TestWorkers(FeedContract):
    kind = WorkerFeed

    def test_nothing_but_corrupt_images_is_an_error_even_if_they_are_skipped(self, folder):
        for path in (folder / "train").rglob("*.png"):
            path.write_bytes(b"")
        with pytest.raises(DataError, match="in a row cannot be read"):
            list(self.feed(folder, skip_corrupt=True).train(0, 1))

    def test_streamed_tables_give_each_image_once_in_an_epoch(self, tmp_path, monkeypatch):
        monkeypatch.setattr("mjp.data.archives.WINDOW_BYTES", 9000)
        write_parquet(tmp_path / "train.parquet", range(24), group=5)
        write_parquet(tmp_path / "val.parquet", range(4))
        plain = replace(STRONG, repeats=1, mixup=0.0, cutmix=0.0, smoothing=0.0)
        seen: list[list] = [[], []]
        for rank in range(2):
            feed = self.feed(tmp_path, rank=rank, processes=2, augment=plain, workers=2)
            for batch in feed.train(0, 6):
                indices = feed.order.piece(batch.step * BATCH, BATCH)[batch.rows]
                labels = torch.from_numpy(feed.source.labels)[indices]
                assert batch.inputs["targets"].argmax(1).equal(labels)
                seen[batch.step // 3] += indices.tolist()
        assert [sorted(epoch) for epoch in seen] == [list(range(24))] * 2


class TestResident(FeedContract):
    kind = ResidentFeed

    def test_images_of_different_sizes_are_cropped_from_themselves(self, folder):
        """A feed of one plain colour per image must never show another's."""
        from PIL import Image

        for number, path in enumerate(sorted((folder / "train").rglob("*.png"))):
            Image.new("RGB", (10 + number, 40 - number), (9 * number, 0, 0)).save(path)
        off = dict.fromkeys(("color_jitter", "rand_augment", "erasing", "mixup", "cutmix"), 0.0)
        plain = AugmentSettings(repeats=1, **off)
        feed = self.feed(folder, augment=plain)
        for batch in feed.train(0, 4):
            indices = feed.order.piece(batch.step * BATCH, BATCH)[batch.rows]
            red = (batch.inputs["images"][:, 0] * 0.229 + 0.485) * 255
            expected = (9.0 * indices)[:, None, None].expand_as(red)
            torch.testing.assert_close(red, expected, atol=0.6, rtol=0)
