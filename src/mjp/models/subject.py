"""`Subject`: a model to be measured, what it says of itself, and how a jigsaw reaches it."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64, UInt8
from timm.data import ImageNetInfo, resolve_model_data_config
from timm.layers import to_2tuple
from torch import Tensor, nn

from mjp.core.errors import ConfigError, DataError
from mjp.core.records import Scalar
from mjp.core.team import Precision
from mjp.data.batch import ImageFormat
from mjp.data.decoding import View
from mjp.jigsaw import JigsawPlan, PatchGrid
from mjp.models.backbone import MJPBackbone
from mjp.models.weights import PREFIX

JigsawMode = Literal["auto", "pixels"]  # An MJP model is given the plan, or pixels are moved.
Images = Float[Tensor, "batch 3 height width"]
Levels = UInt8[Tensor, "batch 3 height width"]
DEFAULT_PATCH = 16  # Side of the patches that move, for models that have no patches of their own.


def run_once(model: Any, images: Images, plan: JigsawPlan | None) -> tuple[Tensor, Tensor]:
    """Logits, and the feature before the classifier; the plan is for a model that takes one."""
    tokens = model.forward_features(images, **({} if plan is None else {"plan": plan}))
    return model.forward_head(tokens), model.forward_head(tokens, pre_logits=True)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model to be measured."""

    label: str
    model: Any
    view: View
    inputs: ImageFormat
    patch: tuple[int, int]
    plans_inside: bool  # Whether the model takes the plan itself; else the pixels are moved before.
    identity: dict[str, Scalar]
    precision: Precision = "fp32"
    runner: Callable[..., tuple[Tensor, Tensor]] = run_once

    @classmethod
    def of(
        cls,
        label: str,
        model: Any,
        *,
        size: tuple[int, int] | None = None,
        crop: float | None = None,
        patch: int | None = None,
        jigsaw: JigsawMode = "auto",
        precision: Precision = "fp32",
    ) -> "Subject":
        """The model as it describes itself, but for what is given."""
        described = resolve_model_data_config(model)
        channels, *sides = described["input_size"]
        if channels != 3:
            raise ConfigError(f"{label} takes images of {channels} channels, not 3")
        view = View(
            size=size or image_size_of(model) or tuple(sides),
            crop=float(described["crop_pct"] if crop is None else crop),
            interpolation=described["interpolation"],
            mode=described.get("crop_mode") or "center",
        )
        inside = isinstance(model, MJPBackbone) and jigsaw == "auto"
        if inside and patch is not None and (patch, patch) != tuple(model.patch_shape()):
            raise ConfigError(
                f"{label} moves patches of {model.patch_shape()}; --patch {patch} is for a jigsaw "
                "in pixel space: add --jigsaw pixels"
            )
        return cls(
            label=label,
            model=model,
            view=view,
            inputs=ImageFormat(view.size, tuple(described["mean"]), tuple(described["std"])),
            patch=(patch, patch) if patch is not None else _patch_of(model),
            plans_inside=inside,
            identity=model_facts(label, model),
            precision=precision,
        )

    @property
    def grid(self) -> PatchGrid:
        """The patches that a jigsaw moves; an error where the images cannot be cut into such."""
        return PatchGrid.of(*self.view.size, self.patch)

    @property
    def jigsaw(self) -> str:
        """How a jigsaw reaches the model, in words."""
        positions = self.model.mjp_config.positions if self.plans_inside else "own"
        if positions == "none":
            return "no positions"
        unknown = positions == "unknown" and self.model.position_table() is not None
        return "unknown positions" if unknown else "pixels"

    def facts(self) -> dict[str, Scalar]:
        """What of the subject decides its numbers, for records."""
        return {
            **self.identity,
            "jigsaw": self.jigsaw,
            "patch": "x".join(map(str, self.patch)),
            "image_size": "x".join(map(str, self.view.size)),
            "crop": self.view.crop,
            "interpolation": self.view.interpolation,
            "precision": self.precision,
        }

    def on(self, device: torch.device, *, compiled: bool = False) -> "Subject":
        """The subject with its model on a device, ready to run."""
        runner = torch.compile(self.runner) if compiled else self.runner
        return replace(self, model=self.model.to(device), runner=runner)

    def normalized(self, images: Levels) -> Images:
        """Levels as the model takes them."""
        return self.inputs.normalize(images)

    def answers(
        self, images: Images, plan: JigsawPlan | None = None
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch dim"]]:
        """Logits, and the feature before the classifier, of the images or of their jigsaw."""
        if plan is not None and not self.plans_inside:
            images, plan = plan.apply(images), None
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            logits, feature = self.runner(self.model, images, plan)
        return logits.float(), feature.float()

    def logits(
        self, images: Levels, batch: int, tell: Callable[[int], None]
    ) -> Float[Tensor, "batch classes"]:
        """Logits of images in levels, so many at a time; tells how many are done."""
        logits = []
        for part in images.split(batch):
            logits.append(self.answers(self.normalized(part))[0])
            tell(len(part))
        return torch.cat(logits)


def by_view(subjects: Iterable[Subject]) -> dict[View, list[Subject]]:
    """The subjects that are shown the same cut of a picture, so that it is decoded once."""
    groups: dict[View, list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(subject.view, []).append(subject)
    return groups


def image_size_of(model: Any) -> tuple[int, int] | None:
    """Height and width of the images that a model was made for, as far as it says."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    for place in (model, getattr(model, "config", None)):
        size = size or getattr(place, "img_size", None) or getattr(place, "image_size", None)
    return None if size is None else _two(size)


def _patch_of(model: Any) -> tuple[int, int]:
    if isinstance(model, MJPBackbone):
        return model.patch_shape()
    side = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    # Only where patches stay patches through the model; a Swin's 4x4 tokens are merged.
    return _two(DEFAULT_PATCH if side is None or getattr(model, "blocks", None) is None else side)


def _two(sides: Any) -> tuple[int, int]:
    high, wide = to_2tuple(sides)
    return int(high), int(wide)


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
