"""Vision transformers with Masked Jigsaw Puzzle (MJP) position embeddings.

Names are loaded on first use, so that `import mjp` and the command line start at once. Importing
mjp registers `mjp_<timm name>` models with timm where timm is loaded already; `import mjp.timm`
always does.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mjp.api import *

__version__ = "0.1.0"

__all__ = [
    "VARIANTS",
    "AttackResult",
    "CheckpointError",
    "ConfigError",
    "Defence",
    "JigsawPlan",
    "LocalizationWeight",
    "LossTerms",
    "MJPConfig",
    "MjpError",
    "PatchGrid",
    "PublicModel",
    "SharedUpdate",
    "UnsupportedModelError",
    "attack",
    "attacks",
    "audit",
    "create_model",
    "generator_for",
    "load",
    "load_weights",
    "parse_defence",
    "pretrained",
    "sample_plan",
    "save",
    "share",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mjp' has no attribute {name!r}")
    from mjp import api

    value = globals()[name] = getattr(api, name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if "timm" in sys.modules:
    from mjp import timm as timm
