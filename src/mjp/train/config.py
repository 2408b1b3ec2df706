"""What the recipes of every task hold, and the options of `mjp train`. Light."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from tyro.conf import Positional, arg

from mjp.core.configuration import check_at_least, check_count, check_ratio, flatten, to_toml
from mjp.core.errors import ConfigError
from mjp.core.records import Scalar
from mjp.core.verbs import DEFAULT_TASK

if TYPE_CHECKING:
    from mjp.train.task import Task

DEFAULT_RECIPE = "digits"
Variant = Literal["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"]


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, its schedule and the average of its weights.

    Args:
        learning_rate: at the end of warm-up, for a batch of `reference_batch`; grows with it.
        warmup_rate: where warm-up starts, scaled likewise.
        final_rate: where the cosine ends, scaled likewise.
        reference_batch: the batch that the rates are for.
        weight_decay: of matrices; never of biases, norms and position embeddings.
        betas: of AdamW.
        clip: largest norm of the gradient; 0 for no limit.
        layer_decay: factor of the learning rate from each layer to the one below, to fine-tune.
        average: decay of the moving average of the weights; 0 for none.
    """

    learning_rate: float = 5e-4
    warmup_rate: float = 5e-7
    final_rate: float = 5e-6
    reference_batch: int = 512
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float = 5.0
    layer_decay: float | None = None
    average: float = 0.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "warmup_rate", "final_rate", "weight_decay", "clip"):
            check_at_least(f"optimizer.{name}", getattr(self, name), 0)
        check_count("optimizer.reference_batch", self.reference_batch)
        for name, value in (("betas", max(self.betas)), ("average", self.average)):
            check_ratio(f"optimizer.{name}", value)
            if value == 1:
                raise ConfigError(f"optimizer.{name} of 1 would never change; use 0.9999, say")
        check_ratio("optimizer.betas", min(self.betas))
        check_ratio("optimizer.layer_decay", 1 if self.layer_decay is None else self.layer_decay)


@dataclass(frozen=True)
class RunSettings:
    """Length and form of the run.

    Args:
        epochs: passes over the training images.
        warmup_epochs: of rising learning rate, before which there is no jigsaw.
        batch: images of a step, over all processes and passes.
        accumulation: passes whose gradients make up one step.
        precision: bf16 computes under autocast; weights stay in single precision.
        compile: on: torch.compile; graphs: also CUDA graphs, which spare the host the work of
            starting kernels; for small models, in one process.
        distribution: how several processes share the model: ddp copies it, fsdp shards it.
        seed: of everything that is random.
        device: a torch device; by default the GPU if there is one.
        log_every: steps between two records of the loss; 0 for epochs alone.
        eval_every: epochs between two validations; the last epoch is always validated.
        checkpoint_minutes: between two checkpoints; 0 writes one after every step.
    """

    epochs: int = 300
    warmup_epochs: int = 20
    batch: int = 1024
    accumulation: int = 1
    precision: Literal["fp32", "bf16"] = "bf16"
    compile: Literal["off", "on", "graphs"] = "on"
    distribution: Literal["ddp", "fsdp"] = "ddp"
    seed: int = 0
    device: str | None = None
    log_every: int = 50
    eval_every: int = 1
    checkpoint_minutes: float = 2.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulation", "eval_every"):
            check_count(f"run.{name}", getattr(self, name))
        for name in ("warmup_epochs", "log_every"):
            check_count(f"run.{name}", getattr(self, name), 0)
        check_at_least("run.checkpoint_minutes", self.checkpoint_minutes, 0)
        if self.compile == "graphs" and self.accumulation > 1:
            raise ConfigError("run.compile graphs goes with run.accumulation 1; use on")
        if self.warmup_epochs >= self.epochs:
            raise ConfigError(
                f"run.warmup_epochs ({self.warmup_epochs}) must be fewer than run.epochs "
                f"({self.epochs})"
            )


class TaskConfig:
    """What the recipes of a task hold; a task derives a frozen dataclass, with sections of its own.

    All that decides what a run comes to stands in it.
    """

    task: ClassVar[str]
    """What recipes call the task: `task = "…"`."""
    optimizer: OptimizerSettings
    run: RunSettings

    def make_task(self) -> "Task[Any]":
        """The task of this configuration; loads what it needs only now."""
        raise NotImplementedError

    def with_variant(self, variant: str) -> Self:
        """The configuration with a row of the paper's ablation in place of its own."""
        raise ConfigError(f"this task has no variant {variant!r}; leave --variant out")

    def to_toml(self) -> str:
        """A recipe that reads back as this."""
        named = "" if self.task == DEFAULT_TASK else f'task = "{self.task}"\n'
        return named + to_toml(self)

    def conditions(self) -> dict[str, Scalar]:
        """Every value by its dotted name, as a record takes it."""
        flat = flatten(self)
        return {n: v if isinstance(v, Scalar) else str(v) for n, v in flat.items()}

    def decisive(self) -> dict[str, Any]:
        """The values that a resumed run must share, because they change what it comes to."""
        return {name: value for name, value in flatten(self).items() if name not in FREE}


FREE = {
    *("data.root", "data.workers", "data.readers", "run.device", "run.distribution"),
    *("run.accumulation", "run.checkpoint_minutes"),
}
"""Values that do not change what a run comes to, so that a resumed one may have others."""

Config = TypeVar("Config", bound=TaskConfig)


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(Generic[Config]):
    """A recipe, and what is changed in it."""

    name: Annotated[Positional[str], arg(metavar="RECIPE")] = DEFAULT_RECIPE
    """digits, mini-imagenet-64, imagenet-deit-s, … or the path of a TOML file."""
    variant: Variant | None = None
    """A row of the paper's ablation, A (plain) to J (MJP), in place of the recipe's mjp section."""
    recipe: Annotated[Config, arg(name="")]


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RecipeOptions[Config]):
    """Train a model by a recipe; `torchrun -m mjp train …` does so on many GPUs.

    Every value of the recipe is a flag. The help shows those of the recipe that is named.
    """

    out: Path | None = None
    """Folder for checkpoints, records and models; by default runs/ and the recipe's name."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder."""
    fresh: bool = False
    """Remove what an earlier run left in the folder, and start over."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(RecipeOptions[Config]):
    """Show a recipe with all its values, what it will take, and what is wrong with it."""

    processes: int = 1
    """How many processes torchrun will start."""
