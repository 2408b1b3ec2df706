"""Saves and loads whole models: a folder with the weights and a configuration one can read.

The layout is that of timm's hub folders, so `timm.create_model("local-dir:FOLDER",
pretrained=True)` reads it too.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timm.models._hub import save_config_for_hf
from torch import nn

from mjp.core.errors import CheckpointError, ConfigError, UnsupportedModelError
from mjp.models.backbone import MJPBackbone
from mjp.models.config import MJPConfig
from mjp.models.factory import build
from mjp.models.registry import PREFIX
from mjp.models.weights import WEIGHTS_NAME, load_strictly, read_state

CONFIG_NAME = "config.json"

_NOT_ARCHITECTURE = ("training", "grad_checkpointing", "drop_prob", "p", "distilled_training")


def save(model: nn.Module, path: str | Path) -> None:
    """Writes a wrapped model to a folder: `model.safetensors` and `config.json`.

    Both are written whole or not at all. A model that could not be built again from what the
    configuration records is refused, before anything is written.
    """
    if not isinstance(model, MJPBackbone):
        raise ConfigError("mjp.save writes wrapped models; see mjp.wrap")
    arguments = _describe(model)
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; mjp.save writes a folder, name another")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    parts = {name: folder / f".{name}.part" for name in (WEIGHTS_NAME, CONFIG_NAME)}
    save_file(tensors, parts[WEIGHTS_NAME], metadata={"format": "pt"})
    save_config_for_hf(
        model,
        parts[CONFIG_NAME],
        model_args={**arguments, "mjp": model.mjp_config.to_dict()},
    )
    for name, part in parts.items():
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(folder / name)


def load(path: str | Path, **arguments: Any) -> Any:
    """Reads a model that `mjp.save` wrote.

    Args:
        arguments: override what was saved, as for `mjp.create_model`; with img_size, the position
            table is resampled.
    """
    folder = Path(path)
    architecture, saved = _read_config(folder)
    config = MJPConfig.from_dict(saved.pop("mjp"))
    img_size = arguments.pop("img_size", None)
    try:
        model = build(architecture, config, **{**saved, **arguments})
    except TypeError as error:
        raise CheckpointError(
            f"{folder} cannot be built as {architecture} with {saved | arguments}: {error}"
        ) from error
    load_strictly(model, read_state(folder), folder)
    if img_size is not None:
        size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        model.set_input_size(img_size=size)
    return model


def _read_config(folder: Path) -> tuple[str, dict[str, Any]]:
    file = folder / CONFIG_NAME
    if not file.is_file():
        raise CheckpointError(
            f"there is no {CONFIG_NAME} in {folder}; mjp.load reads folders that mjp.save wrote, "
            "mjp.load_weights reads files of weights"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        architecture = content["architecture"]
        arguments = dict(content["model_args"])
        arguments["mjp"] = dict(arguments["mjp"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} is not the configuration of a model that mjp.save wrote ({error!r})"
        ) from error
    if not isinstance(architecture, str) or not architecture.startswith(PREFIX):
        raise CheckpointError(f"{file} is of {architecture!r}, which is no model of mjp")
    return architecture.removeprefix(PREFIX), arguments


def _describe(model: MJPBackbone) -> dict[str, Any]:
    """The arguments that build this model again; an error if there are none we know of."""
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture", "")
    if not architecture:
        raise CheckpointError(
            "this model was not made by name, so its file could not say what it is; make it with "
            "mjp.create_model(NAME, config, …) or wrap what timm.create_model(NAME, …) returns"
        )
    arguments = dict(getattr(model, "mjp_arguments", {}))
    arguments["num_classes"] = model.num_classes
    if hasattr(model, "patch_embed"):
        arguments["img_size"] = list(model.patch_embed.img_size)
        arguments["in_chans"] = model.patch_embed.proj.in_channels
    try:
        with torch.device("meta"):
            twin = build(architecture.removeprefix(PREFIX), model.mjp_config, **arguments)
        json.dumps(arguments)
    except (UnsupportedModelError, ConfigError, TypeError) as error:
        raise CheckpointError(f"this model cannot be described in a file: {error}") from error
    difference = _first_difference(model, twin)
    if difference:
        raise CheckpointError(
            f"built again as {architecture} with {arguments}, the model would differ: {difference}."
            " Make it with mjp.create_model and the same arguments, which are then recorded"
        )
    return arguments


def _first_difference(model: nn.Module, twin: nn.Module) -> str | None:
    """What two models differ in, weights and training behaviour aside; None if in nothing."""
    ours, theirs = dict(model.named_modules()), dict(twin.named_modules())
    if ours.keys() != theirs.keys():
        return f"submodules {', '.join(sorted(ours.keys() ^ theirs.keys())[:5])}"
    for name, module in ours.items():
        other = theirs[name]
        if type(module) is not type(other):
            if "Drop" in type(module).__name__ + type(other).__name__:
                continue  # Dropout of rate 0 is built as an identity.
            return f"{name} is {type(module).__name__}, not {type(other).__name__}"
        for key, value in _plain_attributes(module).items():
            if value != _plain_attributes(other).get(key):
                return f"{name}.{key} is {value!r}, not {_plain_attributes(other).get(key)!r}"
    for name, parameter in model.state_dict().items():
        if twin.state_dict()[name].shape != parameter.shape:
            return f"{name} is of shape {tuple(parameter.shape)}"
    return None


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, (bool, int, float, str, tuple))
        and not key.startswith("_")
        and key not in _NOT_ARCHITECTURE
    }
