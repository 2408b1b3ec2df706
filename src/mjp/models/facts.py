"""What a model says of itself: what identifies it in records, and which classes it tells apart."""

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from jaxtyping import Int64
from timm.data import ImageNetInfo
from torch import Tensor, nn

from mjp.core.errors import DataError
from mjp.core.records import Scalar
from mjp.models.backbone import MJPBackbone
from mjp.models.weights import PREFIX


def model_facts(label: str, model: Any) -> dict[str, Scalar]:
    """The conditions of a record that say which model it is of."""
    config = model.mjp_config if isinstance(model, MJPBackbone) else None
    acting = ("ratio", "positions", "localization", "pixels")
    return {
        "model": label,
        "architecture": architecture_of(model),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights": fingerprint(model),
        **{f"mjp_{name}": getattr(config, name, None) for name in acting},
        "imagenet": hasattr(model, "num_classes") and is_imagenet(model),
    }


def architecture_of(model: nn.Module) -> str:
    """timm's name of a model, without tag and without ours in front; its class if it has none."""
    config = getattr(model, "pretrained_cfg", None) or {}
    return str(config.get("architecture") or type(model).__name__).removeprefix(PREFIX)


def fingerprint(model: Any) -> str:
    """A short text that depends on every weight."""
    return digest_of(model.state_dict())


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A short text that depends on every name and value."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(content.numpy().tobytes())
    return digest.hexdigest()


def class_outputs(model: Any, classes: tuple[str, ...], data: str) -> Int64[Tensor, " classes"]:
    """For each class of the data, the output of the model that stands for it.

    By name where the model knows the names of its classes, or has ImageNet's thousand; else in
    order, if there are as many.
    """
    outputs = int(model.num_classes)
    if outputs < 1:
        raise DataError("this model has no classifier, so there is nothing to be right or wrong")
    if sorted(classes) == sorted(map(str, range(outputs))):
        return torch.tensor([int(name) for name in classes])  # Folders 0, 1, 10, 11, 2, …
    known, order = _label_names(model), _imagenet_order(model)
    if known and (set(classes) <= set(known) or order is None):
        by_name = {name: [number] for number, name in enumerate(known)}
        return _matched(by_name, classes, data, f"the model's {outputs} classes")
    wordnet = order is not None and all(re.fullmatch(r"n\d{8}", name) for name in classes)
    if len(classes) == outputs and not known and not wordnet:
        return torch.arange(outputs)
    if order is not None and not all(name.isdecimal() for name in classes):
        places = _matched(_imagenet(), classes, data, "ImageNet's 1000 classes")
        return torch.tensor(order).argsort()[places]
    raise DataError(
        f"{data} has {len(classes)} classes and the model {outputs} outputs, and nothing says "
        "which output stands for which class; name the classes of the data as the model's, or by "
        "WordNet numbers for a model of ImageNet"
    )


def imagenet_synsets() -> tuple[str, ...]:
    """The WordNet numbers of ImageNet's thousand classes, in order."""
    return tuple(ImageNetInfo().label_names())


def is_imagenet(model: Any) -> bool:
    """Whether a model tells ImageNet's thousand classes apart, as far as it says."""
    return _imagenet_order(model) is not None


def _label_names(model: Any) -> tuple[str, ...]:
    """What a model calls its outputs; empty where it does not say."""
    known = (getattr(model, "pretrained_cfg", None) or {}).get("label_names") or ()
    return tuple(map(str, known)) if len(known) == int(model.num_classes) else ()


def _imagenet_order(model: Any) -> list[int] | None:
    """The number in ImageNet of each output; None unless they are its thousand classes."""
    in_order, names = list(range(1000)), _label_names(model)
    if not names:
        return in_order if int(model.num_classes) == 1000 else None
    if sorted(names) == sorted(map(str, in_order)):
        return [int(name) for name in names]
    # Two classes are called crane, and two maillot: these stand where order puts them.
    places = [
        candidates[0] if len(candidates) == 1 else number if number in candidates else -1
        for number, candidates in enumerate(_candidates(_imagenet(), name) for name in names)
    ]
    return places if sorted(places) == in_order else None


def _candidates(known: Mapping[str, list[int]], name: str) -> list[int]:
    return known.get(name) or known.get(_plain(name), [])


def _matched(
    known: Mapping[str, list[int]], classes: tuple[str, ...], data: str, what: str
) -> Int64[Tensor, " classes"]:
    candidates = {name: _candidates(known, name) for name in classes}
    unknown = [name for name, numbers in candidates.items() if not numbers]
    unclear = [name for name, numbers in candidates.items() if len(numbers) > 1]
    outputs = [number for numbers in candidates.values() for number in numbers]
    problem = ""
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        problem = f"classes that are none of {what}: {', '.join(unknown[:5])}{more}"
    elif unclear:
        problem = f"the name {unclear[0]!r}, which is that of several of {what}"
    elif len(set(outputs)) < len(outputs):
        problem = f"two classes that stand for the same one of {what}"
    if problem:
        raise DataError(f"{data} has {problem}; WordNet numbers name classes of ImageNet for sure")
    return torch.tensor(outputs)


@cache
def _imagenet() -> dict[str, list[int]]:
    """ImageNet's classes by WordNet number, and by each of their names."""
    info = ImageNetInfo()
    known: dict[str, list[int]] = {}
    first: dict[str, list[int]] = {}
    for number, text in enumerate(info.label_descriptions()):
        names = text.split(",")
        for name in {_plain(part) for part in (text, *names)}:
            known.setdefault(name, []).append(number)
        first.setdefault(_plain(names[0]), []).append(number)
    synsets = {synset: [number] for number, synset in enumerate(info.label_names())}
    # A missile is a missile, though a projectile may be called one too.
    return {**synsets, **known, **{name: one for name, one in first.items() if len(one) == 1}}


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").replace("-", " ").lower().split())
