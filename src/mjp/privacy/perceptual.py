"""LPIPS: how different two images look, by the features of a network that the user brings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import alexnet, squeezenet1_1  # type: ignore[import-untyped]

from mjp.core.errors import CheckpointError, ConfigError
from mjp.core.precision import float32_precision
from mjp.models.weights import read_state
from mjp.privacy.metrics import CHUNK, in_chunks

Trunk = Literal["auto", "alexnet", "squeezenet", "squeezenet-caffe"]

SMALLEST_SIDE = 64
"""Images with a shorter side are enlarged to it, bilinearly: the trunks see nothing in less."""

HEADS = "functional/image/lpips_models"
"""Where torchmetrics has the linear heads of LPIPS that its authors fitted."""

CAFFE_MEAN = (103.939, 116.779, 123.68)
"""What networks of Caffe subtract from blue, green and red in [0, 255]."""


@dataclass(frozen=True)
class TrunkKind:
    """A network whose features LPIPS compares.

    Args:
        whole: makes torchvision's network.
        layers: those of its `features` after which LPIPS looks.
        heads: the file of its linear heads.
        order: of the channels it takes.
        mean, std: how it takes pixels in [0, 1], in its own order of channels.
    """

    name: str
    whole: Callable[[], Any]
    layers: tuple[int, ...]
    heads: str
    order: Literal["rgb", "bgr"] = "rgb"
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, ...] = IMAGENET_DEFAULT_STD

    def build(self) -> nn.Sequential:
        """The layers up to the last one looked at, without storage for weights."""
        with torch.device("meta"):  # Draws nothing, and allots nothing to the classifier.
            return self.whole().features[: self.layers[-1] + 1]


_ALEXNET = TrunkKind("LPIPS (AlexNet)", alexnet, (1, 4, 7, 9, 11), "alex.pth")
_SQUEEZENET = TrunkKind(
    "LPIPS (SqueezeNet 1.1)", squeezenet1_1, (1, 4, 7, 9, 10, 11, 12), "squeeze.pth"
)
KINDS: Mapping[str, TrunkKind] = MappingProxyType(
    {
        "alexnet": _ALEXNET,
        "squeezenet": _SQUEEZENET,
        # The heads were fitted to torchvision's training, not to Caffe's: hence a proxy.
        "squeezenet-caffe": replace(
            _SQUEEZENET,
            name="LPIPS proxy (SqueezeNet 1.1, Caffe trunk)",
            order="bgr",
            mean=tuple(value / 255 for value in CAFFE_MEAN),
            std=(1 / 255,) * 3,
        ),
    }
)


class Perceptual(nn.Module):
    """LPIPS with one trunk; goes to the device of the images it is given.

    Args:
        heads: for each layer looked at, the weight of its channels.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, kind: TrunkKind, trunk: nn.Sequential, heads: list[Tensor]) -> None:
        super().__init__()
        self.kind = kind
        self.trunk = trunk.eval().requires_grad_(False)
        self.heads = nn.ParameterList(heads).requires_grad_(False)
        self.register_buffer("mean", torch.tensor(kind.mean).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(kind.std).reshape(1, 3, 1, 1))

    @property
    def name(self) -> str:
        """What to call the number; says so where it is only a proxy of LPIPS."""
        return self.kind.name

    @torch.no_grad()
    def forward(
        self,
        found: Float[Tensor, "batch 3 height width"],
        truth: Float[Tensor, "batch 3 height width"],
    ) -> Float[Tensor, " batch"]:
        """The distance of each pair of images, pixels in [0, 1]; 0 is the same look."""
        return in_chunks(self._distance, found, truth)

    @torch.no_grad()
    def features(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        """The last layer looked at, averaged over the image: what is in it, not where."""
        chunks = images.split(CHUNK)
        return torch.cat([self._layers(some)[-1].mean(dim=(2, 3)) for some in chunks])

    def _distance(self, found: Tensor, truth: Tensor) -> Tensor:
        total = torch.zeros(len(found), device=found.device)
        layers = zip(self._layers(found), self._layers(truth), self.heads, strict=True)
        for one, other, head in layers:
            difference = (_unit(one) - _unit(other)).square()
            total = total + (difference * head).sum(dim=1).mean(dim=(1, 2))
        return total

    def _layers(self, images: Tensor) -> list[Tensor]:
        self.to(images.device)
        values = images.flip(1) if self.kind.order == "bgr" else images
        values = (_enlarged(values.float()) - self.mean) / self.std
        found = []
        with float32_precision("fp32"):
            for number, layer in enumerate(self.trunk):
                values = layer(values)
                if number in self.kind.layers:
                    found.append(values)
        return found


def open_perceptual(path: Path, trunk: Trunk = "auto") -> Perceptual:
    """LPIPS with the weights of a file: torchvision's AlexNet or SqueezeNet 1.1, or their features.

    The classifier, where the file has one, is not needed. The linear heads come with torchmetrics;
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
    if trunk != "auto":
        kind = KINDS[trunk]
    elif _fits(weights, KINDS["alexnet"]):
        kind = KINDS["alexnet"]
    else:
        kind = KINDS["squeezenet-caffe" if len(weights) == len(state) else "squeezenet"]
    if not _fits(weights, kind):
        expected = "AlexNet's or SqueezeNet 1.1's" if trunk == "auto" else f"{trunk}'s"
        raise CheckpointError(
            f"{path} is no trunk for LPIPS: expected {expected} convolutions under torchvision's "
            f"names (features.0.weight, …) and shapes; its first tensors are {_shown(state)}"
        )
    network = kind.build()
    network.load_state_dict(weights, assign=True)
    return Perceptual(kind, network, _read_heads(kind))


def _fits(weights: Mapping[str, Tensor], kind: TrunkKind) -> bool:
    expected = kind.build().state_dict()
    return {name: tensor.shape for name, tensor in weights.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }


def _shown(state: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(state[name].shape)}" for name in sorted(state)[:3])


def _read_heads(kind: TrunkKind) -> list[Tensor]:
    with as_file(files("torchmetrics").joinpath(HEADS, kind.heads)) as path:
        state = read_state(path)
    return [state[f"lin{number}.model.1.weight"] for number in range(len(kind.layers))]


def _enlarged(images: Tensor) -> Tensor:
    height, width = images.shape[2:]
    short = min(height, width)
    if short >= SMALLEST_SIDE:
        return images
    size = (round(height * SMALLEST_SIDE / short), round(width * SMALLEST_SIDE / short))
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


def _unit(features: Tensor) -> Tensor:
    """Features with length 1 at every place."""
    return features / (features.square().sum(dim=1, keepdim=True) + 1e-8).sqrt()
