"""What a search minimises: how far candidates' gradients are from shared ones, and penalties.

Penalties are of pixels in [0, 1], so that a weight means the same for every model.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import grad, replace_all_batch_norm_modules_, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from mjp.core.records import Scalar
from mjp.core.seeds import generator_for
from mjp.jigsaw import JigsawPlan, PatchGrid
from mjp.privacy.attacks.descent import Box, Optimizer, Rows, Values
from mjp.privacy.attacks.norms import WrittenOutNorms
from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Reading
from mjp.privacy.sharing import as_targets, client_loss
from mjp.privacy.update import SharedUpdate

Objective = Literal["l2", "cosine"]
Balance = Literal["whole", "layers"]
Candidates = Float[Tensor, "candidates batch chan height width"]


@dataclass(frozen=True)
class Settings:
    """How to search.

    Args:
        about: what the attack does, in a line.
        objective: `l2` compares gradients, `cosine` their directions.
        balance: `layers` compares parameter by parameter, each relative to its own size, and the
            position table row by row, since the row of the class token drowns those of the patches;
            `whole` compares all in one, so that the largest gradients count most.
        labels: `inferred` from the classifier's gradient, or `searched` together with the images.
        steps: of the optimiser; an effort overrides it, and `restarts`.
        decay: what the learning rate is multiplied with at each of the `milestones`, which are
            shares of the steps.
        noise: standard deviation of the first images around mean grey, normalised.
        total_variation, patch_borders, consistency: weights of the penalties.
        position_cosine: weight of 1 - cosine of the position gradients, mean over positions.
    """

    about: str
    objective: Objective
    optimizer: Optimizer
    steps: int
    learning_rate: float
    restarts: int = 1
    balance: Balance = "layers"
    labels: Literal["inferred", "searched"] = "inferred"
    decay: float = 0.1
    milestones: tuple[float, ...] = ()
    noise: float = 0.1
    total_variation: float = 0.0
    patch_borders: float = 0.0
    position_cosine: float = 0.0
    consistency: float = 0.0

    def learning_rates(self, steps: int) -> list[float]:
        """The learning rate of each of so many steps."""
        passed = [sum(step >= share * steps for share in self.milestones) for step in range(steps)]
        return [self.learning_rate * self.decay**times for times in passed]


class Matching:
    """Candidates against the shared gradients of some updates of one kind.

    The attacker computes what the client would have shared, had its images been these.
    """

    def __init__(
        self, settings: Settings, public: PublicModel, readings: list[Reading], restarts: int
    ) -> None:
        self.settings = settings
        self.public = replace(public, model=_still(public.model))
        self.update = update = readings[0].update
        inferred = settings.labels == "inferred"
        self.labels = _stacked([one.labels for one in readings]) if inferred else None
        self.masked = _stacked([one.masked for one in readings])
        self.counts = (len(readings), restarts)
        self._shape = (update.batch, 3, *public.size)
        self._num_classes = 0 if inferred else public.num_classes()
        parameters = dict(self.public.model.named_parameters())
        self._dtype = next(iter(parameters.values())).dtype
        # Of several steps at an unknown rate the first is all that can be imitated.
        self._steps = update.local_steps if update.learning_rate is not None else 1
        wanted = set(matched_names(update))
        if self._steps > 1:
            wanted |= {name for name, one in parameters.items() if one.requires_grad}
        self._start = {name: parameters[name].detach() for name in sorted(wanted)}
        positions, width = public.surface.positions, public.surface.width
        self._rows = {
            name: (-1, width) if name == positions else (1, -1) for name in matched_names(update)
        }
        gradients = {
            name: torch.stack(
                [one.update.gradients[name].to(self._dtype).reshape(rows) for one in readings]
            )
            for name, rows in self._rows.items()
        }
        self._target = Target([*gradients.values()], settings.objective, settings.balance)
        self._positions: tuple[str, Target] | None = None
        if settings.position_cosine and positions is not None and positions in gradients:
            self._positions = positions, Target([gradients[positions]], "cosine", "layers")

    def start(self, seed: int, purpose: str) -> Rows:
        """Noise: for a restart the same whatever the update, so that no update sees the others."""
        observations, restarts = self.counts
        generators = (generator_for(seed, purpose, step=restart) for restart in range(restarts))
        drawn = [self.settings.noise * torch.randn(self._shape, generator=g) for g in generators]
        images = torch.stack(drawn).flatten(1).repeat(observations, 1)
        images = images.to(self.public.device, self._dtype)
        logits = images.new_zeros(len(images), self._shape[0] * self._num_classes)
        return torch.cat([images, logits], dim=1).clamp(*self.box())

    def box(self) -> Box:
        """What pixels between 0 and 1 come to, normalised; logits may be anything."""
        black = torch.zeros(self._shape, dtype=self._dtype, device=self.public.device)
        logits = black.new_full((self._shape[0] * self._num_classes,), torch.inf)
        low, high = (self.public.normalized(pixels).flatten() for pixels in (black, black + 1))
        return torch.cat([low, -logits]), torch.cat([high, logits])

    def parts(self, rows: Rows) -> tuple[Candidates, Tensor]:
        """The images and the labels that a candidate's row is made of."""
        pixels = math.prod(self._shape)
        images = rows[:, :pixels].reshape(-1, *self._shape)
        if self.labels is not None:
            return images, self.labels.repeat_interleave(self.counts[1], dim=0)
        logits = rows[:, pixels:].reshape(-1, self._shape[0], self._num_classes)
        return images, logits.softmax(dim=2)

    def mismatch(self, rows: Rows) -> Values:
        """How far each candidate's gradient is from the shared one, without penalties."""
        with torch.no_grad():
            found = self._gradients(*self.parts(rows))
            return self._target.distance([*found.values()]).flatten()

    def evaluate(self, rows: Rows) -> tuple[Values, Rows]:
        """Each candidate's loss, penalties included, and the gradient of it."""
        with torch.enable_grad():
            rows = rows.detach().requires_grad_()
            images, labels = self.parts(rows)
            found = self._gradients(images, labels)
            loss = self._target.distance([*found.values()]).flatten()
            loss = loss + self._penalties(images, found)
            (gradient,) = torch.autograd.grad(loss.sum(), [rows])
        return loss.detach(), gradient

    def best(
        self, start: Rows, rows: Rows
    ) -> Iterator[tuple[Tensor, Int64[Tensor, " batch"], dict[str, Scalar]]]:
        """Of each update the restart that matches best: pixels, classes, how well it matches."""
        first, last = (self.mismatch(one).reshape(self.counts) for one in (start, rows))
        images, labels = self.parts(rows)
        classes = labels if labels.dim() == 2 else labels.argmax(dim=2)
        for place, mismatches in enumerate(last):
            best = int(mismatches.nan_to_num(torch.inf).argmin())
            at = place * self.counts[1] + best
            facts: dict[str, Scalar] = {
                "matching_loss": float(mismatches[best]),
                "matching_loss_at_start": float(first[place, best]),
            }
            yield self.public.pixels(images[at]), classes[at], facts

    def _gradients(self, images: Candidates, labels: Tensor) -> dict[str, Tensor]:
        """The gradient that each candidate batch gives, by name, all computed together.

        Args:
            labels: classes, or a probability of each.
        """
        masked = self.masked
        if masked is not None:
            masked = masked.repeat_interleave(self.counts[1], dim=0)
        labels = as_targets(self.public, labels)
        dims = (0, 0, None if masked is None else 0)
        # The fused attention kernels cannot be differentiated twice.
        with sdpa_kernel(SDPBackend.MATH), WrittenOutNorms():
            found = vmap(self._imitation, in_dims=dims)(images, labels, masked)
        return {name: found[name].reshape(*self.counts, *rows) for name, rows in self._rows.items()}

    def _imitation(
        self, images: Tensor, labels: Tensor, masked: Tensor | None
    ) -> dict[str, Tensor]:
        """What a client with these images would have shared."""
        plan = None
        if masked is not None:
            # Attention does not see the order of masked patches, so the attacker needs none.
            order = torch.arange(len(masked), device=masked.device).repeat(len(images), 1)
            plan = JigsawPlan(self.public.grid, masked.repeat(len(images), 1), order)
        weight, rate = self.update.localization_weight, self.update.learning_rate or 0.0
        told = images.new_tensor(weight)
        batch = {"images": images, "targets": labels, "localization_weight": told}
        current = self._start
        found: list[dict[str, Tensor]] = []
        for _ in range(self._steps):
            if found:
                current = {name: one - rate * found[-1][name] for name, one in current.items()}
            found.append(grad(client_loss)(current, self.public, batch, plan, weight))
        if len(found) == 1:
            return found[0]
        return {name: torch.stack([one[name] for one in found]).mean(dim=0) for name in self._rows}

    def _penalties(self, images: Candidates, found: dict[str, Tensor]) -> Values:
        settings = self.settings
        pixels = self.public.pixels(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        total = images.new_zeros(len(images))
        if settings.total_variation:
            total = total + settings.total_variation * total_variation(pixels)
        if settings.patch_borders:
            total = total + settings.patch_borders * patch_borders(pixels, self.public.grid)
        if settings.consistency and self.counts[1] > 1:
            several = pixels.unflatten(0, self.counts)
            apart = several - several.detach().mean(dim=1, keepdim=True)
            total = total + settings.consistency * apart.square().flatten(2).mean(dim=2).flatten()
        if self._positions is not None:
            name, target = self._positions
            total = total + settings.position_cosine * target.distance([found[name]]).flatten()
        return total


class Target:
    """Gradients of some observations, each parameter's given as rows.

    With `cosine` the distance is 1 - cosine, computed as half the squared difference of unit
    vectors, which single precision resolves finer; with `l2` it is the squared difference relative
    to the target's own square. Balanced by `layers` it is the mean over a parameter's rows, then
    over parameters.
    """

    def __init__(
        self,
        gradients: list[Float[Tensor, "observations _ _"]],
        objective: Objective,
        balance: Balance,
    ) -> None:
        self._objective, self._balance = objective, balance
        self._gradients = [one[:, None] for one in gradients]
        self._tiny = torch.finfo(gradients[0].dtype).tiny ** 0.5
        sizes = self._sizes(self._gradients)
        self._weights = torch.ones_like(sizes)
        if balance == "layers":
            # A parameter that the client did not use has no size to compare with: it counts not.
            shares = [sizes.new_full((one.shape[1],), 1 / one.shape[1]) for one in gradients]
            weights = torch.cat(shares) * (sizes > 0)
            self._weights = weights / weights.sum(dim=2, keepdim=True).clamp(min=self._tiny)
        self._scales = self._scaled(sizes)
        if objective == "cosine":
            self._gradients = self._units(self._gradients)
            self._weights, self._scales = self._weights / 2, torch.ones_like(sizes)

    def distance(
        self, found: list[Float[Tensor, "observations restarts _ _"]]
    ) -> Float[Tensor, "observations restarts"]:
        """How far these are from the target; 0 where they are equal."""
        if self._objective == "cosine":
            found = self._units(found)
        apart = self._sizes([one - its for one, its in zip(found, self._gradients, strict=True)])
        return (self._weights * (apart / self._scales).square()).sum(dim=2)

    def _sizes(self, gradients: list[Tensor]) -> Float[Tensor, "observations restarts rows"]:
        return torch.cat([torch.linalg.vector_norm(one, dim=3) for one in gradients], dim=2)

    def _scaled(self, sizes: Tensor) -> Tensor:
        """What to divide each row by; never 0."""
        if self._balance == "whole":
            sizes = torch.linalg.vector_norm(sizes, dim=2, keepdim=True).expand_as(sizes)
        return sizes.clamp(min=self._tiny)

    def _units(self, gradients: list[Tensor]) -> list[Tensor]:
        scales = self._scaled(self._sizes(gradients))[..., None]
        split = scales.split([one.shape[2] for one in gradients], dim=2)
        return [one / scale for one, scale in zip(gradients, split, strict=True)]


def total_variation(pixels: Candidates) -> Values:
    """Mean absolute difference of neighbouring pixels, along rows plus along columns."""
    down, across = (pixels.diff(dim=dim).abs().flatten(1).mean(dim=1) for dim in (3, 4))
    return down + across


def patch_borders(pixels: Candidates, grid: PatchGrid) -> Values:
    """How much larger the jumps between patches are than those inside patches.

    GradViT penalises the jumps themselves; a picture has some everywhere, so that only what the
    borders have too much is counted here.
    """
    penalty = pixels.new_zeros(len(pixels))
    for dim, side in zip((3, 4), grid.patch_shape(*pixels.shape[3:]), strict=True):
        jumps = pixels.diff(dim=dim).abs().movedim(dim, 1).flatten(2).mean(dim=2)
        last = torch.arange(1, jumps.shape[1] + 1, device=pixels.device) % side == 0
        if bool(last.any()) and not bool(last.all()):
            inside = jumps[:, ~last].mean(dim=1).detach()
            penalty = penalty + (jumps[:, last].mean(dim=1) - inside).clamp(min=0)
    return penalty


def matched_names(update: SharedUpdate) -> list[str]:
    """The parameters whose gradient depends on the images; the locator's does not."""
    return [name for name in update.gradients if not name.startswith("locator.")]


def _still(model: nn.Module) -> nn.Module:
    """A copy in at least single precision that draws no randomness and keeps no statistics."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.training:
            replace_all_batch_norm_modules_(module)
        else:
            module.training = False  # Not eval(), which would reach the batch norms inside.
    if next(model.parameters()).dtype in (torch.float16, torch.bfloat16):
        model = model.float()
    return model


def _stacked(values: Sequence[Tensor | None]) -> Tensor | None:
    """Of updates of one kind: all have one, or none."""
    present = [value for value in values if value is not None]
    return torch.stack(present) if present else None
