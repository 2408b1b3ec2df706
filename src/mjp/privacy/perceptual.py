"""LPIPS: how different two images look, by the features of a network that the user brings."""

import warnings
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mjp.core.errors import CheckpointError, ConfigError
from mjp.core.team import float32_precision
from mjp.models.weights import read_state
from mjp.privacy.metrics import in_chunks

Trunk = Literal["auto", "alexnet", "squeezenet", "squeezenet-caffe"]

SMALLEST_SIDE = 64
"""Images with a shorter side are enlarged to it, bilinearly: the trunks see nothing in less."""


class CaffeInput(nn.Module):
    """What Caffe's networks take of images in [-1, 1]: blue, green, red in [0, 255], less means."""

    def forward(self, images: Tensor) -> Tensor:
        means = images.new_tensor((103.939, 116.779, 123.68)).reshape(1, 3, 1, 1)
        return (images.flip(1) + 1) * 127.5 - means


KINDS = MappingProxyType(
    {
        "alexnet": "LPIPS (AlexNet)",
        "squeezenet": "LPIPS (SqueezeNet 1.1)",
        # The heads were fitted to torchvision's training, not to Caffe's: hence a proxy.
        "squeezenet-caffe": "LPIPS proxy (SqueezeNet 1.1, Caffe trunk)",
    }
)
"""The networks whose features LPIPS compares, and what to call the number."""


class Perceptual(nn.Module):
    """LPIPS with one trunk; goes to the device of the images it is given.

    Args:
        name: says so where the number is only a proxy of LPIPS.
        distance: of `lpips`.
    """

    def __init__(self, name: str, distance: Any) -> None:
        super().__init__()
        self.name = name
        self.distance = distance.requires_grad_(False)

    @torch.no_grad()
    def forward(
        self,
        found: Float[Tensor, "batch 3 height width"],
        truth: Float[Tensor, "batch 3 height width"],
    ) -> Float[Tensor, " batch"]:
        """The distance of each pair of images, pixels in [0, 1]; 0 is the same look."""
        self.to(found.device)
        found, truth = found.float(), truth.float()
        with float32_precision("fp32"):
            return in_chunks(self._distance, found, truth)

    def _distance(self, found: Tensor, truth: Tensor) -> Tensor:
        short = min(found.shape[2:])
        if short < SMALLEST_SIDE:
            size = [round(side * SMALLEST_SIDE / short) for side in found.shape[2:]]
            found, truth = (F.interpolate(one, size, mode="bilinear") for one in (found, truth))
        return self.distance(found, truth, normalize=True).flatten()


def open_perceptual(path: Path, trunk: Trunk = "auto") -> Perceptual:
    """LPIPS with the weights of a file: torchvision's AlexNet or SqueezeNet 1.1, or their features.

    The classifier, where the file has one, is not needed. The linear heads come with `lpips`;
    nothing is downloaded.

    Args:
        trunk: what the file holds. `auto` tells by the names and shapes, and takes a SqueezeNet
            without a classifier to be Caffe's: torchvision publishes its own only as a whole.
    """
    if trunk not in get_args(Trunk):
        raise ConfigError(f"trunk must be one of {', '.join(get_args(Trunk))}; got {trunk!r}")
    state = read_state(path)
    weights = {
        name.removeprefix("features."): tensor.float()
        for name, tensor in state.items()
        if not name.startswith("classifier.")
    }
    squeezenet = "squeezenet-caffe" if len(weights) == len(state) else "squeezenet"
    for name in ("alexnet", squeezenet) if trunk == "auto" else (trunk,):
        distance = _untrained("alex" if name == "alexnet" else "squeeze")
        # `lpips` cuts the layers into slices: slice2.3.weight is layer 3 of the trunk.
        own = {one: one.partition(".")[2] for one in distance.net.state_dict()}
        shapes = {own[one]: tensor.shape for one, tensor in distance.net.state_dict().items()}
        if shapes == {one: tensor.shape for one, tensor in weights.items()}:
            distance.net.load_state_dict({one: weights[layer] for one, layer in own.items()})
            if name == "squeezenet-caffe":
                distance.scaling_layer = CaffeInput()
            return Perceptual(KINDS[name], distance)
    expected = "AlexNet's or SqueezeNet 1.1's" if trunk == "auto" else f"{trunk}'s"
    first = ", ".join(f"{name} {tuple(state[name].shape)}" for name in sorted(state)[:3])
    raise CheckpointError(
        f"{path} is no trunk for LPIPS: expected {expected} convolutions under torchvision's "
        f"names (features.0.weight, …) and shapes; its first tensors are {first}"
    )


def _untrained(net: Literal["alex", "squeeze"]) -> Any:
    """LPIPS with its fitted heads on a trunk that still needs its weights."""
    import lpips

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of torchvision, about how `lpips` builds the trunk.
        return lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
