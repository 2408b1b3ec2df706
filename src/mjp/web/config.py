"""`ServeOptions`: where `mjp serve` listens, and how much a visitor may ask of it."""

import math
from dataclasses import dataclass

from mjp.core.configuration import check_count
from mjp.core.errors import ConfigError
from mjp.models.config import Models

SHORTEST_SIDE = 16
"""Pixels that a picture has at least in both directions."""
LONGEST_SIDE = 512
"""Pixels of the longer side that are kept of a picture; models see less."""
LONGEST_DEFENCE = 80
"""Characters of a defence's text."""
MOST_LOCAL_STEPS = 8
MOST_STEPS = 5000
"""Of a search."""
MOST_RESTARTS = 8
MOST_ROUNDS = 8
"""Updates of the same picture."""
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """A page to try attacks and defences on pictures of your own.

    There is no log-in: whoever can reach the address can use it. Pictures are held in memory and
    never written.
    """

    host: str = "127.0.0.1"
    """Address to listen on; by default only this machine can reach it."""
    port: int = 8000
    """Port to listen on; 0 takes one that is free."""
    model: Models = ()
    """Models to offer beside the built-in ones, named as for mjp audit: a folder, a timm name,
    pretrained:NAME, NAME@FILE, LABEL=MODEL, …"""
    allow_host: tuple[str, ...] = ()
    """More names by which browsers may call this server, such as that of a proxy before it."""
    upload_megabytes: float = 16
    """Largest picture file that is taken."""
    megapixels: float = 24
    """Largest picture that is decoded."""
    jobs: int | None = None
    """Attacks that run at a time; by default one for every four cores, two at most."""
    waiting: int = 16
    """Attacks that may wait for their turn; more are refused."""
    seconds: float = 600
    """Longest that one attack may run."""
    kept: int = 100
    """Pictures, and as many results, that are held in memory; the oldest make room."""
    minutes: float = 30
    """How long a picture or a result is held after it was last asked for."""
    device: str | None = None
    """A torch device; the GPU if there is one."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, got {self.port}")
        for name in ("upload_megabytes", "megapixels", "seconds", "minutes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 < value < 1e6):
                raise ConfigError(f"{name} must be a number above 0 and below 1e6, got {value:g}")
        check_count("jobs", 1 if self.jobs is None else self.jobs)
        check_count("kept", self.kept)
        check_count("waiting", self.waiting, 0)

    @property
    def num_jobs(self) -> int:
        from mjp.data.feed import available_cores  # Imports torch.

        return min(2, max(1, available_cores() // 4)) if self.jobs is None else self.jobs

    @property
    def upload_bytes(self) -> int:
        return max(1, round(self.upload_megabytes * 1e6))

    @property
    def pixels(self) -> int:
        return max(1, round(self.megapixels * 1e6))

    @property
    def idle_seconds(self) -> float:
        return self.minutes * 60
