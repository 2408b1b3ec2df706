"""`Recipe`: all that decides the outcome of a training run. Light: imports no torch."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mjp.core.configuration import flatten, from_mapping, read_toml
from mjp.core.errors import ConfigError
from mjp.core.ranges import check_at_least, check_count, check_ratio
from mjp.data.config import AugmentSettings, DataSettings
from mjp.models.config import VARIANTS, MJPConfig
from mjp.train.weighting import LocalizationWeight

RECIPES = Path(__file__).parents[1] / "recipes"
"""Where the recipes of the package lie."""

Scalar = int | float | bool | str


@dataclass(frozen=True)
class ModelSettings:
    """The backbone.

    Args:
        name: an architecture of timm's.
        image_size: height and width in pixels.
        drop_path: the last block's chance of being skipped for an image.
        arguments: more of timm's arguments, such as patch_size or embed_dim.
    """

    name: str = "deit_small_patch16_224"
    image_size: tuple[int, int] = (224, 224)
    drop_path: float = 0.1
    arguments: dict[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for side in self.image_size:
            check_count("model.image_size", side)
        check_ratio("model.drop_path", self.drop_path)
        for name in ("img_size", "drop_path_rate", "num_classes", "mjp", "pretrained"):
            if name in self.arguments:
                raise ConfigError(f"model.arguments must not hold {name}, which has another place")


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
        for beta in self.betas:
            check_ratio("optimizer.betas", beta)
            if beta == 1:
                raise ConfigError(f"optimizer.betas must be below 1, got {self.betas!r}")
        check_ratio("optimizer.average", self.average)
        if self.average == 1:
            raise ConfigError("optimizer.average of 1 would never change; use 0.9999, say")
        if self.layer_decay is not None:
            check_ratio("optimizer.layer_decay", self.layer_decay)


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
        check_count("run.epochs", self.epochs)
        check_count("run.warmup_epochs", self.warmup_epochs, 0)
        check_count("run.batch", self.batch)
        check_count("run.accumulation", self.accumulation)
        check_count("run.log_every", self.log_every, 0)
        check_count("run.eval_every", self.eval_every)
        check_at_least("run.checkpoint_minutes", self.checkpoint_minutes, 0)
        if self.compile == "graphs" and self.accumulation > 1:
            raise ConfigError("run.compile graphs goes with run.accumulation 1; use on")
        if self.warmup_epochs >= self.epochs:
            raise ConfigError(
                f"run.warmup_epochs ({self.warmup_epochs}) must be fewer than run.epochs "
                f"({self.epochs})"
            )


@dataclass(frozen=True)
class Recipe:
    """All that decides the outcome of a run.

    Args:
        init: weights to start from: a file, a folder that mjp or timm wrote, or a timm name with a
            tag to download. A head for other classes is drawn anew.
    """

    init: str | None = None
    model: ModelSettings = field(default_factory=ModelSettings)
    mjp: MJPConfig = field(default_factory=MJPConfig)
    localization: LocalizationWeight = field(default_factory=LocalizationWeight)
    data: DataSettings = field(default_factory=DataSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def conditions(self) -> dict[str, int | float | bool | str | None]:
        """Every value by its dotted name, as a record takes it."""
        return {
            name: value
            if isinstance(value, (str, int, float, bool)) or value is None
            else str(value)
            for name, value in flatten(self).items()
        }


def recipe_names() -> list[str]:
    """The recipes of the package."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def recipe_path(name: str) -> Path:
    """The file of a recipe: one of the package's by its name, or the user's own by its path."""
    names = recipe_names()
    if name in names:
        return RECIPES / f"{name}.toml"
    if name.endswith(".toml"):
        return Path(name)
    close = difflib.get_close_matches(name, names, n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there is {', '.join(names)}"
    raise ConfigError(f"there is no recipe {name!r}; {hint} (or the path of a .toml file)")


def read_recipe(name: str) -> Recipe:
    """A recipe by the name of one of the package's, or the path of a TOML file."""
    path = recipe_path(name)
    return recipe_from(read_toml(path), str(path) if name.endswith(".toml") else f"recipe {name}")


def recipe_from(values: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from the content of a TOML file."""
    return from_mapping(Recipe, values, where=where)


def with_variant(recipe: Recipe, variant: str) -> Recipe:
    """The recipe with a row of the paper's ablation in place of its own.

    Ratio, probability and shape stay the recipe's where the variant shuffles a part of the patches.
    """
    if variant not in VARIANTS:
        raise ConfigError(f"there is no variant {variant!r}; there is {', '.join(VARIANTS)}")
    config = VARIANTS[variant]
    kept: dict[str, Any] = {
        name: getattr(recipe.mjp, name)
        for name in ("probability", "shape", "position_init_std", "absolute_positions")
    }
    kept["jigsaw_patch"] = recipe.mjp.jigsaw_patch
    if 0 < config.ratio < 1:
        kept["ratio"] = recipe.mjp.ratio or config.ratio
    return replace(recipe, mjp=replace(config, **kept))
