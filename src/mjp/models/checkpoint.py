"""Saves and loads whole models: folders in the layout of timm's, which timm reads too."""

import difflib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from timm.models._hub import save_config_for_hf
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from mjp.core.configuration import check_choice
from mjp.core.errors import CheckpointError, ConfigError, UnsupportedModelError
from mjp.jigsaw.grid import pair_of_sides
from mjp.models import weights
from mjp.models.backbone import MJPBackbone
from mjp.models.config import MJPConfig
from mjp.models.factory import build
from mjp.models.vit import PrefixBlock

# Attributes that do not change what a model computes in evaluation, but for rounding.
_NOT_ARCHITECTURE = {"training", "grad_checkpointing", "distilled_training", "drop_prob", "p"}
_NOT_ARCHITECTURE |= {"fused_attn", "target_shift_size"}

Precision = Literal["own", "fp16"]

FOLDER = Path(__file__).parents[1] / "pretrained"  # Of the package's models, with their cards.


def save(model: nn.Module, path: str | Path, *, precision: Precision = "own") -> None:
    """Writes a wrapped model to a folder: `model.safetensors` and `config.json`.

    Each file is written whole or not at all; a model that could not be built again from what the
    configuration records is refused. What is of training alone, such as gradient checkpointing, is
    not kept. `fp16` rounds the weights in the file alone; `mjp.load` gives single precision again.
    """
    check_choice("precision", precision, get_args(Precision))
    if not isinstance(model, MJPBackbone):
        raise ConfigError(
            f"mjp.save writes wrapped models, not a {type(model).__name__}; see mjp.wrap, or save "
            "what it holds in its .module, ._orig_mod or .model"
        )
    arguments = {**_describe(model), "mjp": asdict(model.mjp_config)}
    folder = Path(path)
    unfinished = folder / ".part"  # A killed writer leaves nothing elsewhere.
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    notes: dict[str, Any] = {}
    if precision == "fp16":
        tensors = {name: _halved(name, tensor) for name, tensor in tensors.items()}
        notes["stored_precision"] = precision
    if model.position_table() is not None:
        grid = model.position_grid()
        notes["position_grid"] = [grid.rows, grid.cols]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        save_file(tensors, unfinished / weights.WEIGHTS_NAME, metadata={"format": "pt"})
        save_config_for_hf(model, unfinished / weights.CONFIG_NAME, notes, arguments)
        for name in (weights.WEIGHTS_NAME, weights.CONFIG_NAME):
            with (unfinished / name).open("rb") as file:
                os.fsync(file.fileno())
            (unfinished / name).replace(folder / name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the model cannot be written to {folder}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load(path: str | Path, *, head: weights.Head = "load", **arguments: Any) -> Any:
    """Reads a model that `mjp.save` wrote, in the precision that it had.

    Arguments override what was saved, as for `mjp.create_model`: with another num_classes,
    head="keep" draws a new classifier; with img_size, the position table is resampled, and the
    windows of a Swin grow with the image.
    """
    if arguments.get("features_only"):
        raise ConfigError(
            "mjp.load gives whole models; for features, use timm.create_model("
            f"'local-dir:{path}', pretrained=True, features_only=True)"
        )
    folder = Path(path)
    content = weights.read_config(folder)
    architecture = content["architecture"]
    if not architecture.startswith(weights.PREFIX):
        raise CheckpointError(f"{folder} is of {architecture!r}, which is no model of mjp")
    img_size = arguments.pop("img_size", None)
    try:
        saved = {**content["model_args"], **arguments}
        described = {**content["pretrained_cfg"], "architecture": architecture}
        config = MJPConfig.from_dict(saved.pop("mjp"))
        model = build(architecture, config, pretrained_cfg=described, **saved)
    except (KeyError, AttributeError, TypeError, AssertionError) as error:
        raise CheckpointError(
            f"{folder}/config.json is not the configuration of a {architecture} ({error!r})"
        ) from error
    state = weights.read_state(folder)
    weights.load_strictly(model, state, folder, head)
    if "stored_precision" not in content:
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in state:
                tensor.data = tensor.data.to(state[name].dtype)
    if img_size is not None:
        if not hasattr(model, "set_input_size"):
            raise ConfigError(f"{architecture} takes images of any size; leave img_size out")
        model.set_input_size(img_size=pair_of_sides("img_size", img_size))
    return model


def _halved(name: str, tensor: Tensor) -> Tensor:
    half = tensor.half() if tensor.is_floating_point() else tensor
    if not torch.equal(half.isfinite(), tensor.isfinite()):
        raise CheckpointError(
            f"{name} has values up to {tensor.abs().max():.3g}, too large for half precision; "
            "leave precision='fp16' out"
        )
    return half


def _describe(model: MJPBackbone) -> dict[str, Any]:
    """The arguments that build this model again; an error if there are none we know of."""
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture", "")
    if not architecture:
        raise CheckpointError(
            "this model was not made by name, so its file could not say what it is; make it with "
            "mjp.create_model(NAME, config, …) or wrap what timm.create_model(NAME, …) returns"
        )
    live = model.timm_arguments()
    always = ("num_classes", "img_size", "in_chans")
    arguments = {**model.mjp_arguments, **{name: live[name] for name in always if name in live}}
    try:
        for _ in range(3):  # Again, because one argument may change the default of another.
            with torch.device("meta"):
                twin = build(architecture, model.mjp_config, **arguments)
            built = twin.timm_arguments()
            changed = {name: value for name, value in live.items() if value != built.get(name)}
            if not changed:
                break
            arguments |= changed
        json.dumps(arguments)
    except (UnsupportedModelError, ConfigError, TypeError, AssertionError) as error:
        raise CheckpointError(f"this model cannot be described in a file: {error}") from error
    (parts, settings), (built_parts, built_settings) = _signature(model), _signature(twin)
    # A setting that one of them alone has is a note of its user's.
    common = {name: value for name, value in settings.items() if name in built_settings}
    ours, theirs = parts | common, built_settings | built_parts
    different = [
        f"{name} is {ours.get(name)}, not {theirs.get(name)}"
        for name in ours | built_parts
        if ours.get(name) != theirs.get(name)
    ]
    if different:
        raise CheckpointError(
            f"built again as {architecture} with {arguments}, the model would differ: "
            f"{', '.join(different[:5])}. A model made with mjp.create_model records its arguments;"
            " a new head is made with model.reset_classifier(num_classes)"
        )
    return arguments


def _signature(model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """What decides what a model computes in evaluation: its tensors and modules, their settings."""
    parts: dict[str, Any] = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    settings: dict[str, Any] = {}
    alike: dict[type, type] = {nn.SyncBatchNorm: nn.BatchNorm2d, PrefixBlock: Block}
    for name, module in model.named_modules():
        kind = alike.get(type(module), type(module)).__name__
        parts[name] = "Identity" if "Drop" in kind else kind  # The same in evaluation.
        for key, value in vars(module).items():
            plain = isinstance(value, (bool, int, float, str, tuple)) and not key.startswith("_")
            if plain and key not in _NOT_ARCHITECTURE:
                settings[f"{name}.{key}"] = value
    return parts, settings


def pretrained(name: str, *, head: weights.Head = "load", **arguments: Any) -> Any:
    """A small trained model of the package, in evaluation mode; arguments are those of `mjp.load`.

    `mini-imagenet-plain` and `mini-imagenet-mjp`: ViTs of four blocks without and with MJP, for 100
    classes of ImageNet at 64 pixels, of 2 million parameters each.
    """
    return load(pretrained_folder(name), head=head, **arguments).eval()


def pretrained_names() -> list[str]:
    """The models of the package."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{weights.CONFIG_NAME}"))


def pretrained_folder(name: str) -> Path:
    """Where a model of the package lies."""
    names = pretrained_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=2) or names
        raise ConfigError(
            f"mjp has no trained model named {name!r}; did you mean {' or '.join(close)}?"
        )
    return FOLDER / name


def pack(source: str | Path, name: str) -> None:
    """Puts a model that `mjp.save` wrote into the package, in half precision; for maintainers."""
    model = load(source)
    # What timm says of its own weights of this architecture is not true of these.
    own = {"tag": "", "license": "mit", "num_classes": model.num_classes}
    model.pretrained_cfg = {**model.pretrained_cfg, **own}
    save(model, FOLDER / name, precision="fp16")
