"""The resident feed: images are decoded once, kept as bytes on the device, and augmented there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from PIL import Image
from torch import Tensor

from mjp.core.errors import ConfigError, DataError
from mjp.core.seeds import generator_for
from mjp.data.ahead import prepared_ahead
from mjp.data.batch import Batch
from mjp.data.boxes import Boxes, crop_boxes
from mjp.data.decoding import Decoder, collate, collate_list, loader, tickets
from mjp.data.feed import Feed, Progress, eval_transform
from mjp.data.order import SampleOrder
from mjp.data.rand_augment import Layer, apply_layer, draw_layers
from mjp.data.resampling import crop_and_resize
from mjp.data.source import Source
from mjp.data.workers import cut, share

KEPT_SIDE = 2
"""Images are kept with a shorter side of at most so many times the model's."""

DECODED_AT_ONCE = 256

_DECODED = (
    *("_pixels", "_starts", "_heights", "_widths", "_labels", "_sizes_on_device", "_max_size"),
    *("_uniform", "_val_images", "_val_labels", "problems"),
)
"""What decoding leaves in a feed."""


@dataclass(frozen=True, eq=False)
class Draws:
    """All that is random in a step, for its whole batch, on the host."""

    indices: Int64[Tensor, " batch"]
    boxes: Boxes
    flipped: Bool[Tensor, " batch"]
    layers: list[Layer]


class ResidentFeed(Feed):
    """Batches cut out of images that lie on the device; for data that fits there."""

    _pixels: UInt8[Tensor, "pixels 3"]
    _starts: Int64[Tensor, " samples"]
    _heights: Int64[Tensor, " samples"]
    _widths: Int64[Tensor, " samples"]
    _labels: Int64[Tensor, " samples"]
    _val_images: UInt8[Tensor, "samples 3 height width"]
    _val_labels: Int64[Tensor, " samples"]

    def prepare(self, progress: Progress, before: Sequence[Feed] = ()) -> None:
        """Decodes both splits, or takes them over from an earlier feed that holds the same;
        unreadable images are left out where they are to be skipped."""
        for other in before:
            if self.same_images(other):
                for name in _DECODED:
                    setattr(self, name, getattr(other, name))
                break
        else:
            self._load_train(progress)
            self._load_val(progress)
        # On the device, any order is as fast as another.
        size = len(self._labels)
        permute = partial(_permutation, size)
        self.order = SampleOrder(size, permute, self.seed, self.augment.repeats)

    def same_images(self, other: Feed) -> bool:
        if not isinstance(other, ResidentFeed):
            return False
        sources = ((self.source, other.source), (self.val_source, other.val_source))
        return self._what_is_decoded() == other._what_is_decoded() and all(
            np.array_equal(mine.labels, theirs.labels) for mine, theirs in sources
        )

    def _what_is_decoded(self) -> tuple[Any, ...]:
        """All that decides what the decoded images are, but for the labels of their sources."""
        return (
            self.source.name,
            self.val_source.name,
            self.format.size,
            self.augment.eval_crop,
            self.augment.interpolation,
            self.settings.skip_corrupt,
            self.device,
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
        batching = self.batching
        samples = len(self._val_labels)
        own, count = share(samples, batching.processes, batching.rank, batching.chunk)
        counted = torch.arange(len(own)) < count
        for numbers, counts in zip(
            own.split(batching.chunk), counted.split(batching.chunk), strict=True
        ):
            place = numbers.to(self.device)
            images = self.format.normalize(self._val_images[place])
            labels = self._val_labels[place]
            yield {"images": images, "labels": labels, "counted": counts.to(self.device)}

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
        table = torch.cat((indices[None], draws.boxes[rows].stacked(), mirrored[None]))
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
        side = KEPT_SIDE * max(self.format.size)
        pieces, sizes, labels = [], [], []
        for (pixels, shape), part_labels, readable in self._decoded(
            self.source, _Kept(side), collate_list, "decoding training images", progress
        ):
            keep = torch.tensor(readable)
            pieces.append(pixels if all(readable) else _without(pixels, shape, keep))
            sizes.append(shape[keep])
            labels.append(part_labels[keep])
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
        transform = eval_transform(self.augment, self.format)
        for part, part_labels, readable in self._decoded(
            self.val_source, transform, collate, "decoding validation images", progress
        ):
            keep = torch.tensor(readable)
            images.append(part[keep])
            labels.append(part_labels[keep])
        if not sum(map(len, labels)):
            raise DataError(f"no image of {self.val_source.name} can be read")
        self._val_images = _joined(images, self.device)
        self._val_labels = torch.cat(labels).to(self.device)

    def _decoded(
        self, source: Source, transform: Any, collate_with: Any, what: str, progress: Progress
    ) -> Iterator[tuple[Any, Tensor, list[bool]]]:
        decoder = Decoder(source, transform, self.seed, replace=False)
        everything = range(len(source))
        line = cut(tickets(source, everything, torch.arange(len(source))), DECODED_AT_ONCE)
        workers = self.num_workers if len(source) > 8 * DECODED_AT_ONCE else 0
        done = 0
        for part in loader(decoder, line, workers, collate_with):
            self.report(part.problems)
            done += len(part.labels)
            progress(what, done, len(source))
            # A copy: what workers send lies in shared memory, of which there may be little.
            yield _copied(part.images), part.labels.clone(), part.readable

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


class _Kept:
    """A picture as bytes, made smaller if it is much larger than needed."""

    def __init__(self, side: int) -> None:
        self._side = side

    def __call__(self, picture: Image.Image) -> Tensor:
        shorter = min(picture.size)
        if shorter > self._side:
            scale = self._side / shorter
            size = (round(picture.width * scale), round(picture.height * scale))
            picture = picture.resize(size, Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(picture))


def _permutation(size: int, generator: torch.Generator) -> Int64[Tensor, " samples"]:
    return torch.randperm(size, generator=generator)


def _without(
    pixels: UInt8[Tensor, "pixels 3"], shape: Int64[Tensor, "batch 2"], keep: Bool[Tensor, " batch"]
) -> UInt8[Tensor, "kept 3"]:
    return pixels[keep.repeat_interleave(shape.prod(dim=1))]


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


def _copied(images: Any) -> Any:
    return tuple(part.clone() for part in images) if isinstance(images, tuple) else images.clone()
