"""What identifies a model in records: its architecture, its weights, what MJP does to it."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mjp.core.records import Scalar
from mjp.models.backbone import MJPBackbone
from mjp.models.classes import is_imagenet
from mjp.models.weights import PREFIX


def model_facts(label: str, model: Any) -> dict[str, Scalar]:
    """The conditions of a record that say which model it is of."""
    config = model.mjp_config if isinstance(model, MJPBackbone) else None
    return {
        "model": label,
        "architecture": architecture_of(model),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights": fingerprint(model),
        "mjp_ratio": None if config is None else config.ratio,
        "mjp_positions": None if config is None else config.positions,
        "mjp_localization": None if config is None else config.localization,
        "mjp_pixels": None if config is None else config.pixels,
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
