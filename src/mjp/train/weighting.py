"""The weight λ of the localization loss over the course of training."""

import math
from dataclasses import dataclass

from mjp.core.errors import ConfigError


@dataclass(frozen=True)
class LocalizationWeight:
    """λ from `start` at the beginning of training to `final_ratio` of it at the end, by a cosine.

    The defaults are the reference code's.
    """

    start: float = 0.01
    final_ratio: float = 0.5

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("final_ratio", self.final_ratio)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be a number of at least 0, got {value!r}")

    def at(self, progress: float) -> float:
        """λ after this share of training, 0 at its beginning and 1 at its end."""
        if not 0 <= progress <= 1:
            raise ConfigError(f"progress is a share of training in [0, 1], got {progress!r}")
        falling = (1 + math.cos(math.pi * progress)) / 2
        return self.start * (self.final_ratio + (1 - self.final_ratio) * falling)
