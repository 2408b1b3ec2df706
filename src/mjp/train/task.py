"""`Task`: what is trained; the loop asks it for data, a model, losses and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mjp.core.errors import DataError
from mjp.core.records import Scalar
from mjp.core.run import Run
from mjp.core.team import Team
from mjp.data.feed import Feed
from mjp.jigsaw import JigsawPlan
from mjp.train.config import TaskConfig

Config = TypeVar("Config", bound=TaskConfig)
Predict = Callable[..., Any]
"""The model as validation calls it: compiled and in the run's precision, where that is asked."""


class Task(ABC, Generic[Config]):
    """What is trained: data, model, losses and metrics.

    Every name that it gives to a loss, a scalar or a metric is that of a value in the records.
    """

    metric_names: ClassVar[tuple[str, ...]]
    """What `metrics` measures; the first, of which more is better, chooses the best model."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def data(self, run: Run) -> Feed:
        """Batches to train and to validate on: this process's part of each."""

    @abstractmethod
    def model(self, data: Feed) -> nn.Module:
        """The model with its first weights, on the CPU."""

    @abstractmethod
    def loss(
        self, model: Any, batch: Mapping[str, Tensor], plan: JigsawPlan | None
    ) -> dict[str, Tensor]:
        """The losses by name: `loss` is minimised, and every one is recorded.

        The batch holds the inputs that the data give, and the scalars of `schedule`.
        """

    @abstractmethod
    def metrics(
        self, model: Predict, batches: Iterable[Mapping[str, Tensor]], run: Run
    ) -> dict[str, float]:
        """What validation measures, over the batches of all processes."""

    def schedule(self, progress: float) -> dict[str, float]:
        """Scalars that change with the share of training that is over, such as a loss's weight."""
        return {}

    def draw_plan(
        self, model: Any, batch: Mapping[str, Tensor], generator: torch.Generator
    ) -> JigsawPlan | None:
        """The jigsaw of a step, for a batch of such a shape; that of the model, if it has one."""
        return model.draw_plan(batch["images"], generator) if hasattr(model, "draw_plan") else None

    def save(self, weights: dict[str, Tensor], data: Feed, folder: Path) -> None:
        """Writes a trained model, with these weights."""
        folder.mkdir(parents=True, exist_ok=True)
        whole = {name: value.contiguous() for name, value in weights.items()}
        save_file(whole, folder / "model.safetensors")

    def facts(self, data: Feed) -> dict[str, Scalar]:
        """What the first record says of the data."""
        return {"train_images": data.samples, "val_images": len(data.val_source)}

    def trial(self, run: Run) -> tuple[nn.Module, dict[str, Tensor]]:
        """A model and a few samples to try it on, for `mjp check`; here, the data's first."""
        data = self.data(run)
        data.prepare(lambda what, done, total: None)
        batch = next(data.train(0, 1)).inputs
        return self.model(data), {name: value[:2] for name, value in batch.items()}

    def notes(self, model: Any) -> list[str]:
        """What of the recipe can be carried out but is perhaps not meant, for `mjp check`."""
        return []


class Objective(nn.Module):
    """A model with its losses in one module, so that all of it is one graph, copied or sharded.

    It runs in the run's precision; what it gives is in single precision.
    """

    def __init__(self, model: nn.Module, task: Task[Any]) -> None:
        super().__init__()
        self.model = model
        self._bf16 = task.config.run.precision == "bf16"
        self._loss = task.loss

    def forward(
        self,
        *inputs: Any,
        batch: Mapping[str, Tensor] | None = None,
        plan: JigsawPlan | None = None,
    ) -> Any:
        """The losses of a batch; where there is none, what the model gives for the inputs."""
        device = next(self.model.parameters()).device
        with torch.autocast(device.type, torch.bfloat16) if self._bf16 else nullcontext():
            if batch is None:
                return self.model(*inputs).float()
            losses = self._loss(self.model, batch, plan)
        return {name: value.float() for name, value in losses.items()}


def means(parts: Iterable[tuple[Mapping[str, Tensor], Tensor]], team: Team) -> dict[str, float]:
    """Means over the samples of all processes, from values by name and which samples count."""
    sums: dict[str, Tensor] = {}
    for values, counted in parts:
        share = counted.double()
        for name, value in {**values, "": torch.ones_like(share)}.items():
            part = (value.double() * share).sum()
            sums[name] = sums[name] + part if name in sums else part
    if not sums:
        raise DataError("there is nothing to validate on")
    totals = dict(zip(sums, team.total(torch.stack(list(sums.values()))).tolist(), strict=True))
    if not (count := totals.pop("")):
        raise DataError("no image of the validation set can be read")
    return {name: total / count for name, total in totals.items()}
