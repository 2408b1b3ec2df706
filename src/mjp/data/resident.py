"""The resident feed: images are decoded once, kept as bytes on the device, and augmented there."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from PIL import Image
from torch import Tensor

from mjp.core.errors import ConfigError, DataError
from mjp.core.seeds import generator_for
from mjp.data.batch import Batch, SampleOrder
from mjp.data.boxes import crop_and_resize, crop_boxes, on_device
from mjp.data.decoding import Decoder, decoded, tickets
from mjp.data.feed import Feed, Progress, share
from mjp.data.rand_augment import Layer, apply_layer, draw_layers
from mjp.data.source import Source

KEPT_SIDE = 2
"""Images are kept with a shorter side of at most so many times the model's."""

DECODED_AT_ONCE = 256


class ResidentFeed(Feed):
    """Batches cut out of images that lie on the device; for data that fits there."""

    def prepare(self, progress: Progress) -> None:
        """Decodes both splits; unreadable images are left out where they are to be skipped."""
        transform = partial(_shrunk, KEPT_SIDE * max(self.format.size))
        pixels, shapes, self._labels = self._load(self.source, transform, "training", progress)
        self._pixels, self._sizes = pixels.view(-1, 3), shapes[:, :2]
        counts = self._sizes.prod(dim=1)
        places = torch.column_stack((counts.cumsum(0) - counts, self._sizes))
        self._places = places.to(self.device)
        self._uniform = bool((shapes == shapes[0]).all())
        what = (self.val_source, self.view.transform(), "validation")
        pixels, _, self._val_labels = self._load(*what, progress)
        self._val_images = pixels.view(-1, 3, *self.format.size)
        # On the device, any order is as fast as another.
        size = self.samples
        self.order = SampleOrder(
            size, lambda g: torch.randperm(size, generator=g), self.seed, self.augment.repeats
        )

    @property
    def samples(self) -> int:
        return len(self._labels)

    def train(self, start: int, stop: int) -> Generator[Batch, None, None]:
        return prepared_ahead(self._batches(start, stop), self.device)

    def _batches(self, start: int, stop: int) -> Generator[Batch, None, None]:
        """All that is random in a step is drawn for its whole batch, on the host."""
        batch, augment = self.batching.batch, self.augment
        for step in range(start, stop):
            generator = generator_for(self.seed, "augment", step=step)
            indices = self.order.piece(step * batch, batch)
            high, wide = self._sizes[indices].unbind(1)
            boxes = crop_boxes(high, wide, augment.crop_scale, augment.crop_ratio, generator)
            flipped = torch.rand(batch, generator=generator) < augment.flip
            layers = draw_layers(batch, augment, generator)
            table = torch.cat((indices[None], boxes, flipped[None].long()))
            for index in range(self.batching.passes):
                rows = self.batching.rows(index)
                images, labels = self._augmented(table[:, rows], [layer[rows] for layer in layers])
                yield Batch(self.finish(images, labels, step, rows), step, rows)

    def _augmented(
        self, table: Int64[Tensor, "6 chunk"], layers: list[Layer]
    ) -> tuple[Tensor, Tensor]:
        largest = self._sizes[table[0]].amax(0).tolist()
        table = on_device(table, self.device)
        place = table[0]
        images = crop_and_resize(
            self._gathered(place, *largest),
            table[1:5],
            self.format.size,
            table[5].bool(),
            self.augment.interpolation,
        )
        for layer in layers:
            images = apply_layer(images, layer, self.format.fill(self.device))
        return images, self._labels[place]

    def _gathered(
        self, place: Int64[Tensor, " chunk"], high: int, wide: int
    ) -> UInt8[Tensor, "chunk high wide 3"]:
        """Whole images; smaller ones are filled up at the right and below, out of any box."""
        if self._uniform:
            return self._pixels.view(-1, high, wide, 3)[place]
        row = torch.arange(high, device=self.device)[None, :, None]
        col = torch.arange(wide, device=self.device)[None, None, :]
        start, height, width = self._places[place].T[:, :, None, None]
        return self._pixels[start + row.minimum(height - 1) * width + col.minimum(width - 1)]

    def validate(self) -> Iterator[dict[str, Tensor]]:
        numbers, count = share(len(self._val_labels), self.batching)
        counted = torch.arange(len(numbers)) < count
        chunk = self.batching.chunk
        for some, counts in zip(numbers.split(chunk), counted.split(chunk), strict=True):
            place = some.to(self.device)
            yield {
                "images": self.format.normalize(self._val_images[place]),
                "labels": self._val_labels[place],
                "counted": counts.to(self.device),
            }

    def _load(
        self, source: Source, transform: Callable[[Image.Image], Any], part: str, progress: Progress
    ) -> tuple[UInt8[Tensor, " bytes"], Int64[Tensor, "images 3"], Int64[Tensor, " images"]]:
        """All readable images: their bytes on the device, their shapes, and their labels."""
        pieces: list[np.ndarray] = []
        shapes, labels = [], []
        decoder = Decoder(source, partial(_stored, transform), self.seed)
        asked = tickets(source, range(len(source)), torch.arange(len(source)))
        workers = self.num_workers if len(source) > 8 * DECODED_AT_ONCE else 0
        host = torch.device("cpu")
        done = size = 0
        for images, number, readable in decoded(
            decoder, asked, DECODED_AT_ONCE, workers, host, self.problems
        ):
            content, shape = images
            kept = bytearray().join(compress(content, readable.tolist()))
            pieces.append(np.frombuffer(kept, np.uint8))
            shapes.append(torch.stack(shape, dim=1)[readable])
            labels.append(number[readable])
            done, size = done + len(number), size + len(kept)
            self._check_room(size / done * len(source))
            progress(f"decoding {part} images", done, len(source))
        if not size:
            raise DataError(f"no image of {source.name} can be read")
        # On the device without a second copy of all on the host.
        pixels = torch.empty(size, dtype=torch.uint8, device=self.device)
        start = 0
        for piece in pieces:
            pixels[start : start + len(piece)] = torch.from_numpy(piece)
            start += len(piece)
        return pixels, torch.cat(shapes), torch.cat(labels).to(self.device)

    def _check_room(self, needed: float) -> None:
        if self.device.type != "cuda":
            return
        free, _ = torch.cuda.mem_get_info(self.device)
        if needed > 0.7 * free:
            raise ConfigError(
                f"the images take {needed / 2**30:.1f} GiB, too much of the "
                f"{free / 2**30:.1f} GiB free on {self.device}; use --data.feed workers"
            )


def _shrunk(side: int, picture: Image.Image) -> Image.Image:
    """A picture, made smaller if its shorter side is longer than this one."""
    shorter = min(picture.size)
    if shorter <= side:
        return picture
    scale = side / shorter
    size = (round(picture.width * scale), round(picture.height * scale))
    return picture.resize(size, Image.Resampling.BICUBIC)


def _stored(
    transform: Callable[[Image.Image], Any], picture: Image.Image
) -> tuple[bytes, tuple[int, ...]]:
    """Levels as bytes, which workers send without shared memory, and their shape."""
    levels = np.asarray(transform(picture))
    return levels.tobytes(), levels.shape


DEPTH = 2
"""Batches that may wait; each takes the memory of a batch."""


def prepared_ahead(batches: Iterator[Batch], device: torch.device) -> Generator[Batch, None, None]:
    """The same batches in the same order; on a GPU, made while the ones before are trained on.

    Starting the many small kernels of augmentation keeps a host busy for as long as a small model
    computes; a second thread starts them while the first starts the model's. Nothing in that thread
    may be compiled by torch.compile, which cannot be used while another thread compiles.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream = torch.cuda.Stream(device)

    def prepare() -> tuple[Batch | None, torch.cuda.Event]:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            return next(batches, None), stream.record_event()

    thread = ThreadPoolExecutor(1, thread_name_prefix="mjp feed")
    waiting = deque(thread.submit(prepare) for _ in range(DEPTH))
    try:
        while True:
            batch, event = waiting.popleft().result()
            if batch is None:
                return
            waiting.append(thread.submit(prepare))
            current = torch.cuda.current_stream(device)
            current.wait_event(event)
            for tensor in batch.inputs.values():
                tensor.record_stream(current)
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)
