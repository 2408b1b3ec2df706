"""What the records of a study say of how a run was trained."""

import re
from collections.abc import Mapping
from pathlib import Path

from mjp.core.records import Scalar

_TOLD = {
    "architecture": "model.name",
    "arguments": "model.arguments",
    "image_size": "model.image_size",
    "ratio": "mjp.ratio",
    "probability": "mjp.probability",
    "positions": "mjp.positions",
    "localization": "mjp.localization",
    "jigsaw_patch": "mjp.jigsaw_patch",
    "epochs": "run.epochs",
    "warmup_epochs": "run.warmup_epochs",
    "batch": "run.batch",
    "precision": "run.precision",
    "init": "init",
}
"""Facts, and what they are called where training writes its recipe down."""


def recipe_facts(conditions: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """What of a recipe is told; of files the name alone, wherever they lie."""
    facts = {name: conditions.get(there) for name, there in _TOLD.items()}
    facts["image_size"] = "x".join(re.findall(r"\d+", str(facts["image_size"])))
    if facts["init"] is not None:
        facts["init"] = Path(str(facts["init"])).name
    return facts
