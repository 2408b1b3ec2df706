"""The accuracy that a model has on what clients with a defence feed it."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from mjp.core.bootstrap import estimates
from mjp.core.errors import DataError, UnsupportedModelError
from mjp.core.records import Scalar
from mjp.core.seeds import generator_for, seed_for
from mjp.core.team import Team
from mjp.data.decoding import View, reader
from mjp.data.feed import worker_count
from mjp.data.source import Source
from mjp.models.facts import class_outputs
from mjp.privacy.defences import Defence
from mjp.privacy.public import PublicModel


def outputs_of(model: Any, source: Source | None) -> torch.Tensor | None:
    """The model's output for each class of the data; None where that cannot be told."""
    if source is None or not hasattr(model, "num_classes"):
        return None
    try:
        return class_outputs(model, source.classes, source.name)
    except (DataError, UnsupportedModelError):
        return None


@torch.no_grad()
def accuracies(
    views: Iterable[tuple[Defence, PublicModel]],
    source: Source,
    outputs: torch.Tensor,
    view: View,
    team: Team,
    seed: int,
    tell: Callable[[int], None],
) -> dict[str, dict[str, Scalar]]:
    """Top-1 with its interval by defence; of those that feed the model the same, it is the same."""
    views = list(views)
    shown: dict[str, tuple[Defence, PublicModel]] = {}
    for defence, public in views:
        shown.setdefault(str(defence.feeding), (defence, public))
    right = {
        name: torch.zeros(len(source), device=team.device, dtype=torch.float32) for name in shown
    }
    targets = outputs.to(team.device)
    for block in reader(source, view, team, worker_count(None)):
        images = block.images.float() / 255
        for name, (defence, public) in shown.items():
            dtype = next(public.model.parameters()).dtype
            generator = generator_for(seed, "audit accuracy", step=block.number)
            plan = defence.draw_plan(public, 1, generator, clients=len(images))
            inputs, inside = defence.arrange(public.normalized(images.to(dtype)), plan)
            found = []
            for start in range(0, len(inputs), 64):
                part = slice(start, start + 64)
                logits = public.logits(inputs[part], None if inside is None else inside[part])
                found.append(logits.argmax(dim=1))
            hits = torch.cat(found) == targets[block.labels]
            right[name][block.indices.to(team.device)] = hits.float()
            tell(len(images))
    values: dict[str, dict[str, Scalar]] = {}
    for name in shown:
        share = 100 * np.asarray(team.total(right[name]).cpu())
        (estimate,) = estimates(share[:, None], seed_for(seed, "audit accuracy"))
        values[name] = {**estimate.values("top1"), "accuracy_images": len(source)}
    return {str(defence): values[str(defence.feeding)] for defence, _ in views}
