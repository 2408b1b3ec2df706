"""What an attacker reads off an update before any attack: the preflight; and what an attack is."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.core.records import Scalar
from mjp.jigsaw import JigsawPlan
from mjp.models.backbone import MJPBackbone
from mjp.privacy.public import PublicModel
from mjp.privacy.update import Effort, SharedUpdate


class Reading:
    """What stands in an update, in double precision; what the model tells of the loss is taken off.

    Attributes:
        tokens: G, the gradient of each patch's position embedding, which for a single image is that
            of its token; None where it is not shared.
        patches: the gradient of the patch projection; None where it is not shared.
        unknown: the gradient of MJP's unknown embedding, where some patch has it.
        masked: the patches without a gradient of their own: MJP's mask. None where there is none.
        rounding: the smallest step relative to 1 of the numbers that were sent.
    """

    def __init__(self, public: PublicModel, update: SharedUpdate) -> None:
        surface = public.surface
        _check_fits(public, update)
        self.update = update
        self._public = public
        self._dtype = next(iter(update.gradients.values()), torch.zeros(0)).dtype
        self.rounding = torch.finfo(self._dtype).eps
        weight = update.get(f"{surface.patch_embedding}.weight")
        self.patches: Float[Tensor, "dim values"] | None
        self.patches = None if weight is None else weight.double().flatten(1)
        unknown = update.get(surface.unknown)
        self.unknown: Float[Tensor, " dim"] | None
        self.unknown = unknown.double().flatten() if unknown is not None and unknown.any() else None
        table = update.get(surface.positions)
        self.tokens: Float[Tensor, "patches dim"] | None = None
        self.masked: Bool[Tensor, " patches"] | None = None
        if table is None:
            return
        self.tokens = table.double().reshape(-1, surface.width)[surface.first_row :]
        zero = (self.tokens == 0).all(dim=1)
        if self.unknown is not None and bool(zero.any()) and not bool(zero.all()):
            self.masked = zero
        if update.localization_weight:
            self.tokens = self.tokens - self._localization_gradient()

    @property
    def num_masked(self) -> int:
        return 0 if self.masked is None else int(self.masked.sum())

    @cached_property
    def facts(self) -> dict[str, Scalar]:
        """The preflight: what decides whether an attack can work, for records."""
        surface, update = self._public.surface, self.update
        config = getattr(self._public.model, "mjp_config", None)
        bare = config is not None and config.first_block == "bare"
        found: dict[str, Scalar] = {
            "patches": surface.grid.num_patches,
            "width": surface.width,
            "patch_values": surface.patch_values,
            "batch": update.batch,
            "local_steps": update.local_steps,
            "positions_shared": self.tokens is not None,
            "patch_embedding_shared": self.patches is not None,
            "masked_patches_seen": self.num_masked,
            "gradient_precision": str(self._dtype).removeprefix("torch."),
            "first_block": "bare" if bare else "as built",
        }
        if self.tokens is not None:
            own = self.tokens if self.masked is None else self.tokens[~self.masked]
            values = torch.linalg.svdvals(own)
            found |= {
                "rank": int((values > values[0] * self.rounding).sum()),
                "rank_needed": own.shape[0],
                "condition": float(values[0] / values[-1]) if values[-1] > 0 else float("inf"),
            }
        return found

    @cached_property
    def labels(self) -> Int64[Tensor, " batch"] | None:
        """The classes of the images, from the classifier's gradient; None where it is not shared.

        With cross-entropy the gradient of a class's logit is below 0 only for classes that are
        there: of one image it tells the class exactly, of a batch the most negative ones, as often
        as their gradient says.
        """
        name, batch = self._public.surface.classifier, self.update.batch
        gradient, weight = (self.update.get(f"{name}.{part}") for part in ("bias", "weight"))
        if gradient is None and weight is not None:
            gradient = weight.double().sum(dim=1)
        if gradient is None:
            return None
        left = gradient.double().clone()
        found = []
        for _ in range(batch):
            found.append(int(left.argmin()))
            left[found[-1]] += 1 / batch
        return torch.tensor(sorted(found), device=gradient.device)

    def _localization_gradient(self) -> Float[Tensor, "patches dim"]:
        """What the localization loss adds to the gradient of the positions: anyone can tell."""
        model, surface = self._public.model, self._public.surface
        if not isinstance(model, MJPBackbone) or model.locator is None:
            raise ConfigError(
                "the update says that its loss localizes, but the model has no locator"
            )
        plan = None
        if self.masked is not None:
            order = torch.arange(len(self.masked), device=self.masked.device)
            plan = JigsawPlan(surface.grid, self.masked[None], order[None])
        with torch.enable_grad():
            loss = self.update.localization_weight * model.localization_loss(plan)
            (found,) = torch.autograd.grad(loss, [model.get_parameter(surface.positions)])
        return found.double().reshape(-1, surface.width)[surface.first_row :]


def _check_fits(public: PublicModel, update: SharedUpdate) -> None:
    """Raises unless the update is one of this model."""
    shapes = {name: tuple(one.shape) for name, one in public.model.named_parameters()}
    for name, gradient in update.gradients.items():
        if name not in shapes:
            raise ConfigError(
                f"the update has a gradient of {name!r}, which this model has no parameter of"
            )
        if tuple(gradient.shape) != shapes[name]:
            raise ConfigError(
                f"the gradient of {name} has shape {tuple(gradient.shape)}, the parameter "
                f"{shapes[name]}; the update is of another model"
            )
        if not bool(torch.isfinite(gradient).all()):
            raise ConfigError(f"the gradient of {name} has values that are no numbers")


Cases = Sequence[tuple[Reading, ...]]
"""For each client what was read off its updates: of the same images, under different masks."""


class Recovered(NamedTuple):
    """What an attack got out of a case: pixels, and classes and facts that it came upon."""

    images: Float[Tensor, "batch 3 height width"]
    labels: Int64[Tensor, " batch"] | None = None
    facts: Mapping[str, Scalar] = {}


class Attack:
    """An attack: it gets the public model, updates, and how much it may try; nothing else.

    Attributes:
        about: what it does, in a line.
        kind: `closed` for linear algebra, `search` for an optimisation of the picture.
        knows_defence: whether it makes use of the defence that is announced.
    """

    about: str
    kind: ClassVar[Literal["closed", "search"]] = "closed"
    knows_defence: ClassVar[bool] = False

    def missing(self, public: PublicModel, reading: Reading) -> str | None:
        """Why the attack does not apply to an update; None where it does."""
        raise NotImplementedError

    def doubts(self, public: PublicModel, reading: Reading) -> list[str]:
        """What makes its result doubtful, in words."""
        raise NotImplementedError

    def run(self, public: PublicModel, cases: Cases, effort: Effort) -> Iterable[Recovered]:
        """What comes of the cases that the attack applies to, in their order."""
        raise NotImplementedError
