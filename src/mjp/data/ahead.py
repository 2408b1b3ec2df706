"""Prepares batches on the device in a thread and a stream of its own, beside the training step."""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress

import torch

from mjp.data.batch import Batch

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
