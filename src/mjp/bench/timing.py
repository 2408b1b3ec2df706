"""Times sides in turn, in one run; makes the pictures that benches read."""

import logging
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mjp.core.records import Scalar
from mjp.core.run import Run
from mjp.data.source import FolderSource

# Importing it would warn of a CUDA compiler on machines that have one and no GPU.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
from torch.utils.benchmark import timer  # noqa: E402

WARM_UP = 3
"""Calls before a side is timed: they compile kernels and fill caches."""
PICTURE = (375, 500)
"""Height and width of made-up pictures: the usual size of ImageNet's."""


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Seconds of one call, over so many calls without waiting for the device in between."""
    start = timer()  # Waits for the device.
    for _ in range(times):
        work()
    return (timer() - start) / times


def in_turn(
    run: Run, sides: list[Callable[[], object]], rounds: int, times: int = 1
) -> list[list[float]]:
    """Seconds of each side, round by round; the order alternates, so that a slow drift of the
    machine favours none."""
    taken: list[list[float]] = [[] for _ in sides]
    with run.progress("timing", rounds) as advance:
        for number in range(rounds):
            order = list(zip(sides, taken, strict=True))
            for side, result in order if number % 2 else reversed(order):
                result.append(seconds(side, times))
            advance(1)
    return taken


def ratio(of: list[float], to: list[float], name: str = "ratio") -> dict[str, Scalar]:
    """The quartiles of a ratio, round by round."""
    ratios = [one / other for one, other in zip(of, to, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {name: middle, f"{name}_quartile_low": low, f"{name}_quartile_high": high}


def by_device(run: Run, asked: Any, gpu: Any, cpu: Any) -> Any:
    """What was asked for, or what suits the device."""
    if asked is not None:
        return asked
    return gpu if run.device.type == "cuda" else cpu


def exhaust(batches: Any) -> None:
    for _ in batches:
        pass


def write_pictures(folder: Path, count: int, size: tuple[int, int], seed: int) -> FolderSource:
    """JPEG files with some structure, so that decoding takes what it usually takes."""
    draw = np.random.default_rng(seed)
    for index in range(count):
        target = folder / f"class{index % 4}"
        target.mkdir(exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        smooth = coarse.resize(size[::-1], Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth, np.int16) + draw.integers(-12, 13, (*size, 1))
        picture = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        picture.save(target / f"{index:06d}.jpg", quality=90)
    return FolderSource(folder)
