"""Opens any model by what a person calls it: a folder, a name of timm's or the hub's, a file."""

import difflib
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import split_model_name_tag
from torch import nn

from mjp.core.errors import CheckpointError, ConfigError, UnsupportedModelError
from mjp.core.seeds import seed_for
from mjp.models import weights
from mjp.models.backbone import MJPBackbone
from mjp.models.checkpoint import load, pretrained, pretrained_names
from mjp.models.config import VARIANTS
from mjp.models.factory import wrap

RANDOM = "random"  # In place of a file: weights drawn from a seed.
PRETRAINED = "pretrained:"  # Before the name of a trained model of the package.
IMPORT = "import:"  # Before MODULE:FUNCTION, which makes a model of the person's own.
SOURCES = ("hf-hub:", "local-dir:", PRETRAINED)


@dataclass(frozen=True)
class ModelName:
    """What a person wrote, taken apart: `[LABEL=]MODEL[@WEIGHTS]`."""

    label: str
    source: str
    weights: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Takes apart what was written; a path that exists is taken as it is."""
        label, source, file = "", text.strip(), ""
        if not _is_whole(source):
            before, equals, after = source.partition("=")
            if equals and "@" not in before:
                label, source = before.strip(), after.strip()
            if not _is_whole(source):
                source, _, file = source.partition("@")
        if not source:
            raise ConfigError(f"{text!r} names no model; write [LABEL=]MODEL[@WEIGHTS]")
        return cls(label or _short(source), source, file or None)


def _is_whole(source: str) -> bool:
    """Whether this is a model as it stands, so that = and @ are parts of its name."""
    return source.startswith(SOURCES) or Path(source).expanduser().exists()


def _short(source: str) -> str:
    """What to call a model that was given no label."""
    bare = source.partition(":")[2] if source.startswith(SOURCES) else source
    path = Path(bare).expanduser()
    path = path.resolve() if path.is_dir() else path
    if path.is_dir() and path.name in ("best", "final"):
        return path.parent.name if path.name == "best" else f"{path.parent.name}/final"
    return path.name or bare


def open_models(texts: tuple[str, ...], size: tuple[int, int] | None = None) -> dict[str, Any]:
    """The models by their labels, in evaluation mode, in single precision, on the CPU."""
    if not texts:
        raise ConfigError("name a model: --model MODEL …")
    names = [ModelName.parse(text) for text in texts]
    labels = [name.label for name in names]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise ConfigError(
            f"two models are called {twice[0]!r}; give them labels: --model first=… second=…"
        )
    return {name.label: open_model(name, size) for name in names}


def open_model(name: ModelName, size: tuple[int, int] | None = None) -> Any:
    """The model, as `open_models` gives it; another size of images resamples its positions."""
    try:
        model = _build(name, {} if size is None else {"img_size": size})
    except (TypeError, AssertionError) as error:
        # ResNets take images of any size, and say so by not knowing the argument.
        if size is None or "img_size" not in str(error):
            raise ConfigError(
                f"{name.source} cannot be built for images of {size or 'its own size'}: {error}"
            ) from error
        model = _build(name, {})
    return model.float().eval()


def _build(name: ModelName, arguments: dict[str, Any]) -> Any:
    source = name.source
    if source.startswith(IMPORT):
        return _imported(source.removeprefix(IMPORT), name.weights)
    if source.startswith(PRETRAINED):
        return pretrained(source.removeprefix(PRETRAINED), **arguments)
    path = Path(source.removeprefix("local-dir:")).expanduser()
    if path.is_dir() or source.startswith("local-dir:"):
        places = (path, path / "best")  # Of a training run its best model is meant.
        path = next((one for one in places if (one / weights.CONFIG_NAME).is_file()), path)
        if weights.read_config(path)["architecture"].startswith(weights.PREFIX):
            return load(path, **arguments)
        return _pretrained(f"local-dir:{path}", arguments)
    if path.is_file():
        raise ConfigError(
            f"{path} is a file of weights, which does not say of what model; write "
            f"ARCHITECTURE@{path}, such as deit_small_patch16_224@{path}"
        )
    architecture = split_model_name_tag(source)[0]
    if not source.startswith("hf-hub:") and not timm.is_model(architecture):
        ours = difflib.get_close_matches(architecture, pretrained_names(), n=2, cutoff=0.8)
        theirs = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        close = [PRETRAINED + known for known in ours] or theirs
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ConfigError(f"{source!r} is neither a folder nor a model of timm's{hint}")
    if name.weights is None:
        return _pretrained(source, arguments)
    if name.weights == RANDOM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(0, "weights"))
            return timm.create_model(source, **arguments)
    return _from_file(source, Path(name.weights).expanduser(), arguments)


def _imported(where: str, file: str | None) -> nn.Module:
    """A module that a function of the person's own makes; asked for by name, so it is run."""
    home, _, function = where.partition(":")
    sys.path.insert(0, "")  # As `python -m` does: modules beside the person count.
    try:
        made = getattr(importlib.import_module(home or where), function)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{IMPORT}{where} cannot be had; write {IMPORT}MODULE:FUNCTION ({error})"
        ) from error
    finally:
        sys.path.remove("")
    if not isinstance(made, nn.Module):
        raise ConfigError(f"{IMPORT}{where} gives a {type(made).__name__}, not an nn.Module")
    if file is not None:
        path = Path(file).expanduser()
        weights.load_strictly(made, weights.read_state(path), path)
    return made


def _pretrained(source: str, arguments: dict[str, Any]) -> Any:
    try:
        return timm.create_model(source, pretrained=True, **arguments)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = "" if ":" in source else f"; name a file of them: {source}@FILE"
        raise CheckpointError(f"the weights of {source} cannot be had: {reason}{hint}") from error


def _from_file(source: str, path: Path, arguments: dict[str, Any]) -> Any:
    """An architecture of timm's or ours with the weights of a file, for as many classes."""
    state = weights.read_state(path)
    classifier = timm.get_pretrained_cfg(source).classifier
    first = classifier[0] if isinstance(classifier, (tuple, list)) else classifier
    if (weight := state.get(f"{first}.weight")) is not None:
        arguments = {**arguments, "num_classes": int(weight.shape[0])}
    model = timm.create_model(source, **arguments)
    if isinstance(model, MJPBackbone):
        weights.load_weights(model, path)
        return model
    if any(name.startswith((*MJPBackbone.added_names, "pos_embed.weight")) for name in state):
        raise CheckpointError(
            f"{path} holds a model with MJP; write mjp_{source}@{path} to open it as one"
        )
    try:
        # A wrapper around the same parameters, which knows how to resample and rename.
        weights.load_weights(wrap(model, VARIANTS["A"]), path)
    except (UnsupportedModelError, ConfigError):
        weights.load_strictly(model, state, path)
    return model
