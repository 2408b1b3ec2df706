"""Reads files of weights from anywhere and makes them fit a wrapped model, or says why not."""

import json
import math
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed
from timm.models import clean_state_dict
from torch import Tensor

from mjp.core.errors import CheckpointError, ConfigError
from mjp.jigsaw import PatchGrid
from mjp.models.backbone import MJPBackbone

PREFIX = "mjp_"
"""Before the name of timm's, the name of an architecture with MJP."""

WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"

STATES = ("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict")
"""Where training programs put the weights in their files, averaged ones first, as timm reads."""

PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")

Head = Literal["load", "keep"]


def load_weights(model: MJPBackbone, path: str | Path, *, head: Head = "load") -> None:
    """Loads weights into a wrapped model, strictly: every name and shape must fit.

    Understands safetensors, torch files (nothing in them is executed), folders that `mjp.save` or
    timm wrote, and the checkpoints of the MJP paper's authors. Plain timm weights leave the unknown
    position and the locator as they are; a model without positions (variant B) leaves theirs out.
    Position tables of another grid and patch kernels of another size are resampled, and of averaged
    and plain weights in one file the averaged are taken, as timm does.

    Args:
        head: `keep` leaves the model's classifier as it is, to fine-tune on other classes.
    """
    if not isinstance(model, MJPBackbone):
        raise ConfigError("mjp.load_weights loads into wrapped models; see mjp.wrap")
    path = Path(path)
    state = fit_to_model(read_state(path), model, grid=_saved_grid(path))
    load_strictly(model, state, path, head)


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file or of a folder with a `model.safetensors`."""
    if path.is_dir():
        path = path / WEIGHTS_NAME
    if not path.is_file():
        raise CheckpointError(f"there is no file of weights at {path}")
    state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for wrapper in STATES:
        inner = state.get(wrapper)
        if isinstance(inner, Mapping):
            state = inner
            break
    foreign = [
        name
        for name, value in state.items()
        if not isinstance(value, Tensor) or not isinstance(name, str)
    ]
    if foreign or not state:
        what = (
            f"holds {', '.join(map(repr, foreign[:5]))} beside tensors" if foreign else "is empty"
        )
        raise CheckpointError(
            f"{path} {what}; expected named tensors, or those under one of {', '.join(STATES)}"
        )
    return dict(clean_state_dict(state))  # Drops the prefixes of DDP and torch.compile.


def fit_to_model(
    state: Mapping[str, Tensor], model: MJPBackbone, grid: PatchGrid | None = None
) -> dict[str, Tensor]:
    """Renames and resizes what other writers call or size differently from this model.

    Parameters of mjp's own that plain timm weights cannot have are filled in from the model.

    Args:
        grid: the grid of the position tables in the state, where it is known; else taken as square.
    """
    fitted = dict(model.fit_weights(convert_reference(state), grid))
    if not any(name.startswith(model.added_names) for name in fitted):
        own = model.state_dict()
        fitted |= {name: own[name] for name in own if name.startswith(model.added_names)}
    return fitted


def convert_reference(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names of the paper's published checkpoints turned into ours; others are left alone.

    There, one embedding table holds the class token's row, the patches' and, last, the unknown one,
    and the regressor is called `dlocr`.
    """
    converted = {name.replace("dlocr.", "locator.", 1): value for name, value in state.items()}
    table = converted.pop("pos_embed.weight", None)
    if table is not None:
        if table.dim() != 2 or table.shape[0] < 3:
            raise CheckpointError(
                f"pos_embed.weight has shape {tuple(table.shape)}; expected a row for the class "
                "token, one for each patch, and one for the unknown position"
            )
        converted["pos_embed"] = table[None, :-1].clone()
        converted["unknown_position"] = table[None, -1:].clone()
    return converted


def load_strictly(model: Any, state: Mapping[str, Tensor], path: Path, head: Head = "load") -> None:
    """Loads the tensors, or raises an error that lists every name and shape that differs."""
    if head not in get_args(Head):
        raise ConfigError(f"head must be one of {', '.join(get_args(Head))}; got {head!r}")
    own = model.state_dict()
    heads = _head_names(model)
    if head == "keep":
        state = {name: tensor for name, tensor in state.items() if not name.startswith(heads)}
        state |= {name: tensor for name, tensor in own.items() if name.startswith(heads)}
    problems = [f"missing {name}" for name in own if name not in state]
    problems += [f"unexpected {name}" for name in state if name not in own]
    misshapen = [name for name in own if name in state and state[name].shape != own[name].shape]
    problems += [
        f"{name} is {tuple(state[name].shape)}, the model's {tuple(own[name].shape)}"
        for name in misshapen
    ]
    if problems:
        shown = "\n  ".join(problems[:20])
        more = f"\n  … and {len(problems) - 20} more" if len(problems) > 20 else ""
        advice = ""
        if any(name.startswith(heads) for name in misshapen):
            advice = "\nfor other classes than the file's, keep the model's own head: head='keep'"
        elif any(start in problem for problem in problems for start in MJPBackbone.added_names):
            advice = "\nthe file was written under another MJPConfig"
        raise CheckpointError(f"{path} does not fit the model:\n  {shown}{more}{advice}")
    model.load_state_dict(dict(state), strict=True)


def head_fits(model: MJPBackbone, state: Mapping[str, Tensor]) -> bool:
    """Whether the classifier among these tensors is for as many classes as the model's."""
    own, heads = model.state_dict(), _head_names(model)
    return all(
        name in state and state[name].shape == tensor.shape
        for name, tensor in own.items()
        if name.startswith(heads)
    )


def _head_names(model: Any) -> tuple[str, ...]:
    """How the names of the classifier's parameters start."""
    heads = model.get_classifier()
    heads = heads if isinstance(heads, tuple) else (heads,)
    return tuple(
        f"{name}." for name, module in model.named_modules() if any(module is one for one in heads)
    )


def resize_table(
    state: dict[str, Tensor], name: str, model: MJPBackbone, grid: PatchGrid | None
) -> None:
    """Resamples a table of positions that is for another grid than the model's.

    A table whose grid is neither known nor square, or that has other rows for class or register
    tokens than the model's, is left as it is, to be reported by its shape.
    """
    table, own = state.get(name), getattr(model, name, None)
    if table is None or own is None or table.dim() != 3:
        return
    placed = own.shape[1] - model.position_grid().num_patches
    prefix = sum(state[key].shape[1] for key in PREFIX_TOKENS if key in state)
    if placed not in (0, prefix):
        return
    patches = table.shape[1] - placed
    side = math.isqrt(max(0, patches))
    if grid is None and side * side == patches > 0 and table.shape != own.shape:
        grid = PatchGrid(side, side)
    if grid is None or grid.num_patches != patches or grid == model.position_grid():
        return
    state[name] = resample_abs_pos_embed(
        table,
        new_size=model.patch_embed.grid_size,
        old_size=(grid.rows, grid.cols),
        num_prefix_tokens=placed,
    )


def _saved_grid(path: Path) -> PatchGrid | None:
    """The grid of the position tables in a folder that `mjp.save` wrote."""
    try:
        rows, cols = _saved_config(path)["position_grid"]
        return PatchGrid(rows, cols)
    except (ValueError, KeyError, TypeError):
        return None


def saved_pretrained_cfg(path: Path) -> Mapping[str, Any]:
    """What a folder that `mjp.save` or timm wrote says about its model; empty if nothing."""
    described = _saved_config(path).get("pretrained_cfg")
    return described if isinstance(described, Mapping) else {}


def _saved_config(path: Path) -> Mapping[str, Any]:
    """The configuration beside a file of weights; empty where there is none to be read."""
    folder = path.parent if path.name == WEIGHTS_NAME else path
    try:
        content = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, Mapping) else {}


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error


def _read_torch(path: Path) -> Mapping[str, Any]:
    # Files of training programs hold the run's settings too: timm's as a namespace, the authors' in
    # a class of their own, which is read as a plain dictionary.
    plain: list[Any] = [Namespace, (OrderedDict, "yacs.config.CfgNode")]
    try:
        with torch.serialization.safe_globals(plain):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise CheckpointError(
            f"{path} is damaged, no torch file, or holds more than tensors; it was not loaded, "
            "because loading such a file can run code. Save its tensors alone, as safetensors"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is not a whole torch file: {error}") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not named tensors")
    return content
