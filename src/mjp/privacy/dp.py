"""DP-SGD by Opacus: the mechanism on gradients of single images, and the ε it guarantees."""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mjp.core.errors import ConfigError
from mjp.core.ranges import check_at_least, check_count

_MESH = 0.01  # Opacus' own: the error of ε that its PRV accountant allows itself.
_MAX_MESH_POINTS = 3e6  # Beyond it, PRV takes gigabytes; little noise and many steps lead there.


def private_mean(
    each: Iterable[Mapping[str, Tensor]],
    noise_multiplier: float,
    max_norm: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """The mean of clipped gradients, with noise: what DP-SGD shares of a batch.

    Clipping, noise and mean are Opacus' `DPOptimizer`; the noise has a standard deviation of
    noise_multiplier * max_norm / batch for each entry.

    Args:
        each: the gradients of each image, by the name of the parameter.
        generator: of the noise, on the device of the gradients.
    """
    optimizer_class = _opacus("optimizers").DPOptimizer
    optimizer: Any = None
    parameters: dict[str, Any] = {}
    batch = 0
    for gradients in each:
        if optimizer is None:
            # Stand-ins, so that the model's own parameters stay as they are.
            parameters = {
                name: nn.Parameter(torch.zeros_like(one)) for name, one in gradients.items()
            }
            optimizer = optimizer_class(
                torch.optim.SGD(parameters.values(), lr=0.0),
                noise_multiplier=noise_multiplier,
                max_grad_norm=max_norm,
                expected_batch_size=1,
                generator=generator,
            )
        for name, parameter in parameters.items():
            parameter.grad_sample = gradients[name].detach()[None]
        optimizer.clip_and_accumulate()
        batch += 1
    if optimizer is None:
        raise ConfigError("DP-SGD needs the gradients of at least one image, got none")
    optimizer.expected_batch_size = batch
    optimizer.add_noise()
    optimizer.scale_grad()
    return {name: parameter.grad.detach() for name, parameter in parameters.items()}


def epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """The ε of (ε, δ)-differential privacy that DP-SGD gives, for one image more or less.

    The smaller of what Opacus' RDP and PRV accountants say; both are upper bounds. PRV, the
    tighter one, is left out where it would need gigabytes, which it does for a large ε.

    Args:
        sample_rate: the chance that an image is part of a step, above 0 and up to 1.
        steps: how many noisy updates the attacker sees.
        delta: the chance that the guarantee does not hold.
    """
    check_above_zero("noise_multiplier", noise_multiplier)
    account = DPAccount(sample_rate, steps, delta)
    history = [(noise_multiplier, account.sample_rate, account.steps)]
    accountants = _opacus("accountants")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # RDP warns that its bound could be tighter, PRV of a log(0) where every image takes part.
        warnings.simplefilter("ignore")
        rdp = accountants.RDPAccountant()
        rdp.history = history
        bound = float(rdp.get_epsilon(delta=delta))
        width = 2 * (float(rdp.get_epsilon(delta=delta / 4000)) + 3)
        if width / _mesh_size(steps, delta) > _MAX_MESH_POINTS:
            return bound
        prv = accountants.PRVAccountant()
        prv.history = history
        tighter = float(prv.get_epsilon(delta=delta, eps_error=_MESH))
    return min(bound, tighter) if math.isfinite(tighter) else bound


@dataclass(frozen=True)
class DPAccount:
    """What an ε is stated for.

    The default is the update that the attacker holds and knows the sender of: every one of its
    images took part (nothing is gained from sampling), and it is looked at once. The ε of a whole
    training is another; see `of_training`.

    Args:
        sample_rate: the chance that an image is part of a step, above 0 and up to 1.
        steps: how many noisy updates the attacker sees.
        delta: the chance that the guarantee does not hold; below 1 / number of images.
    """

    sample_rate: float = 1.0
    steps: int = 1
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_above_zero("sample_rate", self.sample_rate)
        if self.sample_rate > 1:
            raise ConfigError(
                f"sample_rate is a chance, so at most 1, got {self.sample_rate!r}; it is the batch "
                "over the number of images"
            )
        check_count("steps", self.steps)
        check_above_zero("delta", self.delta)
        if self.delta >= 1:
            raise ConfigError(f"delta must be below 1, such as 1e-5, got {self.delta!r}")

    @classmethod
    def of_training(
        cls, batch: int, *, images: int = 50_000, epochs: int = 1, delta: float = 1e-5
    ) -> "DPAccount":
        """That of a training on so many images, each batch drawn at random, every update seen."""
        for name, value in (("batch", batch), ("images", images), ("epochs", epochs)):
            check_count(name, value)
        return cls(batch / images, math.ceil(epochs * images / batch), delta)

    def epsilon(self, noise_multiplier: float) -> float:
        """The ε that noise of this multiplier gives."""
        return epsilon(noise_multiplier, self.sample_rate, self.steps, self.delta)

    @property
    def words(self) -> str:
        """For a report: what its ε is the ε of."""
        updates = "one update" if self.steps == 1 else f"{self.steps:,} updates"
        part = (
            "every image part of each"
            if self.sample_rate == 1
            else f"an image part of each with a chance of {self.sample_rate:g}"
        )
        return f"{updates}, {part}, δ = {self.delta:g}"


def check_above_zero(name: str, value: float) -> None:
    """Raises unless the value is a finite number above 0."""
    check_at_least(name, value, 0.0)
    if value == 0:
        raise ConfigError(f"{name} must be above 0, got {value!r}")


def _mesh_size(steps: int, delta: float) -> float:
    """How finely Opacus' PRV accountant cuts the privacy loss."""
    return _MESH / math.sqrt(steps * math.log(12_000 / delta) / 2)


def _opacus(module: str) -> Any:
    """A module of Opacus, which is an optional dependency and slow to import."""
    try:
        if module == "optimizers":
            from opacus import optimizers

            return optimizers
        from opacus import accountants
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"DP-SGD needs opacus ({error}); install it with pip install 'mjp[audit]'"
        ) from error
    return accountants
