"""The engine of all search attacks: looks for images whose gradient is the one that was shared."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.records import Scalar
from mjp.core.seeds import generator_for
from mjp.privacy.attacks import objectives
from mjp.privacy.attacks.descent import Optimizer, descend
from mjp.privacy.attacks.imitation import Imitation, matched_names
from mjp.privacy.attacks.objectives import Balance, Objective, Target
from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Reading, facts, infer_labels, read
from mjp.privacy.update import AttackResult, Effort, Observation, SharedUpdate, refused

_VALUES_AT_ONCE = 100_000_000
"""Gradient values of all candidates that are computed together; bounds the memory."""


@dataclass(frozen=True)
class Settings:
    """How to search.

    Args:
        objective: `l2` compares gradients, `cosine` their directions.
        balance: `layers` compares parameter by parameter, each relative to its own size, and the
            position table row by row, since the row of the class token drowns those of the patches;
            `whole` compares all in one, so that the largest gradients count most.
        labels: `inferred` from the classifier's gradient, or `searched` together with the images.
        steps: of the optimiser; an effort overrides it, and `restarts`.
        decay: what the learning rate is multiplied with at each of the `milestones`, which are
            shares of the steps.
        noise: standard deviation of the first images around mean grey, normalised.
        total_variation, patch_borders, consistency: weights of the penalties in `objectives`.
        position_cosine: weight of 1 - cosine of the position gradients, mean over positions.
    """

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


@dataclass(frozen=True, eq=False)
class _Case:
    """An update to attack, and what was read off it."""

    place: int
    update: SharedUpdate
    reading: Reading
    labels: Int64[Tensor, " batch"] | None

    def kind(self) -> tuple[object, ...]:
        """Cases of the same kind can be computed together."""
        facts = {**vars(self.update), "defence": "", "gradients": tuple(self.update.gradients)}
        return (*facts.values(), self.reading.masked is None)


def search(
    attack: str,
    settings: Settings,
    public: PublicModel,
    observations: list[Observation],
    effort: Effort,
) -> list[AttackResult]:
    """Attacks each observation's first update, as many together as fit."""
    results: dict[int, AttackResult] = {}
    preflights: list[dict[str, Scalar]] = []
    cases: list[_Case] = []
    for place, (update, *_) in enumerate(observations):
        reading = read(public, update)
        preflights.append(facts(public, update, reading))
        labels = infer_labels(public, update) if settings.labels == "inferred" else None
        reason = _missing(settings, public, update, reading, labels)
        if reason is None:
            cases.append(_Case(place, update, reading, labels))
        else:
            results[place] = refused(attack, reason, preflights[place])
    steps, restarts = effort.steps or settings.steps, effort.restarts or settings.restarts
    for part in _parts(cases, restarts):
        labels = _stacked([case.labels for case in part])
        masked = _stacked([case.reading.masked for case in part])
        updates = [case.update for case in part]
        matching = Matching(settings, public, updates, labels, masked, restarts)
        start = matching.start(effort.seed, f"attack/{attack}")
        low, high = matching.box()
        share = len(part) / len(cases) / steps
        rows = descend(
            start,
            matching.evaluate,
            low=low,
            high=high,
            optimizer=settings.optimizer,
            learning_rates=settings.learning_rates(steps),
            tell=partial(effort.tell, share),
        )
        for case, (images, classes, found) in zip(part, matching.best(start, rows), strict=True):
            results[case.place] = AttackResult(
                attack,
                applies=True,
                reason=_warning(case.update, case.reading),
                facts={**preflights[case.place], **found, "steps": steps, "restarts": restarts},
                images=images,
                masked=case.reading.masked,
                labels=classes,
            )
    if not cases:
        effort.tell(1.0)
    return [results[place] for place in range(len(observations))]


class Matching:
    """Candidates against the shared gradients of some updates of one kind.

    Args:
        labels: of each update's images; None to search for them.
        masked: the mask of each update; None where there is none.
    """

    def __init__(
        self,
        settings: Settings,
        public: PublicModel,
        updates: list[SharedUpdate],
        labels: Int64[Tensor, "observations batch"] | None,
        masked: Bool[Tensor, "observations patches"] | None,
        restarts: int,
    ) -> None:
        self.settings = settings
        self.imitation = Imitation(public, updates[0])
        self.labels = labels
        self._masked = None if masked is None else masked.repeat_interleave(restarts, dim=0)
        self.counts = (len(updates), restarts)
        self._shape = (updates[0].batch, 3, *public.size)
        dtype = self.imitation.dtype
        self._rows = {
            name: (-1, public.surface.width) if name == public.surface.positions else (1, -1)
            for name in self.imitation.names
        }
        target = {
            name: torch.stack([one.gradients[name].to(dtype).reshape(rows) for one in updates])
            for name, rows in self._rows.items()
        }
        self._target = Target(list(target.values()), settings.objective, settings.balance)
        self._positions: tuple[str, Target] | None = None
        name = public.surface.positions
        if settings.position_cosine and name is not None and name in target:
            self._positions = name, Target([target[name]], "cosine", "layers")
        self._num_classes = public.num_classes() if labels is None else 0

    def start(self, seed: int, purpose: str) -> Float[Tensor, "candidates values"]:
        """Noise: for a restart the same whatever the update, so that no update sees the others."""
        observations, restarts = self.counts
        drawn = []
        for restart in range(restarts):
            generator = generator_for(seed, purpose, step=restart)
            drawn.append(self.settings.noise * torch.randn(self._shape, generator=generator))
        images = torch.stack(drawn).flatten(1).repeat(observations, 1)
        images = images.to(self.imitation.public.device, self.imitation.dtype)
        logits = images.new_zeros(len(images), self._shape[0] * self._num_classes)
        low, high = self.box()
        return torch.cat([images, logits], dim=1).clamp(low, high)

    def box(self) -> tuple[Float[Tensor, " values"], Float[Tensor, " values"]]:
        """What pixels between 0 and 1 come to, normalised; logits may be anything."""
        public = self.imitation.public
        black = torch.zeros(self._shape, dtype=self.imitation.dtype, device=public.device)
        logits = black.new_full((self._shape[0] * self._num_classes,), torch.inf)
        low, high = (public.normalized(pixels).flatten() for pixels in (black, black + 1))
        return torch.cat([low, -logits]), torch.cat([high, logits])

    def parts(self, rows: Float[Tensor, "candidates values"]) -> tuple[Tensor, Tensor]:
        """The images and the labels that a candidate's row is made of."""
        pixels = math.prod(self._shape)
        images = rows[:, :pixels].reshape(-1, *self._shape)
        if self.labels is not None:
            return images, self.labels.repeat_interleave(self.counts[1], dim=0)
        logits = rows[:, pixels:].reshape(-1, self._shape[0], self._num_classes)
        return images, logits.softmax(dim=2)

    def mismatch(self, rows: Float[Tensor, "candidates values"]) -> Float[Tensor, " candidates"]:
        """How far each candidate's gradient is from the shared one, without penalties."""
        with torch.no_grad():
            images, labels = self.parts(rows)
            found = self._gradients(images, labels)
            return self._target.distance(list(found.values())).flatten()

    def evaluate(
        self, rows: Float[Tensor, "candidates values"]
    ) -> tuple[Float[Tensor, " candidates"], Float[Tensor, "candidates values"]]:
        """Each candidate's loss, penalties included, and the gradient of it."""
        with torch.enable_grad():
            rows = rows.detach().requires_grad_()
            images, labels = self.parts(rows)
            found = self._gradients(images, labels)
            loss = self._target.distance(list(found.values())).flatten()
            loss = loss + self._penalties(images, found)
            (gradient,) = torch.autograd.grad(loss.sum(), [rows])
        return loss.detach(), gradient

    def best(
        self, start: Tensor, rows: Tensor
    ) -> Iterator[tuple[Tensor, Int64[Tensor, " batch"], dict[str, Scalar]]]:
        """Of each case the restart that matches best: pixels, classes, and how well it matches."""
        first, last = (self.mismatch(one).reshape(self.counts) for one in (start, rows))
        images, labels = self.parts(rows)
        for place, mismatches in enumerate(last):
            best = int(mismatches.nan_to_num(torch.inf).argmin())
            at = place * self.counts[1] + best
            own = labels[at] if labels.dim() == 2 else labels[at].argmax(dim=1)
            pixels = self.imitation.public.pixels(images[at]).clamp(0, 1).float()
            yield (
                pixels,
                own,
                {
                    "matching_loss": float(mismatches[best]),
                    "matching_loss_at_start": float(first[place, best]),
                },
            )

    def _gradients(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = self.imitation.gradients(images, labels, self._masked)
        return {name: found[name].reshape(*self.counts, *rows) for name, rows in self._rows.items()}

    def _penalties(self, images: Tensor, found: dict[str, Tensor]) -> Float[Tensor, " candidates"]:
        settings, public = self.settings, self.imitation.public
        pixels = public.pixels(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        total = images.new_zeros(len(images))
        if settings.total_variation:
            total = total + settings.total_variation * objectives.total_variation(pixels)
        if settings.patch_borders:
            total = total + settings.patch_borders * objectives.patch_borders(pixels, public.grid)
        if settings.consistency and self.counts[1] > 1:
            apart = objectives.spread(pixels.unflatten(0, self.counts)).flatten()
            total = total + settings.consistency * apart
        if self._positions is not None:
            name, target = self._positions
            apart = target.distance([found[name]]).flatten()
            total = total + settings.position_cosine * apart
        return total


def _stacked(values: Sequence[Tensor | None]) -> Tensor | None:
    """Of cases of one kind: all have one, or none."""
    present = [value for value in values if value is not None]
    return torch.stack(present) if present else None


def _parts(cases: list[_Case], restarts: int) -> Iterator[list[_Case]]:
    """Cases of the same kind, as many as fit into memory."""
    kinds: dict[tuple[object, ...], list[_Case]] = {}
    for case in cases:
        kinds.setdefault(case.kind(), []).append(case)
    for alike in kinds.values():
        values = sum(one.numel() for one in alike[0].update.gradients.values())
        size = max(1, _VALUES_AT_ONCE // (values * restarts))
        yield from (alike[at : at + size] for at in range(0, len(alike), size))


def _missing(
    settings: Settings,
    public: PublicModel,
    update: SharedUpdate,
    reading: Reading,
    labels: Tensor | None,
) -> str | None:
    """Why the search cannot start; None where it can."""
    if not matched_names(update):
        return "no gradient is shared that depends on the images"
    if settings.position_cosine and public.surface.positions is None:
        return "the model has no table of position embeddings, whose gradient is to be matched"
    if settings.position_cosine and reading.tokens is None:
        return "the gradient of the position embeddings is not shared"
    if settings.labels == "inferred" and labels is None:
        return "the gradient of the classifier, which tells the classes, is not shared"
    return None


def _warning(update: SharedUpdate, reading: Reading) -> str:
    """What makes the search doubtful, in words."""
    notes = []
    if reading.num_masked:
        notes.append(f"{reading.num_masked} patches are matched in an order that cannot be known")
    elif reading.unknown is not None:
        notes.append("some patches are masked, but the update does not tell which")
    if update.batch > 1:
        notes.append(f"{update.batch} images are summed up in one gradient")
    if update.local_steps > 1 and update.learning_rate is None:
        notes.append(
            f"{update.local_steps} local steps of an unknown learning rate are taken for one"
        )
    return "; ".join(notes)
