"""The comparison of a wrapped model with timm's, for any kind, device and precision."""

import copy

import pytest
import torch
from torch.nn import functional as F

import mjp
from tests.models.kinds import CLASSES, Kind


def outcome(model, images, labels, autocast):
    """Logits and all gradients of one step in training mode."""
    torch.manual_seed(1)
    model.train()
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=autocast):
        logits = model(images)
        loss = F.cross_entropy(logits.float(), labels)
    loss.backward()
    return logits, {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_equal_to_timms(kind: Kind, device: str, autocast: bool) -> None:
    """Logits and gradients equal timm's bit for bit, wherever timm's model equals itself.

    Some kernels (bicubic resampling on a GPU, bf16 convolutions on some CPUs) do not repeat.
    """
    plain = kind.build().to(device)
    twin = copy.deepcopy(plain)
    wrapped = mjp.wrap(copy.deepcopy(plain), mjp.MJPConfig())
    images, labels = kind.images().to(device), torch.randint(CLASSES, (4,)).to(device)
    logits, gradients = outcome(plain, images, labels, autocast)
    logits_again, gradients_again = outcome(twin, images, labels, autocast)
    if not torch.equal(logits_again, logits):
        pytest.skip("timm's own model does not repeat itself on this machine")
    ours, our_gradients = outcome(wrapped, images, labels, autocast)
    assert torch.equal(ours, logits)
    repeatable = [name for name in gradients if torch.equal(gradients[name], gradients_again[name])]
    assert len(repeatable) >= 0.9 * len(gradients)
    for name in repeatable:
        assert torch.equal(our_gradients[name], gradients[name]), name
    added = {name for name in our_gradients if name not in gradients}
    assert all(our_gradients[name] is None for name in added)
    assert bool(added) == kind.has_positions
