"""Reads files of weights from anywhere and makes them fit a wrapped model, or says why not."""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed
from timm.models import swin_transformer, vision_transformer
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from mjp.core.errors import CheckpointError
from mjp.models.backbone import MJPBackbone

WEIGHTS_NAME = "model.safetensors"

OWN_NAMES = ("unknown_position", "index_embed", "locator.")
"""How the names of the parameters start that mjp adds to a timm model."""


def load_weights(
    model: MJPBackbone, path: str | Path, *, head: Literal["load", "keep"] = "load"
) -> None:
    """Loads weights into a wrapped model, strictly: every name and shape must fit.

    Understands safetensors, torch files (tensors only: nothing in them is executed), folders that
    `mjp.save` or timm wrote, and the checkpoints of the MJP paper's authors. Plain timm weights
    leave the unknown position and the locator as they are; a position table of another grid is
    resampled.

    Args:
        head: `keep` leaves the model's classifier as it is, to fine-tune on other classes.
    """
    state = fit_to_model(read_state(Path(path)), model)
    if head == "keep":
        names = model.pretrained_cfg.get("classifier") or ()
        heads = tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))
        state = {name: tensor for name, tensor in state.items() if not name.startswith(heads)}
        own = model.state_dict()
        state |= {name: tensor for name, tensor in own.items() if name.startswith(heads)}
    load_strictly(model, state, Path(path))


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file or of a folder with a `model.safetensors`."""
    if path.is_dir():
        path = path / WEIGHTS_NAME
    if not path.is_file():
        raise CheckpointError(f"there is no file of weights at {path}")
    state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for wrapper in ("model", "state_dict", "model_state_dict"):
        inner = state.get(wrapper)
        if isinstance(inner, Mapping):
            state = inner
            break
    foreign = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if foreign or not state:
        what = (
            f"holds {', '.join(map(repr, foreign[:5]))} beside tensors" if foreign else "is empty"
        )
        raise CheckpointError(f"{path} {what}; expected named tensors, or those under 'model'")
    return dict(state)


def fit_to_model(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Renames and resizes what other writers call or size differently from this model.

    Parameters of mjp's own that plain timm weights cannot have are filled in from the model.
    """
    fitted = convert_reference(state)
    own = model.state_dict()
    if own.get("pos_embed") is None:
        fitted.pop("pos_embed", None)
    if isinstance(model, VisionTransformer):
        fitted = vision_transformer.checkpoint_filter_fn(fitted, model, adapt_layer_scale=True)
        _resize(fitted, "index_embed", model)
    elif isinstance(model, SwinTransformer):
        fitted = swin_transformer.checkpoint_filter_fn(fitted, model)
        _resize(fitted, "pos_embed", model)
    names = OWN_NAMES if isinstance(model, VisionTransformer) else (*OWN_NAMES, "pos_embed")
    if not any(name.startswith(names) for name in fitted):
        fitted |= {name: own[name] for name in own if name.startswith(names)}
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


def load_strictly(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Loads the tensors, or raises an error that lists every name and shape that differs."""
    own = model.state_dict()
    problems = [f"missing {name}" for name in own if name not in state]
    problems += [f"unexpected {name}" for name in state if name not in own]
    problems += [
        f"{name} is {tuple(state[name].shape)}, the model's {tuple(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    if problems:
        shown = "\n  ".join(problems[:20])
        more = f"\n  … and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise CheckpointError(f"{path} does not fit the model:\n  {shown}{more}{_advice(problems)}")
    model.load_state_dict(dict(state), strict=True)


def _advice(problems: list[str]) -> str:
    if any(
        " head" in f" {problem.split(' ', 1)[-1]}" or problem.startswith("head")
        for problem in problems
    ):
        return "\nfor other classes than the file's, keep the model's own: head='keep'"
    if any(start in problem for problem in problems for start in OWN_NAMES):
        return "\nthe file was written under another MJPConfig"
    return ""


def _resize(state: dict[str, Tensor], name: str, model: MJPBackbone) -> None:
    """Resamples a table of positions that is for another (square) grid than the model's."""
    table, own = state.get(name), getattr(model, name, None)
    if table is None or own is None or table.shape == own.shape:
        return
    prefix = 0
    if isinstance(model, VisionTransformer) and not model.no_embed_class:
        prefix = model.num_prefix_tokens
    state[name] = resample_abs_pos_embed(
        table, new_size=model.patch_embed.grid_size, num_prefix_tokens=prefix
    )


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error


def _read_torch(path: Path) -> Mapping[str, Any]:
    # The authors' files hold their run's configuration too; it is read as a plain dictionary.
    plain: list[Any] = [(OrderedDict, "yacs.config.CfgNode")]
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
