"""`Limits`: how much a visitor may ask of the server."""

import os
from dataclasses import dataclass

from mjp.commands.serve_options import ServeOptions
from mjp.core.errors import ConfigError
from mjp.core.ranges import check_count

SHORTEST_SIDE = 16
"""Pixels that a picture has at least in both directions."""
LONGEST_SIDE = 512
"""Pixels of the longer side that are kept of a picture; models see less."""
MOST_STEPS = 5000
"""Of a search."""
MOST_RESTARTS = 8
MOST_ROUNDS = 8
"""Updates of the same picture."""
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class Limits:
    """How much a visitor may ask of the server.

    Args:
        upload_bytes: of a picture file.
        pixels: of a picture, before it is decoded.
        jobs: attacks that run at a time.
        waiting: attacks that may wait.
        seconds: of one attack.
        kept: pictures in memory, and as many results.
        idle_seconds: after which a picture or result that nobody asked for is forgotten.
        uploads: pictures that are received at a time, each held in memory whole.
        upload_seconds: for a picture to arrive.
    """

    upload_bytes: int = 16_000_000
    pixels: int = 24_000_000
    jobs: int = 1
    waiting: int = 16
    seconds: float = 600.0
    kept: int = 100
    idle_seconds: float = 1800.0
    uploads: int = 8
    upload_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("upload_bytes", "pixels", "jobs", "kept", "uploads"):
            check_count(name, getattr(self, name))
        check_count("waiting", self.waiting, 0)

    @classmethod
    def of(cls, options: ServeOptions) -> "Limits":
        """The limits that a person chose."""
        for name in ("upload_megabytes", "megapixels", "seconds", "minutes"):
            value = getattr(options, name)
            if not 0 < value < 1e6:
                raise ConfigError(f"{name} must be a number above 0 and below 1e6, got {value:g}")
        if options.jobs is not None:
            check_count("jobs", options.jobs)
        check_count("kept", options.kept)
        return cls(
            upload_bytes=max(1, round(options.upload_megabytes * 1e6)),
            pixels=max(1, round(options.megapixels * 1e6)),
            jobs=options.jobs or min(2, max(1, cores() // 4)),
            waiting=options.waiting,
            seconds=options.seconds,
            kept=options.kept,
            idle_seconds=60 * options.minutes,
        )


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
