"""Makes what a recipe names: the model with its first weights, and the feed of its data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import is_model_in_modules, split_model_name_tag

from mjp.core.errors import CheckpointError, ConfigError
from mjp.core.seeds import seed_for
from mjp.core.team import Team
from mjp.data.batch import Batching, Finisher, ImageFormat
from mjp.data.feed import Feed, WorkerFeed
from mjp.data.resident import ResidentFeed
from mjp.data.source import Source
from mjp.models.factory import create_model
from mjp.models.weights import (
    fit_to_model,
    head_fits,
    load_strictly,
    load_weights,
    read_state,
    saved_pretrained_cfg,
)
from mjp.train.recipe import Recipe

FEEDS: dict[str, type[Feed]] = {"workers": WorkerFeed, "resident": ResidentFeed}


def make_model(recipe: Recipe, classes: tuple[str, ...]) -> Any:
    """The recipe's model on the CPU, with random weights from its seed or those it starts from."""
    settings = recipe.model
    arguments: dict[str, Any] = dict(settings.arguments)
    architecture = split_model_name_tag(settings.name)[0]
    if not is_model_in_modules(architecture, ["resnet"]):  # Which takes images of any size.
        arguments["img_size"] = settings.image_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(recipe.run.seed, "weights"))
        try:
            model = create_model(
                settings.name,
                recipe.mjp,
                num_classes=len(classes),
                drop_path_rate=settings.drop_path,
                **arguments,
            )
        except (TypeError, AssertionError, KeyError, ZeroDivisionError) as error:
            raise ConfigError(f"{settings.name} cannot be built so: {error!r}") from error
        normalised = {} if recipe.init is None else start_from(model, recipe.init)
    model.pretrained_cfg = {
        **model.pretrained_cfg,
        **normalised,
        "input_size": (3, *settings.image_size),
        "crop_pct": recipe.augment.eval_crop,
        "interpolation": recipe.augment.interpolation,
        "label_names": list(classes),
    }
    return model


def start_from(model: Any, init: str) -> dict[str, Any]:
    """Loads weights from a file or folder, or by a timm name; a head that does not fit is left.

    Gives the mean and standard deviation of the images that they were trained on, where the
    weights say so: the model must see such images again.
    """
    path = Path(init.removeprefix("local-dir:")).expanduser()
    if path.exists():
        head = "load" if head_fits(model, read_state(path)) else "keep"
        load_weights(model, path, head=head)  # type: ignore[arg-type]
        return _normalisation(saved_pretrained_cfg(path))
    if not init.startswith("hf-hub:") and not timm.is_model(split_model_name_tag(init)[0]):
        raise CheckpointError(
            f"init {init!r} is neither a file, nor a folder, nor a model of timm's"
        )
    try:
        source = timm.create_model(init, pretrained=True)
    except (RuntimeError, OSError, ValueError) as error:
        raise CheckpointError(f"the weights of {init} cannot be had: {error}") from error
    fitted = fit_to_model(source.state_dict(), model)
    head = "load" if head_fits(model, fitted) else "keep"
    load_strictly(model, fitted, Path(init), head)  # type: ignore[arg-type]
    return _normalisation(source.pretrained_cfg)


def _normalisation(described: Mapping[str, Any]) -> dict[str, Any]:
    """Mean and standard deviation of a model's images, of what it says about itself."""
    found = {}
    for name in ("mean", "std"):
        values = described.get(name)
        if values is None:
            continue
        if len(values) != 3 or not all(isinstance(value, (int, float)) for value in values):
            raise CheckpointError(f"the weights give {values!r} as the {name} of their images")
        found[name] = tuple(map(float, values))
    return found


def image_format(recipe: Recipe, model: Any) -> ImageFormat:
    """The images that the model takes, normalised as it was, or would have been, pretrained."""
    channels = model.pretrained_cfg
    return ImageFormat(recipe.model.image_size, tuple(channels["mean"]), tuple(channels["std"]))


def make_feed(recipe: Recipe, model: Any, train: Source, val: Source, team: Team) -> Feed:
    """The feed that the recipe asks for, of this process's part of each batch."""
    run, form = recipe.run, image_format(recipe, model)
    return FEEDS[recipe.data.feed](
        train,
        val,
        recipe.data,
        recipe.augment,
        form,
        Batching(run.batch, team.size, team.rank, run.accumulation),
        Finisher(recipe.augment, form, len(train.classes), run.batch, run.seed),
        run.seed,
        team.device,
    )
