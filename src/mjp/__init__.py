"""Vision transformers with Masked Jigsaw Puzzle (MJP) position embeddings.

Names are loaded on first use, so that `import mjp` and the command line start at once. Importing
mjp registers `mjp_<timm name>` models with timm where timm is loaded already; `import mjp.timm`
always does.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mjp.core.errors import (
        CheckpointError,
        ConfigError,
        MjpError,
        UnsupportedModelError,
    )
    from mjp.core.seeds import generator_for
    from mjp.jigsaw import JigsawPlan, PatchGrid, sample_plan
    from mjp.models.checkpoint import load, pretrained, save
    from mjp.models.config import VARIANTS, MJPConfig
    from mjp.models.factory import create_model, wrap
    from mjp.models.locator import LossTerms
    from mjp.models.weights import load_weights
    from mjp.privacy.attacking import attack, attacks
    from mjp.privacy.defences import Defence, parse_defence
    from mjp.privacy.public import PublicModel
    from mjp.privacy.result import AttackResult
    from mjp.privacy.sharing import share
    from mjp.privacy.update import SharedUpdate
    from mjp.train.weighting import LocalizationWeight

__version__ = "0.1.0"

_HOMES = {
    "AttackResult": "mjp.privacy.result",
    "CheckpointError": "mjp.core.errors",
    "ConfigError": "mjp.core.errors",
    "Defence": "mjp.privacy.defences",
    "JigsawPlan": "mjp.jigsaw",
    "LocalizationWeight": "mjp.train.weighting",
    "LossTerms": "mjp.models.locator",
    "MJPConfig": "mjp.models.config",
    "MjpError": "mjp.core.errors",
    "PatchGrid": "mjp.jigsaw",
    "PublicModel": "mjp.privacy.public",
    "SharedUpdate": "mjp.privacy.update",
    "UnsupportedModelError": "mjp.core.errors",
    "VARIANTS": "mjp.models.config",
    "attack": "mjp.privacy.attacking",
    "attacks": "mjp.privacy.attacking",
    "create_model": "mjp.models.factory",
    "generator_for": "mjp.core.seeds",
    "load": "mjp.models.checkpoint",
    "load_weights": "mjp.models.weights",
    "parse_defence": "mjp.privacy.defences",
    "pretrained": "mjp.models.checkpoint",
    "sample_plan": "mjp.jigsaw",
    "save": "mjp.models.checkpoint",
    "share": "mjp.privacy.sharing",
    "wrap": "mjp.models.factory",
}

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
    if name not in _HOMES:
        raise AttributeError(f"module 'mjp' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


if "timm" in sys.modules:
    import_module("mjp.timm")
