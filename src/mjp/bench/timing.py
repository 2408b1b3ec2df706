"""Times sides in turn, in one run; makes the pictures that benches read."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mjp.core.records import Scalar
from mjp.core.run import Run
from mjp.data.source import FolderSource

Work = Callable[[], object]


def seconds(work: Work, times: int = 1) -> float:
    """Seconds of one call, over so many calls without waiting for the device in between."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - start) / times


def in_turn(run: Run, rounds: int, *sides: Work, times: int = 1) -> list[list[float]]:
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


def ratios(of: list[float], to: list[float]) -> list[float]:
    """The ratios, round by round."""
    return [one / other for one, other in zip(of, to, strict=True)]


def quartiles(times: list[float], name: str) -> dict[str, Scalar]:
    low, middle, high = statistics.quantiles(times, n=4)
    return {name: middle, f"{name}_quartile_low": low, f"{name}_quartile_high": high}


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
