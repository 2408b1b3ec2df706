"""AdamW, its learning rate over the steps, and the moving average of its weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn

from mjp.data.batch import Calendar
from mjp.train.config import OptimizerSettings, RunSettings


def make_optimizer(
    model: nn.Module, settings: OptimizerSettings, batch: int
) -> torch.optim.Optimizer:
    """AdamW over timm's groups: decayed or not, and by layer where rates fall with depth."""
    optimizer = create_optimizer_v2(
        model,
        "adamw",
        lr=scaled(settings.learning_rate, settings, batch),
        weight_decay=settings.weight_decay,
        layer_decay=settings.layer_decay,
        betas=settings.betas,
        fused=True,
    )
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
    shards where those are. The decay is smaller in the first steps, which are random.
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
        yield
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for live, averaged in zip(_local(self._live), _local(self.values), strict=True):
            kept = live.clone()
            live.copy_(averaged)
            averaged.copy_(kept)


def _local(values: dict[str, Tensor]) -> list[Tensor]:
    """This process's own shards."""
    return [getattr(value, "_local_tensor", value) for value in values.values()]
