"""What a model says of itself: what identifies it in records, and which classes it tells apart."""

import hashlib
import re
from collections.abc import Iterable, Mapping
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

IMAGENET_CLASSES = 1000
WORDNET = re.compile(r"n\d{8}")


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
    name = config.get("architecture") or type(model).__name__
    return str(name).removeprefix(PREFIX)


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
    if len(classes) == outputs and set(classes) == set(map(str, range(outputs))):
        return torch.tensor([int(name) for name in classes])  # Folders 0, 1, 10, 11, 2, …
    known = _label_names(model)
    if known:
        by_name = {name: [number] for number, name in enumerate(known)}
        if all(name in by_name for name in classes) or not is_imagenet(model):
            return _matched(by_name, classes, data, f"the model's {outputs} classes")
    if all(WORDNET.fullmatch(name) for name in classes) and is_imagenet(model):
        return _from_imagenet(model, classes, data)
    if len(classes) == outputs and not known:
        return torch.arange(outputs)
    if is_imagenet(model) and not all(name.isdecimal() for name in classes):
        return _from_imagenet(model, classes, data)
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
    known = _label_names(model)
    return int(model.num_classes) == IMAGENET_CLASSES and (
        not known or _places_in_imagenet(known) is not None
    )


def _label_names(model: Any) -> tuple[str, ...]:
    """What a model calls its outputs; empty where it does not say."""
    known = (getattr(model, "pretrained_cfg", None) or {}).get("label_names") or ()
    return tuple(map(str, known)) if len(known) == int(model.num_classes) else ()


def _places_in_imagenet(names: tuple[str, ...]) -> list[int] | None:
    """Where in ImageNet's order each name stands; None unless they are its thousand classes."""
    if set(names) == set(map(str, range(IMAGENET_CLASSES))):
        return [int(name) for name in names]
    table = _imagenet()
    found = [table.get(name) or table.get(_plain(name), []) for name in names]
    # Two classes are called crane, and two maillot: these stand where order puts them.
    places = [
        one[0] if len(one) == 1 else number if number in one else -1
        for number, one in enumerate(found)
    ]
    return places if sorted(places) == list(range(IMAGENET_CLASSES)) else None


def _from_imagenet(model: Any, classes: tuple[str, ...], data: str) -> Int64[Tensor, " classes"]:
    """The outputs of a model of ImageNet for classes that are called as ImageNet's."""
    places = _matched(_imagenet(), classes, data, "ImageNet's 1000 classes")
    known = _label_names(model)
    order = _places_in_imagenet(known) if known else None
    return places if order is None else torch.tensor(order).argsort()[places]


def _matched(
    known: dict[str, list[int]], classes: Iterable[str], data: str, what: str
) -> Int64[Tensor, " classes"]:
    found = {name: known.get(name) or known.get(_plain(name), []) for name in classes}
    unknown = [name for name, numbers in found.items() if not numbers]
    unclear = [name for name, numbers in found.items() if len(numbers) > 1]
    outputs = [numbers[0] for numbers in found.values() if numbers]
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
