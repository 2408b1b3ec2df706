"""Reads files of weights from anywhere and makes them fit a wrapped model, or says why not."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from timm.models import clean_state_dict, load_state_dict
from torch import Tensor

from mjp.core.configuration import check_choice
from mjp.core.errors import CheckpointError, ConfigError
from mjp.jigsaw import PatchGrid
from mjp.models.backbone import MJPBackbone

PREFIX = "mjp_"  # Before the name of timm's, the name of an architecture with MJP.
WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"

Head = Literal["load", "keep"]


def load_weights(model: MJPBackbone, path: str | Path, *, head: Head = "load") -> None:
    """Loads weights into a wrapped model, strictly: every name and shape must fit.

    Understands safetensors, torch files (nothing in them is executed), folders that `mjp.save` or
    timm wrote, and the checkpoints of the MJP paper's authors. Plain timm weights leave the unknown
    position and the locator as they are. Position tables of another grid and patch kernels of
    another size are resampled, and averaged weights are preferred, as timm does. `head="keep"`
    leaves the model's classifier as it is, to fine-tune on other classes.
    """
    if not isinstance(model, MJPBackbone):
        raise ConfigError("mjp.load_weights loads into wrapped models; see mjp.wrap")
    path = Path(path)
    try:
        grid = PatchGrid(*read_config(path)["position_grid"])
    except (CheckpointError, ConfigError, KeyError, TypeError):
        grid = None  # Of tables in files that `mjp.save` did not write.
    load_strictly(model, fit_to_model(read_state(path), model, grid), path, head)


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file or of a folder with a `model.safetensors`."""
    if path.is_dir():
        path = path / WEIGHTS_NAME
    if not path.is_file():
        raise CheckpointError(f"there is no file of weights at {path}")
    try:
        # The authors' files hold a class of their own, which is read as a plain dictionary.
        with torch.serialization.safe_globals([(OrderedDict, "yacs.config.CfgNode")]):
            state = load_state_dict(str(path))
        if isinstance(inner := state.get("model_state_dict"), Mapping):
            state = clean_state_dict(dict(inner))
    except (AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} holds something else than named tensors") from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} is not a whole file of weights, or holds more than tensors; it was not loaded,"
            " because loading such a file can run code. Save its tensors alone, as safetensors"
        ) from error
    foreign = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if foreign or not state:
        what = f"holds {', '.join(foreign[:5])} beside tensors" if foreign else "is empty"
        raise CheckpointError(f"{path} {what}; expected the tensors of a model by their names")
    return state


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of a folder that `mjp.save` or timm wrote, or beside its weights."""
    folder = path.parent if path.name == WEIGHTS_NAME else path
    try:
        content = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        if not isinstance(content["architecture"], str):
            raise ValueError(f"its architecture is {content['architecture']!r}")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"there is no model in {folder}: no {CONFIG_NAME}; files of weights are for "
            "mjp.load_weights"
        ) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{folder / CONFIG_NAME} is not the configuration of a model ({error!r})"
        ) from error
    return content


def fit_to_model(
    state: Mapping[str, Tensor], model: MJPBackbone, grid: PatchGrid | None = None
) -> dict[str, Tensor]:
    """Renames and resizes what other writers call or size differently from this model.

    What plain timm weights cannot have is filled in from the model; tables of positions are taken
    as square where their grid is not known.
    """
    # In the paper's published checkpoints the regressor is called `dlocr`, and one embedding table
    # holds the class token's row, the patches' and, last, the unknown one.
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
    fitted = dict(model.fit_weights(converted, grid))
    if not any(name.startswith(model.added_names) for name in fitted):
        own = model.state_dict()
        fitted |= {name: own[name] for name in own if name.startswith(model.added_names)}
    return fitted


def load_strictly(model: Any, state: Mapping[str, Tensor], path: Path, head: Head = "load") -> None:
    """Loads the tensors, or raises an error that lists every name and shape that differs."""
    check_choice("head", head, get_args(Head))
    own, heads = model.state_dict(), _heads(model)
    if head == "keep":
        state = {name: tensor for name, tensor in state.items() if not name.startswith(heads)}
        state |= {name: tensor for name, tensor in own.items() if name.startswith(heads)}
    problems = [f"missing {name}" for name in own if name not in state]
    problems += [f"unexpected {name}" for name in state if name not in own]
    problems += [
        f"{name} is {tuple(state[name].shape)}, the model's {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if problems:
        shown = "\n  ".join(problems[:20])
        more = f"\n  … and {len(problems) - 20} more" if len(problems) > 20 else ""
        advice = ""
        if any(problem.startswith(heads) for problem in problems):
            advice = "\nfor other classes than the file's, keep the model's own head: head='keep'"
        elif any(start in problem for problem in problems for start in MJPBackbone.added_names):
            advice = "\nthe file was written under another MJPConfig"
        raise CheckpointError(f"{path} does not fit the model:\n  {shown}{more}{advice}")
    model.load_state_dict(dict(state), strict=True)


def head_fits(model: MJPBackbone, state: Mapping[str, Tensor]) -> bool:
    """Whether the classifier among these tensors is for as many classes as the model's."""
    own, heads = model.state_dict(), _heads(model)
    names = [name for name in own if name.startswith(heads)]
    return all(name in state and state[name].shape == own[name].shape for name in names)


def _heads(model: Any) -> tuple[str, ...]:
    """How the names of the classifier's parameters start."""
    heads = model.get_classifier()
    heads = {id(head) for head in (heads if isinstance(heads, tuple) else (heads,))}
    return tuple(f"{name}." for name, module in model.named_modules() if id(module) in heads)


def saved_pretrained_cfg(path: Path) -> dict[str, Any]:
    """What a folder that `mjp.save` or timm wrote says about its model; empty if nothing."""
    try:
        return dict(read_config(path)["pretrained_cfg"])
    except (CheckpointError, KeyError, TypeError, ValueError):
        return {}
