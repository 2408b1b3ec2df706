"""`SharedUpdate`: what a client sends, and nothing else of it; `AttackResult`: what comes back."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType

import torch
from jaxtyping import Bool, Float, Int64
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mjp.core.configuration import check_at_least, check_count
from mjp.core.errors import CheckpointError, ConfigError
from mjp.core.records import Scalar

_METADATA = "mjp_update"


@dataclass(frozen=True, eq=False)
class SharedUpdate:
    """Gradients by parameter name, and what the protocol makes public about them.

    Images, labels, masks and permutations have no place in it. Gradients come without history: an
    autograd graph would hold the images.

    Args:
        gradients: mean gradient of the loss over the batch and over the local steps. A parameter
            that is not shared is not in it.
        batch: how many images it was computed from.
        local_steps: how many steps of gradient descent it sums up.
        learning_rate: of the local steps.
        localization_weight: λ of MJP's localization loss in the client's loss.
        defence: the defence that is announced to be in place, by its name.
    """

    gradients: Mapping[str, Tensor]
    batch: int = 1
    local_steps: int = 1
    learning_rate: float | None = None
    localization_weight: float = 0.0
    defence: str = "none"

    def __post_init__(self) -> None:
        check_count("batch", self.batch)
        check_count("local_steps", self.local_steps)
        check_at_least("localization_weight", self.localization_weight, 0.0)
        if self.learning_rate is not None:
            check_at_least("learning_rate", self.learning_rate, 0.0)
        if not isinstance(self.defence, str):
            raise ConfigError(f"defence must be a text, got {self.defence!r}")
        for name, tensor in self.gradients.items():
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                raise ConfigError(f"the gradient of {name} must be a tensor of numbers")
        detached = {name: tensor.detach() for name, tensor in self.gradients.items()}
        object.__setattr__(self, "gradients", MappingProxyType(detached))

    def get(self, name: str | None) -> Tensor | None:
        """The gradient of a parameter; None where it is not shared."""
        return None if name is None else self.gradients.get(name)

    def to(self, device: torch.device | str) -> "SharedUpdate":
        """The same update on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.gradients.items()}
        return replace(self, gradients=moved)

    def save(self, path: str | Path) -> None:
        """Writes the update as safetensors."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.gradients.items()}
        told = {name: value for name, value in vars(self).items() if name != "gradients"}
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, path, metadata={_METADATA: json.dumps(told)})
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"the update cannot be written to {path}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> "SharedUpdate":
        """Reads an update: one that `save` wrote, or any safetensors file of named gradients."""
        try:
            with safe_open(Path(path), framework="pt") as content:
                told = json.loads((content.metadata() or {}).get(_METADATA, "{}"))
                names = {field.name for field in fields(cls)} - {"gradients"}
                if not isinstance(told, dict) or set(told) - names:
                    raise CheckpointError(f"{path} says of itself what no update says: {told}")
                tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        except FileNotFoundError as error:
            raise CheckpointError(f"there is no file {path}") from error
        except (OSError, SafetensorError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} is no safetensors file of gradients: {error}") from error
        if not tensors:
            raise CheckpointError(f"{path} holds no gradients")
        try:
            return cls(tensors, **told)
        except ConfigError as error:
            raise CheckpointError(f"{path} is no update: {error}") from error


Observation = tuple[SharedUpdate, ...]
"""Updates of the same images: one, or several under different masks."""


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What an attack got out of an update.

    Args:
        applies: False where the attack's preconditions do not hold; then there are no images.
        reason: why it does not apply; where it does, a warning or nothing.
        facts: what the preflight found: rank, condition number, zero rows, …
        images: the recovered pictures, pixels in [0, 1].
        masked: the mask that the attacker read off; None where there was none to read.
        labels: the classes that the attacker inferred; None where it needed none.
    """

    attack: str
    applies: bool
    reason: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    images: Float[Tensor, "batch 3 height width"] | None = None
    masked: Bool[Tensor, " patches"] | None = None
    labels: Int64[Tensor, " batch"] | None = None


@dataclass(frozen=True)
class Effort:
    """How much an attack may try, and whom it tells how far it is.

    Args:
        steps: of an optimisation; None for the attack's own number.
        restarts: starts of an optimisation from different noise; None for the attack's own number.
        seed: of what an attack draws.
        tell: is told the share of the work that was done since it was last told.
    """

    steps: int | None = None
    restarts: int | None = None
    seed: int = 0
    tell: Callable[[float], None] = lambda _: None

    def __post_init__(self) -> None:
        for name in ("steps", "restarts"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))

    def part(self, share: float) -> "Effort":
        """The same for a part of the work."""
        return replace(self, tell=lambda done: self.tell(share * done))
