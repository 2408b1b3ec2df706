"""The parts of a defence that act on the gradients or on how many images they are of."""

import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.core.ranges import check_count
from mjp.jigsaw.sampling import same_device
from mjp.privacy.dp import check_above_zero, private_mean
from mjp.privacy.public import PublicModel
from mjp.privacy.update import SharedUpdate

Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """A named part of a defence; by itself it changes nothing.

    Args:
        name: in the text of a defence.
        kind: of which a defence has one part at most, because of `reason`.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    reason: ClassVar[str] = "one of them is enough"

    @property
    def title(self) -> str:
        """A few words for a report."""
        raise NotImplementedError

    @property
    def about(self) -> str:
        """What it does, and what the attacker can still know: a clause."""
        raise NotImplementedError

    def prepare(self, public: PublicModel) -> PublicModel:
        """The public model that goes with it, the same one where it does; an error if none can."""
        return public

    def notes(self, public: PublicModel) -> tuple[str, ...]:
        """What a report has to say about this defence of this model."""
        return ()

    def check(self, update: SharedUpdate) -> None:
        """Raises unless the update is one of a client that has this part."""

    def process(
        self, gradients: Gradients, public: PublicModel, generator: torch.Generator
    ) -> Gradients:
        """The gradients as the client sends them."""
        return gradients

    def __str__(self) -> str:
        values = [(getattr(self, field.name), field.default) for field in fields(self)]
        while values and values[-1][1] is not MISSING and values[-1][0] == values[-1][1]:
            values.pop()
        numbers = ",".join(_number(value) for value, _ in values)
        return f"{self.name}={numbers}" if numbers else self.name


@dataclass(frozen=True)
class Cast(Part):
    """Sends the gradients in fewer bits."""

    kind: ClassVar[str] = "cast"
    reason: ClassVar[str] = "the second rounding adds nothing that the coarser one has not done"
    dtype: ClassVar[torch.dtype]

    @property
    def title(self) -> str:
        return f"sent as {self.name}"

    @property
    def about(self) -> str:
        bits = 1 - round(torch.log2(torch.tensor(torch.finfo(self.dtype).eps)).item())
        return f"rounds every entry to {bits} significant bits; the rest is as it was"

    def process(
        self, gradients: Gradients, public: PublicModel, generator: torch.Generator
    ) -> Gradients:
        found = {name: one.to(self.dtype) for name, one in gradients.items()}
        for name, one in found.items():
            if not bool(torch.isfinite(one).all()):
                raise ConfigError(
                    f"the gradient of {name} goes up to {float(gradients[name].abs().max()):g}, "
                    f"which {self.name} cannot hold; use bf16, or clip before"
                )
        return found


@dataclass(frozen=True)
class Float16(Cast):
    """Eleven significant bits."""

    name: ClassVar[str] = "fp16"
    dtype: ClassVar[torch.dtype] = torch.float16


@dataclass(frozen=True)
class BFloat16(Cast):
    """Eight significant bits."""

    name: ClassVar[str] = "bf16"
    dtype: ClassVar[torch.dtype] = torch.bfloat16


@dataclass(frozen=True)
class Prune(Part):
    """Sends the largest entries only."""

    name: ClassVar[str] = "prune"
    kind: ClassVar[str] = "prune"

    share: float

    def __post_init__(self) -> None:
        check_above_zero("the share that prune sets to zero", self.share)
        if self.share >= 1:
            raise ConfigError(f"prune={self.share:g} leaves nothing to send; use a share below 1")

    @property
    def title(self) -> str:
        return f"the smallest {_percent(self.share)} pruned"

    @property
    def about(self) -> str:
        return (
            f"sets the smallest {_percent(self.share)} of each tensor's entries to zero; the others"
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
class Clip(Part):
    """Scales all gradients together."""

    name: ClassVar[str] = "clip"
    kind: ClassVar[str] = "clip"

    norm: float

    def __post_init__(self) -> None:
        check_above_zero("the norm that clip scales to", self.norm)

    @property
    def title(self) -> str:
        return f"clipped to norm {self.norm:g}"

    @property
    def about(self) -> str:
        return (
            f"scales the whole gradient down to a norm of at most {self.norm:g}; its direction, "
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
class Noise(Part):
    """Adds noise to every entry."""

    name: ClassVar[str] = "noise"
    kind: ClassVar[str] = "noise"

    std: float

    def __post_init__(self) -> None:
        check_above_zero("the standard deviation of noise", self.std)

    @property
    def title(self) -> str:
        return f"Gaussian noise of {self.std:g}"

    @property
    def about(self) -> str:
        return (
            f"adds Gaussian noise of standard deviation {self.std:g} to every entry; what is large "
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
class PrivateSGD(Part):
    """DP-SGD: clips each image's gradient, adds noise to their sum."""

    name: ClassVar[str] = "dp"
    kind: ClassVar[str] = "dp"

    noise_multiplier: float
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        check_above_zero("the noise multiplier of dp", self.noise_multiplier)
        check_above_zero("the clipping norm of dp", self.max_norm)

    @property
    def title(self) -> str:
        return (
            f"DP-SGD, noise multiplier {self.noise_multiplier:g}, clipping norm {self.max_norm:g}"
        )

    @property
    def about(self) -> str:
        return (
            f"clips each image's gradient to norm {self.max_norm:g} and adds Gaussian noise of "
            f"{self.noise_multiplier:g} times that to their sum; whatever the attacker knows, its ε"
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
class Batch(Part):
    """More images in an update."""

    name: ClassVar[str] = "batch"
    kind: ClassVar[str] = "batch"

    images: int

    def __post_init__(self) -> None:
        check_count("the images of batch", self.images)

    @property
    def title(self) -> str:
        return "1 image an update" if self.images == 1 else f"{self.images} images an update"

    @property
    def about(self) -> str:
        return (
            f"sends the mean gradient of {self.images} images; the attacker knows how many there "
            "are, and sees their sum"
        )

    def check(self, update: SharedUpdate) -> None:
        if update.batch != self.images:
            raise ConfigError(
                f"the update is of {update.batch} images, but its defence says {self}; take as "
                "many images, or another number"
            )


@dataclass(frozen=True)
class LocalSteps(Part):
    """More steps before an update is sent."""

    name: ClassVar[str] = "steps"
    kind: ClassVar[str] = "steps"

    steps: int
    learning_rate: float

    def __post_init__(self) -> None:
        check_count("the local steps", self.steps)
        check_above_zero("the learning rate of steps", self.learning_rate)

    @property
    def title(self) -> str:
        steps = "1 local step" if self.steps == 1 else f"{self.steps} local steps"
        return f"{steps} at a learning rate of {self.learning_rate:g}"

    @property
    def about(self) -> str:
        return (
            f"takes {self.steps} steps of gradient descent before it sends their mean; the attacker"
            " knows number and learning rate, and the smaller it is, the more the mean is the first"
        )

    def check(self, update: SharedUpdate) -> None:
        if (update.local_steps, update.learning_rate) != (self.steps, self.learning_rate):
            raise ConfigError(
                f"the update is of {update.local_steps} local steps at a learning rate of "
                f"{update.learning_rate}, but its defence says {self}; share with the defence "
                "itself"
            )


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """The generator, or one that it seeds where it is on another device."""
    if same_device(generator.device, device):
        return generator
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return torch.Generator(device).manual_seed(int(seed))


def _device(gradients: Gradients) -> torch.device:
    return next(iter(gradients.values())).device


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _number(value: int | float) -> str:
    """The shortest text that reads as this number; without a plus, which joins parts."""
    return re.sub(r"\.0$", "", repr(value)).replace("e+", "e")
