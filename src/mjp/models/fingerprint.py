"""A short text that tells two models, or two sets of tensors, apart."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


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
