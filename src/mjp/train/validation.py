"""Accuracy in validation, counted exactly over all processes."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from mjp.core.errors import DataError
from mjp.core.team import Team
from mjp.data.feed import Feed
from mjp.train.distribution import Compile, begin_pass


@dataclass(frozen=True)
class Validation:
    """Over the whole validation set: shares in percent, and the mean cross entropy."""

    top1: float
    top5: float
    loss: float
    images: int


@torch.no_grad()
def validate(objective: nn.Module, feed: Feed, team: Team, compiled: Compile) -> Validation:
    """Runs the model over the validation images, without jigsaw, and counts."""
    training = objective.training
    objective.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=team.device)
    for batch in feed.validate():
        begin_pass(compiled)
        logits = objective(batch["images"])
        counted = batch["counted"].double()
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        right = best == batch["labels"][:, None]
        loss = F.cross_entropy(logits, batch["labels"], reduction="none").double()
        sums += torch.stack(
            (
                (right[:, 0] * counted).sum(),
                (right.any(dim=1) * counted).sum(),
                (loss * counted).sum(),
                counted.sum(),
            )
        )
    objective.train(training)
    top1, top5, loss_sum, images = team.total(sums).tolist()
    if not images:
        raise DataError(f"no image of {feed.val_source.name} can be read")
    return Validation(100 * top1 / images, 100 * top5 / images, loss_sum / images, int(images))
