"""The resident feed: images are decoded once, kept as bytes on the device, and augmented there."""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from PIL import Image
from torch import Tensor

from mjp.core.errors import ConfigError, DataError
from mjp.core.seeds import generator_for
from mjp.data.batch import Batch, SampleOrder
from mjp.data.boxes import Boxes, crop_and_resize, crop_boxes
from mjp.data.decoding import Decoded, Decoder, decoded, joined_pixels, tickets
from mjp.data.feed import Feed, Progress, share
from mjp.data.rand_augment import Layer, apply_layer, draw_layers
from mjp.data.source import Source

KEPT_SIDE = 2
"""Images are kept with a shorter side of at most so many times the model's."""

DECODED_AT_ONCE = 256


class Draws(NamedTuple):
    """All that is random in a step, for its whole batch, on the host."""

    indices: Int64[Tensor, " batch"]
    boxes: Boxes
    flipped: Bool[Tensor, " batch"]
    layers: list[Layer]


class ResidentFeed(Feed):
    """Batches cut out of images that lie on the device; for data that fits there."""

    def prepare(self, progress: Progress) -> None:
        """Decodes both splits; unreadable images are left out where they are to be skipped."""
        self._load_train(progress)
        self._load_val(progress)
        # On the device, any order is as fast as another.
        size = len(self._labels)
        self.order = SampleOrder(
            size,
            lambda generator: torch.randperm(size, generator=generator),
            self.seed,
            self.augment.repeats,
        )

    @property
    def samples(self) -> int:
        return len(self._labels)

    def train(self, start: int, stop: int) -> Iterator[Batch]:
        return prepared_ahead(self._batches(start, stop), self.device)

    def _batches(self, start: int, stop: int) -> Iterator[Batch]:
        for step in range(start, stop):
            draws = self._draw(step)
            for index in range(self.batching.passes):
                rows = self.batching.rows(index)
                images, labels = self._augmented(draws, rows)
                yield Batch(self.finish(images, labels, step, rows), step, rows)

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

    def _draw(self, step: int) -> Draws:
        batch, augment = self.batching.batch, self.augment
        generator = generator_for(self.seed, "augment", step=step)
        indices = self.order.piece(step * batch, batch)
        heights, widths = self._heights[indices], self._widths[indices]
        boxes = crop_boxes(heights, widths, augment.crop_scale, augment.crop_ratio, generator)
        flipped = torch.rand(batch, generator=generator) < augment.flip
        return Draws(indices, boxes, flipped, draw_layers(batch, augment, generator))

    def _augmented(self, draws: Draws, rows: Int64[Tensor, " chunk"]) -> tuple[Tensor, Tensor]:
        indices, mirrored = draws.indices[rows], draws.flipped[rows].long()
        table = torch.cat((indices[None], draws.boxes[:, rows], mirrored[None]))
        if self.device.type == "cuda":
            table = table.pin_memory()
        table = table.to(self.device, non_blocking=True)
        place = table[0]
        images = crop_and_resize(
            self._gathered(place, indices),
            table[1:5],
            self.format.size,
            table[5].bool(),
            self.augment.interpolation,
        )
        for layer in draws.layers:
            images = apply_layer(images, layer[rows], self.format.fill(self.device))
        return images, self._labels[place]

    def _gathered(
        self, place: Int64[Tensor, " chunk"], indices: Int64[Tensor, " chunk"]
    ) -> UInt8[Tensor, "chunk height width 3"]:
        """Whole images; smaller ones are filled up at the right and below, out of any box."""
        high, wide = self._max_size
        if self._uniform:
            return self._pixels.view(-1, high, wide, 3)[place]
        high, wide = int(self._heights[indices].max()), int(self._widths[indices].max())
        row = torch.arange(high, device=self.device)[None, :, None]
        col = torch.arange(wide, device=self.device)[None, None, :]
        start, height, width = (
            values[place][:, None, None] for values in (self._starts, *self._sizes_on_device)
        )
        return self._pixels[start + row.minimum(height - 1) * width + col.minimum(width - 1)]

    def _load_train(self, progress: Progress) -> None:
        pieces, sizes, labels = [], [], []
        smaller = partial(_kept_pixels, KEPT_SIDE * max(self.format.size))
        what = "decoding training images"
        for part in self._decoded(self.source, smaller, what, progress, joined_pixels):
            pixels, shape = part.images
            if not part.readable.all():
                pixels = pixels[part.readable.repeat_interleave(shape.prod(dim=1))]
            # Copies: what workers send lies in shared memory, of which there may be little.
            pieces.append(pixels.clone())
            sizes.append(shape[part.readable])
            labels.append(part.labels[part.readable])
            kept = sum(map(len, labels))
            if kept:
                self._check_room(sum(piece.numel() for piece in pieces) / kept)
        size = torch.cat(sizes)
        if not len(size):
            raise DataError(f"no image of {self.source.name} can be read")
        self._heights, self._widths = size.unbind(1)
        counts = self._heights * self._widths
        self._starts = (counts.cumsum(0) - counts).to(self.device)
        self._pixels = _joined(pieces, self.device)
        self._labels = torch.cat(labels).to(self.device)
        self._sizes_on_device = (self._heights.to(self.device), self._widths.to(self.device))
        self._max_size = (int(self._heights.max()), int(self._widths.max()))
        self._uniform = bool((size == size[0]).all())

    def _load_val(self, progress: Progress) -> None:
        images, labels = [], []
        what = "decoding validation images"
        for part in self._decoded(self.val_source, self.view.transform(), what, progress):
            images.append(part.images[part.readable])  # Which copies.
            labels.append(part.labels[part.readable])
        if not sum(map(len, labels)):
            raise DataError(f"no image of {self.val_source.name} can be read")
        self._val_images = _joined(images, self.device)
        self._val_labels = torch.cat(labels).to(self.device)

    def _decoded(
        self, source: Source, transform: Any, what: str, progress: Progress, *join: Any
    ) -> Iterator[Decoded]:
        decoder = Decoder(source, transform, self.seed, replace=False)
        asked = tickets(source, range(len(source)), torch.arange(len(source)))
        workers = self.num_workers if len(source) > 8 * DECODED_AT_ONCE else 0
        done = 0
        for part in decoded(decoder, asked, DECODED_AT_ONCE, workers, torch.device("cpu"), *join):
            self.report(part.problems)
            done += len(part.labels)
            progress(what, done, len(source))
            yield part

    def _check_room(self, bytes_per_image: float) -> None:
        if self.device.type != "cuda":
            return
        needed = bytes_per_image * len(self.source)
        free, _ = torch.cuda.mem_get_info(self.device)
        if needed > 0.7 * free:
            raise ConfigError(
                f"{len(self.source)} images take {needed / 2**30:.1f} GiB, too much of the "
                f"{free / 2**30:.1f} GiB free on {self.device}; use --data.feed workers"
            )


def _kept_pixels(side: int, picture: Image.Image) -> UInt8[Tensor, "height width 3"]:
    """A picture as bytes, made smaller if its shorter side is longer than this one."""
    shorter = min(picture.size)
    if shorter > side:
        scale = side / shorter
        size = (round(picture.width * scale), round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(picture))


def _joined(pieces: list[Tensor], device: torch.device) -> Tensor:
    """The pieces one after another on the device, without a second copy of all on the host."""
    out = torch.empty(
        (sum(map(len, pieces)), *pieces[0].shape[1:]), dtype=torch.uint8, device=device
    )
    start = 0
    for piece in pieces:
        out[start : start + len(piece)] = piece
        start += len(piece)
    return out


DEPTH = 2
"""Batches that may wait; each takes the memory of a batch."""


def prepared_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches in the same order; on a GPU, made while the ones before are trained on.

    Starting the many small kernels of augmentation keeps a host busy for as long as a small model
    computes; a second thread starts them while the first starts the model's. Nothing in that thread
    may be compiled by torch.compile, which cannot be used while another thread compiles.
    """
    if device.type != "cuda":
        yield from batches
        return
    ready: queue.Queue[tuple[Batch, torch.cuda.Event] | BaseException | None]
    ready = queue.Queue(DEPTH)
    done = threading.Event()
    stream = torch.cuda.Stream(device)

    def put(item: tuple[Batch, torch.cuda.Event] | BaseException | None) -> None:
        while not done.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=0.1)
                break

    def work() -> None:
        try:
            with torch.cuda.device(device), torch.cuda.stream(stream):
                for batch in batches:
                    put((batch, stream.record_event()))
                    if done.is_set():
                        return
            put(None)
        except BaseException as error:  # Raised again where the batches are asked for.
            put(error)

    thread = threading.Thread(target=work, name="mjp feed", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            batch, event = item
            current = torch.cuda.current_stream(device)
            current.wait_event(event)
            for tensor in batch.inputs.values():
                tensor.record_stream(current)
            yield batch
    finally:
        done.set()
        thread.join()
