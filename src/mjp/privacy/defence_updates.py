"""Defences that act on the gradients, or on how many images and steps they sum up; DP-SGD."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from mjp.core.errors import ConfigError
from mjp.jigsaw.sampling import same_device
from mjp.privacy.defence_parts import Gradients, Part, number
from mjp.privacy.public import PublicModel
from mjp.privacy.update import SharedUpdate

DELTA = 1e-5
"""The chance that the guarantee of DP-SGD does not hold."""
MOST_OF_RDP = 4000.0
"""ε beyond which Opacus' PRV accountant would take gigabytes."""


@dataclass(frozen=True)
class GradientPart(Part):
    """A part that acts on the gradients alone."""

    feeds = False
    training = "gradients"


@dataclass(frozen=True)
class Cast(GradientPart):
    """Gradients are rounded to fewer bits."""

    dtype: ClassVar[torch.dtype]
    bits: ClassVar[int]
    kind = "cast"
    reason = "the second rounding adds nothing that the coarser one has not done"
    words = "sent as {self.name}"
    clause = "rounds every entry to {self.bits} significant bits; the rest is as it was"

    def process(self, gradients: Gradients, public: PublicModel, generator: Generator) -> Gradients:
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

    name = "fp16"
    label = "Sent in 16 bits (fp16)"
    dtype = torch.float16
    bits = 11


@dataclass(frozen=True)
class BFloat16(Cast):
    """Gradients are rounded to 8 significant bits."""

    name = "bf16"
    label = "Sent in 16 bits (bf16)"
    dtype = torch.bfloat16
    bits = 8


@dataclass(frozen=True)
class Prune(GradientPart):
    """The smallest entries of each gradient are set to zero."""

    name = "prune"
    label = "Pruning"
    words = "the smallest {share_percent:g} % pruned"
    clause = (
        "sets the smallest {share_percent:g} % of each tensor's entries to zero; the others"
        " are exact, and which ones they are is seen"
    )
    share: float = number(
        "Share that is set to zero", least=0, most=1, example=0.9, control=(0.01, 0.999)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share == 1:
            raise ConfigError(f"prune={self.share:g} leaves nothing to send; use a share below 1")

    def process(self, gradients: Gradients, public: PublicModel, generator: Generator) -> Gradients:
        return {name: self._pruned(one) for name, one in gradients.items()}

    def _pruned(self, gradient: Tensor) -> Tensor:
        flat = gradient.flatten()
        num_kept = flat.numel() - round(self.share * flat.numel())
        kept = flat.abs().topk(num_kept, sorted=False).indices
        return torch.zeros_like(flat).scatter(0, kept, flat[kept]).reshape(gradient.shape)


@dataclass(frozen=True)
class Clip(GradientPart):
    """The whole gradient is scaled down to a norm."""

    name = "clip"
    label = "Clipping"
    words = "clipped to norm {norm:g}"
    clause = (
        "scales the whole gradient down to a norm of at most {norm:g}; its direction, "
        "and so all that linear algebra needs, stays"
    )
    norm: float = number(
        "Norm", least=1e-9, most=1e9, example=1.0, control=(1e-4, 100.0), scale="log"
    )

    def process(self, gradients: Gradients, public: PublicModel, generator: Generator) -> Gradients:
        norm = nn.utils.get_total_norm([one.double() for one in gradients.values()])
        if not bool(norm > self.norm):
            return gradients
        factor = self.norm / norm
        return {name: (one.double() * factor).to(one.dtype) for name, one in gradients.items()}


@dataclass(frozen=True)
class Noise(GradientPart):
    """Gaussian noise is added to every entry."""

    name = "noise"
    label = "Gaussian noise"
    words = "Gaussian noise of {std:g}"
    clause = (
        "adds Gaussian noise of standard deviation {std:g} to every entry; what is large "
        "beside it is still seen, and without clipping nothing is guaranteed"
    )
    std: float = number(
        "Standard deviation", least=1e-15, most=1e6, example=1e-5, control=(1e-9, 1.0), scale="log"
    )

    def process(self, gradients: Gradients, public: PublicModel, generator: Generator) -> Gradients:
        source = generator_on(next(iter(gradients.values())).device, generator)
        return {name: self._noisy(one, source) for name, one in gradients.items()}

    def _noisy(self, gradient: Tensor, source: Generator) -> Tensor:
        exact = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        noise = torch.randn(exact.shape, generator=source, device=source.device, dtype=exact.dtype)
        return (exact + self.std * noise).to(gradient.dtype)


@dataclass(frozen=True)
class PrivateSGD(GradientPart):
    """DP-SGD: each image's gradient is clipped and noise is added, with a guarantee."""

    name = "dp"
    label = "DP-SGD"
    words = "DP-SGD, noise multiplier {noise_multiplier:g}, clipping norm {max_norm:g}"
    clause = (
        "clips each image's gradient to norm {max_norm:g} and adds Gaussian noise of "
        "{noise_multiplier:g} times that to their sum; whatever the attacker knows, its ε"
        " bounds what it learns of any one image"
    )
    excludes = {  # noqa: RUF012
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

    def check(self, update: SharedUpdate) -> None:
        if update.batch > 1 or update.local_steps > 1:
            raise ConfigError(
                f"dp clips the gradient of each image, but this update is one of {update.batch} "
                f"images and {update.local_steps} steps; share with the defence itself"
            )

    def process(self, gradients: Gradients, public: PublicModel, generator: Generator) -> Gradients:
        """For gradients of a single image."""
        return self.mean([gradients], public, generator)

    def mean(
        self, each: Iterable[Gradients], public: PublicModel, generator: Generator
    ) -> Gradients:
        """What is sent of the gradients of each image.

        Clipping, noise and mean are Opacus' `DPOptimizer`; the noise has a standard deviation of
        noise_multiplier * max_norm / batch for each entry.
        """
        optimizer: Any = None
        stand_ins: dict[str, Any] = {}
        batch = 0
        for gradients in each:
            if optimizer is None:
                # Stand-ins, so that the model's own parameters stay as they are.
                stand_ins = {
                    name: nn.Parameter(torch.zeros_like(one)) for name, one in gradients.items()
                }
                optimizer = _opacus().optimizers.DPOptimizer(
                    torch.optim.SGD(stand_ins.values(), lr=0.0),
                    noise_multiplier=self.noise_multiplier,
                    max_grad_norm=self.max_norm,
                    expected_batch_size=1,
                    generator=generator_on(public.device, generator),
                )
            for name, parameter in stand_ins.items():
                parameter.grad_sample = gradients[name].detach()[None]
            optimizer.clip_and_accumulate()
            batch += 1
        optimizer.expected_batch_size = batch
        optimizer.add_noise()
        optimizer.scale_grad()
        return {name: one.grad.detach() for name, one in stand_ins.items()}

    def epsilon(self) -> float:
        """The ε of (ε, δ)-differential privacy of an update, for one image more or less.

        The attacker knows the sender: each image took part for sure, and is looked at once. The
        smaller of what Opacus' RDP and PRV accountants say; both are upper bounds.
        """
        accountants = _opacus().accountants
        bounds: list[float] = []
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # RDP warns that its bound could be tighter, PRV of a log(0) where every image is there.
            warnings.simplefilter("ignore")
            for accountant in (accountants.RDPAccountant(), accountants.PRVAccountant()):
                if not bounds or bounds[0] < MOST_OF_RDP:
                    accountant.history = [(self.noise_multiplier, 1.0, 1)]
                    bounds.append(float(accountant.get_epsilon(delta=DELTA)))
        return min(bound for bound in bounds if math.isfinite(bound))


@dataclass(frozen=True)
class LargerBatch(GradientPart):
    """The mean gradient of several images is sent."""

    name = "batch"
    label = "Several images an update"
    clause = (
        "sends the mean gradient of {images} images; the attacker knows how many there "
        "are, and sees their sum"
    )
    images: int = number("Images of an update", least=1, most=1024, example=4, control=(1, 64))

    @property
    def title(self) -> str:
        return "1 image an update" if self.images == 1 else f"{self.images} images an update"

    def check(self, update: SharedUpdate) -> None:
        if update.batch != self.images:
            raise ConfigError(
                f"the update is of {update.batch} images, but its defence says {self}; take as "
                "many images, or another number"
            )


@dataclass(frozen=True)
class LocalSteps(GradientPart):
    """Several steps of gradient descent are taken before their mean is sent."""

    name = "steps"
    label = "Local steps"
    clause = (
        "takes {steps} steps of gradient descent before it sends their mean; the attacker"
        " knows number and learning rate, and the smaller it is, the more the mean is the first"
    )
    steps: int = number("Local steps", least=1, most=8, example=4)
    learning_rate: float = number(
        "Learning rate", least=1e-9, most=10, example=0.01, control=(1e-5, 1.0), scale="log"
    )

    @property
    def title(self) -> str:
        steps = "1 local step" if self.steps == 1 else f"{self.steps} local steps"
        return f"{steps} at a learning rate of {self.learning_rate:g}"

    def check(self, update: SharedUpdate) -> None:
        if (update.local_steps, update.learning_rate) != (self.steps, self.learning_rate):
            raise ConfigError(
                f"the update is of {update.local_steps} local steps at a learning rate of "
                f"{update.learning_rate}, but its defence says {self}; share with the defence "
                "itself"
            )


def _opacus() -> Any:
    """Opacus, which is an optional dependency and slow to import."""
    try:
        import opacus
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"DP-SGD needs opacus ({error}); install it with pip install 'mjp[audit]'"
        ) from error
    return opacus


def generator_on(device: torch.device, generator: Generator) -> Generator:
    """The generator, or one that it seeds where it is on another device."""
    if same_device(generator.device, device):
        return generator
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))
