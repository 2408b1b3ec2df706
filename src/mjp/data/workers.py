"""The worker feed: processes decode and augment with timm's transforms, for data of any size."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mjp.data.batch import Batch
from mjp.data.decoding import Decoded, Decoder, Ticket, collate, loader, tickets
from mjp.data.feed import Feed, Progress, eval_transform, train_transform


class WorkerFeed(Feed):
    """Batches from worker processes, copied to the device while the one before is computed."""

    def prepare(self, progress: Progress, before: Sequence[Feed] = ()) -> None:
        """Nothing: workers start with the first batch."""

    def train(self, start: int, stop: int) -> Iterator[Batch]:
        transform = train_transform(self.augment, self.format)
        decoder = Decoder(self.source, transform, self.seed, replace=True)
        decoded = loader(
            decoder, self._batches(start, stop), self.num_workers, collate, pin=self._pin
        )
        passes = self.batching.passes
        for number, part in enumerate(moved(decoded, self.device)):
            step, index = divmod(number + start * passes, passes)
            self.report(part.problems)
            rows = self.batching.rows(index)
            yield Batch(self.finish(part.images, part.labels, step, rows), step, rows)

    def validate(self) -> Iterator[dict[str, Tensor]]:
        transform = eval_transform(self.augment, self.format)
        decoder = Decoder(self.val_source, transform, self.seed, replace=False)
        chunk, processes, rank = self.batching.chunk, self.batching.processes, self.batching.rank
        own, count = share(len(self.val_source), processes, rank, chunk)
        line = tickets(self.val_source, range(len(own)), own)
        decoded = loader(decoder, cut(line, chunk), self.num_workers, collate, pin=self._pin)
        seen = 0
        for part in moved(decoded, self.device):
            self.report(part.problems)
            places = torch.arange(seen, seen + len(part.labels))
            counted = (places < count) & torch.tensor(part.readable)
            seen += len(part.labels)
            images = self.format.normalize(part.images)
            counted = counted.to(self.device)
            yield {"images": images, "labels": part.labels, "counted": counted}

    def _batches(self, start: int, stop: int) -> Iterator[list[Ticket]]:
        """Tickets of this process's images, pass by pass; streams are read epoch by epoch."""
        batch, size = self.batching.batch, len(self.source)
        rows = torch.cat([self.batching.rows(index) for index in range(self.batching.passes)])
        while start < stop:
            end = min(stop, max(start + 1, (start * batch // size + 1) * size // batch))
            indices = self.order.piece(start * batch, (end - start) * batch)
            own = (torch.arange(end - start)[:, None] * batch + rows).flatten()
            places = (own + start * batch).tolist()
            yield from cut(tickets(self.source, places, indices[own]), self.batching.chunk)
            start = end

    @property
    def _pin(self) -> bool:
        return self.device.type == "cuda"


def moved(parts: Iterator[Decoded], device: torch.device) -> Iterator[Decoded]:
    """The batches on the device; on a GPU each is copied beside the work on the one before."""
    if device.type != "cuda":
        yield from parts
        return
    stream = torch.cuda.Stream(device)
    waiting: Decoded | None = None
    for part in parts:
        with torch.cuda.stream(stream):
            copied = _to(part, device)
        if waiting is not None:
            yield waiting
        torch.cuda.current_stream(device).wait_stream(stream)
        for tensor in (copied.images, copied.labels):
            tensor.record_stream(torch.cuda.current_stream(device))
        waiting = copied
    if waiting is not None:
        yield waiting


def _to(part: Decoded, device: torch.device) -> Decoded:
    images = part.images.to(device, non_blocking=True)
    labels = part.labels.to(device, non_blocking=True)
    return Decoded(images, labels, part.readable, part.problems)


def cut(line: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Pieces of this size; the last may be smaller."""
    piece = []
    for item in line:
        piece.append(item)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


def share(samples: int, processes: int, rank: int, chunk: int) -> tuple[Tensor, int]:
    """This process's share of a set: as many numbers as every other's, in whole chunks.

    The second value says how many of them count; the rest fills the last chunk up.
    """
    most = -(-samples // processes)
    padded = -(-most // chunk) * chunk
    own = torch.arange(samples)[rank::processes]
    filling = own[-1:] if len(own) else torch.zeros(1, dtype=torch.int64)
    return torch.cat([own, filling.expand(padded - len(own))]), len(own)
