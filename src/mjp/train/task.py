"""`Task`: what is trained; the loop asks it for data, a model, losses and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

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
        """The losses of a batch by name: `loss` is minimised, and every one is recorded.

        Args:
            batch: the inputs that the data give, and the scalars of `schedule`.
        """

    @abstractmethod
    def metrics(
        self, model: Predict, batches: Iterable[Mapping[str, Tensor]], run: Run
    ) -> dict[str, float]:
        """What validation measures, over the batches of all processes."""

    def schedule(self, progress: float) -> dict[str, float]:
        """Scalars that change over training, such as the weight of a loss.

        Args:
            progress: share of training that is over, in [0, 1].
        """
        return {}

    def draw_plan(
        self, model: Any, batch: Mapping[str, Tensor], generator: torch.Generator
    ) -> JigsawPlan | None:
        """The jigsaw of a step, for all samples of its batch; that of the model, if it has one.

        Args:
            batch: the inputs of the whole step, to look at their shape alone.
        """
        if not hasattr(model, "draw_plan"):
            return None
        return model.draw_plan(batch["images"], generator)

    def save(self, weights: dict[str, Tensor], data: Feed, folder: Path) -> None:
        """Writes a trained model, with these weights."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: value.contiguous() for name, value in weights.items()},
            folder / "model.safetensors",
        )

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

    Args:
        precision: bf16 runs it under autocast; what it gives is in single precision.
    """

    def __init__(
        self, model: nn.Module, task: Task[Any], precision: Literal["fp32", "bf16"]
    ) -> None:
        super().__init__()
        self.model = model
        self.precision = precision
        self._loss = task.loss

    def forward(
        self,
        *inputs: Any,
        batch: Mapping[str, Tensor] | None = None,
        plan: JigsawPlan | None = None,
    ) -> Any:
        """The losses of a batch; where there is none, what the model gives for the inputs."""
        with self._autocast():
            if batch is None:
                return self.model(*inputs).float()
            losses = self._loss(self.model, batch, plan)
        return {name: value.float() for name, value in losses.items()}

    def _autocast(self) -> Any:
        if self.precision == "bf16":
            device = next(self.model.parameters()).device
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()


def means(parts: Iterable[tuple[Mapping[str, Tensor], Tensor]], team: Team) -> dict[str, float]:
    """Means over the samples of all processes, counted exactly.

    Args:
        parts: values by name of each sample, and which samples are counted.
    """
    sums: Tensor | None = None
    names: list[str] = []
    for values, counted in parts:
        names, share = list(values), counted.double()
        part = torch.stack(
            [*((value.double() * share).sum() for value in values.values()), share.sum()]
        )
        sums = part if sums is None else sums + part
    if sums is None:
        raise DataError("there is nothing to validate on")
    *totals, count = team.total(sums).tolist()
    if not count:
        raise DataError("no image of the validation set can be read")
    return {name: total / count for name, total in zip(names, totals, strict=True)}
