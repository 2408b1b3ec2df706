"""No image is lost or seen twice in an epoch, however a run is divided."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mjp.core.errors import ConfigError
from mjp.data.batch import Batching, Calendar, SampleOrder


def order_of(size: int, repeats: int = 1) -> SampleOrder:
    return SampleOrder(size, lambda g: torch.randperm(size, generator=g), 0, repeats)


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 4))
def test_each_epoch_of_the_stream_visits_every_image_once(size, batch, epochs):
    calendar = Calendar(size, batch, epochs)
    order = order_of(size)
    stream = torch.cat([order.piece(step * batch, batch) for step in range(calendar.steps)])
    for epoch in range(epochs):
        seen = stream[epoch * size : (epoch + 1) * size]
        assert seen.sort().values.equal(torch.arange(size))


def test_repeated_augmentation_repeats_fewer_images_side_by_side():
    epoch = order_of(30, repeats=3).epoch(0)
    assert len(epoch) == 30
    assert set(Counter(epoch.tolist()).values()) == {3}
    assert epoch.view(10, 3).eq(epoch.view(10, 3)[:, :1]).all()
    assert not epoch.equal(order_of(30, repeats=3).epoch(1))
    assert len(order_of(5, repeats=3).piece(0, 16)) == 16


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
def test_chunks_share_a_batch_out_and_keep_partners_together(processes, passes, pairs):
    batch = 2 * processes * passes * pairs
    seen = []
    for rank in range(processes):
        batching = Batching(batch, processes, rank, passes)
        for number in range(passes):
            rows = batching.rows(number)
            assert len(rows) == batching.chunk
            assert (rows + rows.flip(0)).eq(batch - 1).all()
            seen += rows.tolist()
    assert sorted(seen) == list(range(batch))


def test_repeats_of_an_image_go_to_different_processes():
    rows = [set(Batching(24, 3, rank).rows(0).tolist()) for rank in range(3)]
    assert all(len(own & {0, 1, 2}) == 1 for own in rows)


def test_a_batch_that_cannot_be_divided_is_refused():
    with pytest.raises(ConfigError, match="use a multiple of 12"):
        Batching(64, processes=3, passes=2)


@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 6))
def test_the_calendar_counts_steps_and_epochs_alike(samples, batch, epochs):
    calendar = Calendar(samples, batch, epochs)
    for step in range(calendar.steps):
        epoch = calendar.epoch_of(step)
        assert step < calendar.end_of(epoch)
        assert epoch == 0 or step >= calendar.end_of(epoch - 1)
        done = calendar.finished(step + 1)
        assert (done is not None) == (step + 1 == calendar.end_of(epoch))
    assert calendar.steps * batch >= samples * epochs
    assert calendar.finished(calendar.steps) == epochs - 1
