"""AdamW, its learning rate over the steps, and the moving average of its weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn

from mjp.data.batch import Calendar
from mjp.train.config import OptimizerSettings, RunSettings


def make_optimizer(model: Any, settings: OptimizerSettings, batch: int) -> torch.optim.AdamW:
    """AdamW over timm's groups: decayed or not, and by layer where rates fall with depth."""
    spared = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    # By name: the order of these arguments is not the same in timm's two functions.
    if settings.layer_decay is None:
        groups = param_groups_weight_decay(
            model, weight_decay=settings.weight_decay, no_weight_decay_list=spared
        )
    else:
        groups = param_groups_layer_decay(
            model,
            weight_decay=settings.weight_decay,
            no_weight_decay_list=spared,
            layer_decay=settings.layer_decay,
        )
    rate = scaled(settings.learning_rate, settings, batch)
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=settings.betas, fused=True)
    # Made now, not at the first step, so that a checkpoint has something to be read into.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer


def make_schedule(
    optimizer: torch.optim.Optimizer,
    settings: OptimizerSettings,
    run: RunSettings,
    calendar: Calendar,
) -> CosineLRScheduler:
    """A linear warm-up, then a cosine; `step_update(step)` sets the rate of a step."""
    warmup = calendar.at(run.warmup_epochs)
    return CosineLRScheduler(
        optimizer,
        t_initial=max(2, calendar.steps - warmup),
        lr_min=scaled(settings.final_rate, settings, run.batch),
        warmup_t=warmup,
        warmup_lr_init=scaled(settings.warmup_rate, settings, run.batch),
        warmup_prefix=True,
        t_in_epochs=False,
    )


def scaled(rate: float, settings: OptimizerSettings, batch: int) -> float:
    """A learning rate for this batch."""
    return rate * batch / settings.reference_batch


class Average:
    """The exponential moving average of a model's weights and statistics.

    timm's keeps a second model, which cannot be sharded with the first; this keeps tensors alone,
    shards where those are, and lends them to the model to be validated or written.

    Args:
        decay: of the average; smaller in the first steps, where it would hold on to random weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._live = {
            name: value for name, value in model.state_dict().items() if value.is_floating_point()
        }
        self.values = {name: value.detach().clone() for name, value in self._live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After the optimiser's step of this number, from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(_local(self.values), _local(self._live), 1 - decay)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The averaged weights in the model, for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        live, averaged = _local(self._live), _local(self.values)
        kept = [value.clone() for value in live]
        torch._foreach_copy_(live, averaged)
        torch._foreach_copy_(averaged, kept)


def _local(values: dict[str, Tensor]) -> list[Tensor]:
    """This process's own shards."""
    return [getattr(value, "_local_tensor", value) for value in values.values()]
