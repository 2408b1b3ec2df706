"""Defences that act on the gradients, or on how many images and steps they sum up; DP-SGD."""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mjp.core.configuration import check_count, check_ratio
from mjp.core.errors import ConfigError
from mjp.jigsaw.sampling import same_device
from mjp.privacy.defence_parts import Gradients, Part, check_above_zero, number
from mjp.privacy.public import PublicModel
from mjp.privacy.update import SharedUpdate

_MESH = 0.01  # Opacus' own: the error of ε that its PRV accountant allows itself.
_MAX_MESH_POINTS = 3e6  # Beyond it, PRV takes gigabytes; little noise and many steps lead there.


@dataclass(frozen=True)
class GradientPart(Part):
    """A part that acts on the gradients alone."""

    feeds: ClassVar[bool] = False
    training: ClassVar[Literal["", "model", "gradients"]] = "gradients"


@dataclass(frozen=True)
class Cast(GradientPart):
    """Gradients are rounded to fewer bits."""

    kind: ClassVar[str] = "cast"
    reason: ClassVar[str] = "the second rounding adds nothing that the coarser one has not done"
    dtype: ClassVar[torch.dtype]

    words: ClassVar[str] = "sent as {self.name}"

    clause: ClassVar[str] = (
        "rounds every entry to {self.bits} significant bits; the rest is as it was"
    )
    bits: ClassVar[int]

    def process(
        self, gradients: Gradients, public: PublicModel, generator: torch.Generator
    ) -> Gradients:
        rounded = {name: one.to(self.dtype) for name, one in gradients.items()}
        for name, one in rounded.items():
            if not bool(torch.isfinite(one).all()):
                raise ConfigError(
                    f"the gradient of {name} goes up to {float(gradients[name].abs().max()):g}, "
                    f"which {self.name} cannot hold; use bf16, or clip before"
                )
        return rounded


@dataclass(frozen=True)
class Float16(Cast):
    """Gradients are rounded to 11 significant bits."""

    name: ClassVar[str] = "fp16"
    label: ClassVar[str] = "Sent in 16 bits (fp16)"
    dtype: ClassVar[torch.dtype] = torch.float16
    bits: ClassVar[int] = 11


@dataclass(frozen=True)
class BFloat16(Cast):
    """Gradients are rounded to 8 significant bits."""

    name: ClassVar[str] = "bf16"
    label: ClassVar[str] = "Sent in 16 bits (bf16)"
    dtype: ClassVar[torch.dtype] = torch.bfloat16
    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class Prune(GradientPart):
    """The smallest entries of each gradient are set to zero."""

    name: ClassVar[str] = "prune"
    label: ClassVar[str] = "Pruning"
    kind: ClassVar[str] = "prune"

    share: float = number(
        "Share that is set to zero", least=0, most=1, example=0.9, control=(0.01, 0.999)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share == 1:
            raise ConfigError(f"prune={self.share:g} leaves nothing to send; use a share below 1")

    words: ClassVar[str] = "the smallest {share_percent:g} % pruned"

    clause: ClassVar[str] = (
        "sets the smallest {share_percent:g} % of each tensor's entries to zero; the others"
        " are exact, and which ones they are is seen"
    )

    def process(
        self, gradients: Gradients, public: PublicModel, generator: torch.Generator
    ) -> Gradients:
        return {name: self._pruned(one) for name, one in gradients.items()}

    def _pruned(self, gradient: Tensor) -> Tensor:
        flat = gradient.flatten()
        num_kept = flat.numel() - round(self.share * flat.numel())
        kept = flat.abs().topk(num_kept, sorted=False).indices
        return torch.zeros_like(flat).scatter(0, kept, flat[kept]).reshape(gradient.shape)


@dataclass(frozen=True)
class Clip(GradientPart):
    """The whole gradient is scaled down to a norm."""

    name: ClassVar[str] = "clip"
    label: ClassVar[str] = "Clipping"
    kind: ClassVar[str] = "clip"

    norm: float = number(
        "Norm", least=1e-9, most=1e9, example=1.0, control=(1e-4, 100.0), scale="log"
    )

    words: ClassVar[str] = "clipped to norm {norm:g}"

    clause: ClassVar[str] = (
        "scales the whole gradient down to a norm of at most {norm:g}; its direction, "
        "and so all that linear algebra needs, stays"
    )

    def process(
        self, gradients: Gradients, public: PublicModel, generator: torch.Generator
    ) -> Gradients:
        norms = [torch.linalg.vector_norm(one, dtype=torch.float64) for one in gradients.values()]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        if not bool(norm > self.norm):
            return gradients
        factor = self.norm / norm
        return {name: (one.double() * factor).to(one.dtype) for name, one in gradients.items()}


@dataclass(frozen=True)
class Noise(GradientPart):
    """Gaussian noise is added to every entry."""

    name: ClassVar[str] = "noise"
    label: ClassVar[str] = "Gaussian noise"
    kind: ClassVar[str] = "noise"

    std: float = number(
        "Standard deviation", least=1e-15, most=1e6, example=1e-5, control=(1e-9, 1.0), scale="log"
    )

    words: ClassVar[str] = "Gaussian noise of {std:g}"

    clause: ClassVar[str] = (
        "adds Gaussian noise of standard deviation {std:g} to every entry; what is large "
        "beside it is still seen, and without clipping nothing is guaranteed"
    )

    def process(
        self, gradients: Gradients, public: PublicModel, generator: torch.Generator
    ) -> Gradients:
        source = generator_on(_device(gradients), generator)
        return {name: self._noisy(one, source) for name, one in gradients.items()}

    def _noisy(self, gradient: Tensor, generator: torch.Generator) -> Tensor:
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        noise = torch.randn(
            gradient.shape, generator=generator, device=gradient.device, dtype=dtype
        )
        return (gradient.to(dtype) + self.std * noise).to(gradient.dtype)


@dataclass(frozen=True)
class PrivateSGD(GradientPart):
    """DP-SGD: each image's gradient is clipped and noise is added, with a guarantee."""

    name: ClassVar[str] = "dp"
    label: ClassVar[str] = "DP-SGD"
    kind: ClassVar[str] = "dp"
    excludes: ClassVar[Mapping[str, str]] = {
        "clip": "DP-SGD clips by itself: dp=<noise multiplier>,<clipping norm>",
        "noise": "DP-SGD adds noise by itself: dp=<noise multiplier>,<clipping norm>",
        "steps": "each noisy step would have to be accounted for; use batch for more images",
    }

    noise_multiplier: float = number(
        "Noise multiplier", least=1e-6, most=1e6, example=1.0, control=(1e-3, 100.0), scale="log"
    )
    max_norm: float = number(
        "Clipping norm", least=1e-6, most=1e6, example=1.0, scale="log", default=1.0
    )

    words: ClassVar[str] = (
        "DP-SGD, noise multiplier {noise_multiplier:g}, clipping norm {max_norm:g}"
    )

    clause: ClassVar[str] = (
        "clips each image's gradient to norm {max_norm:g} and adds Gaussian noise of "
        "{noise_multiplier:g} times that to their sum; whatever the attacker knows, its ε"
        " bounds what it learns of any one image"
    )

    def check(self, update: SharedUpdate) -> None:
        if update.batch > 1 or update.local_steps > 1:
            raise ConfigError(
                f"dp clips the gradient of each image, but this update is one of {update.batch} "
                f"images and {update.local_steps} steps; share with the defence itself"
            )

    def process(
        self, gradients: Gradients, public: PublicModel, generator: torch.Generator
    ) -> Gradients:
        """For gradients of a single image."""
        return self.mean([gradients], _device(gradients), generator)

    def mean(
        self, each: Iterable[Gradients], device: torch.device, generator: torch.Generator
    ) -> Gradients:
        """For the gradients of each image, which lie on this device."""
        source = generator_on(device, generator)
        return private_mean(each, self.noise_multiplier, self.max_norm, source)


@dataclass(frozen=True)
class Batch(GradientPart):
    """The mean gradient of several images is sent."""

    name: ClassVar[str] = "batch"
    label: ClassVar[str] = "Several images an update"
    kind: ClassVar[str] = "batch"

    images: int = number("Images of an update", least=1, most=1024, example=4, control=(1, 64))

    @property
    def title(self) -> str:
        return "1 image an update" if self.images == 1 else f"{self.images} images an update"

    clause: ClassVar[str] = (
        "sends the mean gradient of {images} images; the attacker knows how many there "
        "are, and sees their sum"
    )

    @property
    def images_per_update(self) -> int:
        return self.images

    def check(self, update: SharedUpdate) -> None:
        if update.batch != self.images:
            raise ConfigError(
                f"the update is of {update.batch} images, but its defence says {self}; take as "
                "many images, or another number"
            )


@dataclass(frozen=True)
class LocalSteps(GradientPart):
    """Several steps of gradient descent are taken before their mean is sent."""

    name: ClassVar[str] = "steps"
    label: ClassVar[str] = "Local steps"
    kind: ClassVar[str] = "steps"

    steps: int = number("Local steps", least=1, most=8, example=4)
    learning_rate: float = number(
        "Learning rate", least=1e-9, most=10, example=0.01, control=(1e-5, 1.0), scale="log"
    )

    @property
    def title(self) -> str:
        steps = "1 local step" if self.steps == 1 else f"{self.steps} local steps"
        return f"{steps} at a learning rate of {self.learning_rate:g}"

    clause: ClassVar[str] = (
        "takes {steps} steps of gradient descent before it sends their mean; the attacker"
        " knows number and learning rate, and the smaller it is, the more the mean is the first"
    )

    @property
    def local_steps(self) -> int:
        return self.steps

    def check(self, update: SharedUpdate) -> None:
        if (update.local_steps, update.learning_rate) != (self.steps, self.learning_rate):
            raise ConfigError(
                f"the update is of {update.local_steps} local steps at a learning rate of "
                f"{update.learning_rate}, but its defence says {self}; share with the defence "
                "itself"
            )


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
    optimizer_class = _opacus().optimizers.DPOptimizer
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


def epsilon(
    noise_multiplier: float, sample_rate: float = 1.0, steps: int = 1, delta: float = 1e-5
) -> float:
    """The ε of (ε, δ)-differential privacy that DP-SGD gives, for one image more or less.

    The smaller of what Opacus' RDP and PRV accountants say; both are upper bounds. PRV, the
    tighter one, is left out where it would need gigabytes, which it does for a large ε. The default
    is the update that the attacker holds and knows the sender of: every one of its images took
    part, and it is looked at once.

    Args:
        sample_rate: the chance that an image is part of a step, above 0 and up to 1.
        steps: how many noisy updates the attacker sees.
        delta: the chance that the guarantee does not hold.
    """
    check_above_zero("noise_multiplier", noise_multiplier)
    for name, chance in (("sample_rate", sample_rate), ("delta", delta)):
        check_ratio(name, chance)
        check_above_zero(name, chance)
    check_count("steps", steps)
    mesh = _MESH / math.sqrt(steps * math.log(12_000 / delta) / 2)
    history = [(noise_multiplier, sample_rate, steps)]
    accountants = _opacus().accountants
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # RDP warns that its bound could be tighter, PRV of a log(0) where every image takes part.
        warnings.simplefilter("ignore")
        rdp = accountants.RDPAccountant()
        rdp.history = history
        bound = float(rdp.get_epsilon(delta=delta))
        width = 2 * (float(rdp.get_epsilon(delta=delta / 4000)) + 3)
        if width / mesh > _MAX_MESH_POINTS:
            return bound
        prv = accountants.PRVAccountant()
        prv.history = history
        tighter = float(prv.get_epsilon(delta=delta, eps_error=_MESH))
    return min(bound, tighter) if math.isfinite(tighter) else bound


def _opacus() -> Any:
    """Opacus, which is an optional dependency and slow to import."""
    try:
        import opacus
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"DP-SGD needs opacus ({error}); install it with pip install 'mjp[audit]'"
        ) from error
    return opacus


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """The generator, or one that it seeds where it is on another device."""
    if same_device(generator.device, device):
        return generator
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))


def _device(gradients: Gradients) -> torch.device:
    return next(iter(gradients.values())).device
