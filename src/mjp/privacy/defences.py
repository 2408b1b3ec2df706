"""`Defence`: what a client does so that its update gives less away, as a text of named parts."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import reduce
from itertools import permutations
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from mjp.core.configuration import check_count, suggestion
from mjp.core.errors import ConfigError
from mjp.jigsaw import JigsawPlan
from mjp.privacy import sharing
from mjp.privacy.defence_parts import PARTS, Gradients, Part
from mjp.privacy.defence_positions import Jigsaw
from mjp.privacy.defence_updates import LargerBatch, LocalSteps, PrivateSGD
from mjp.privacy.public import PublicModel
from mjp.privacy.sharing import Labels
from mjp.privacy.update import SharedUpdate

Kind = TypeVar("Kind", bound=Part)
NOTES = {
    "model": "of the model as it is, without training under this defence",
    "gradients": "of the model as it is: what training with such gradients would keep was not "
    "measured; the share of the gradient's direction that is left stands beside it",
}
"""What an accuracy is the accuracy of, by what would have to be trained first."""


@dataclass(frozen=True)
class Defence:
    """What a client does so that its update gives less away; see `parse_defence`.

    Gradients are processed in the order of the parts. With DP-SGD, the parts before it act on the
    gradient of each image.
    """

    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        for part, other in permutations(self.parts, 2):
            if part.name == other.name:
                raise ConfigError(f"{part.name} is there twice, {part} and {other}; choose one")
            reason = part.reason if part.kind == other.kind else part.excludes.get(other.name)
            if reason is not None:
                raise ConfigError(f"{part.name} and {other.name} exclude each other: {reason}")

    def __str__(self) -> str:
        return "+".join(str(part) for part in self.parts) or "none"

    @property
    def title(self) -> str:
        """Words for a report."""
        return ", ".join(part.title for part in self.parts) or "no defence"

    @property
    def about(self) -> str:
        """What it does, and what the attacker can still know: a sentence."""
        clauses = "; it ".join(part.about for part in self.parts)
        return f"The client {clauses or 'sends its gradients as they are'}."

    @property
    def images_per_update(self) -> int:
        batch = self._part(LargerBatch)
        return 1 if batch is None else batch.images

    @property
    def local_steps(self) -> int:
        local = self._part(LocalSteps)
        return 1 if local is None else local.steps

    @property
    def learning_rate(self) -> float | None:
        """Of the local steps; None where there is one step only."""
        local = self._part(LocalSteps)
        return None if local is None else local.learning_rate

    @property
    def is_private(self) -> bool:
        """Whether DP-SGD is part of it."""
        return self._part(PrivateSGD) is not None

    @property
    def feeding(self) -> "Defence":
        """The parts of it that decide what the model is fed and answers."""
        return Defence(tuple(part for part in self.parts if part.feeds))

    @property
    def accuracy_note(self) -> str:
        """What an accuracy measured under it is the accuracy of; empty where it is its own."""
        kinds = {part.training for part in self.parts}
        return next((note for kind, note in NOTES.items() if kind in kinds), "")

    def epsilon(self) -> float | None:
        """The ε of one update under DP-SGD; None without, where nothing is guaranteed."""
        private = self._part(PrivateSGD)
        return None if private is None else private.epsilon()

    def public(self, public: PublicModel) -> PublicModel:
        """The public model that goes with it, a copy or the same object; an error if none can."""
        return reduce(lambda model, part: part.prepare(model), self.parts, public)

    def notes(self, public: PublicModel) -> tuple[str, ...]:
        """What a report has to say beside the numbers, of the model before it was changed."""
        return tuple(note for part in self.parts for note in part.notes(public))

    def draw_plan(
        self, public: PublicModel, batch: int, generator: torch.Generator, *, clients: int = 1
    ) -> JigsawPlan | None:
        """A jigsaw for each image, on the model's device; None where there is none.

        Args:
            batch: images of a client.
            generator: on the CPU, wherever the model is: whether a client has a jigsaw is decided
                on the host.
            clients: how many there are; each decides for itself. The plan is one of batch * clients
                images, client by client, and leaves those in order that have no jigsaw.
        """
        check_count("batch", batch)
        check_count("clients", clients)
        jigsaw = self._part(Jigsaw)
        return None if jigsaw is None else jigsaw.draw(public, batch, clients, generator)

    def arrange(
        self, images: Float[Tensor, "batch 3 height width"], plan: JigsawPlan | None
    ) -> tuple[Float[Tensor, "batch 3 height width"], JigsawPlan | None]:
        """What the client's model gets; where the pixels themselves are moved, no plan is left."""
        jigsaw = self._part(Jigsaw)
        if plan is not None and jigsaw is None:
            raise ConfigError(f"the defence {self} has no jigsaw, but a plan for one was given")
        if plan is None and jigsaw is not None and jigsaw.probability == 1:
            raise ConfigError(f"the defence {self} needs a plan; draw it with its draw_plan")
        for part in self.parts:
            images, plan = part.arrange(images, plan)
        return images, plan

    def share(
        self,
        public: PublicModel,
        images: Float[Tensor, "batch 3 height width"],
        labels: Labels,
        plan: JigsawPlan | None,
        generator: torch.Generator,
        *,
        localization_weight: float = 0.0,
    ) -> SharedUpdate:
        """What a client with this defence sends of its images.

        Args:
            public: what the defence's own `public` gave.
            images: as the model takes them, normalised.
        """
        if self.public(public) is not public:
            raise ConfigError(
                f"the defence {self} goes with another public model; share from what "
                "defence.public(model) gives, and attack that"
            )
        if localization_weight and getattr(public.model, "locator", None) is None:
            raise ConfigError(
                f"localization_weight={localization_weight:g} needs a model with a locator; this "
                "one has none, so leave it at 0"
            )
        images, plan = self.arrange(images, plan)
        private = self._part(PrivateSGD)
        how: dict[str, Any] = {"localization_weight": localization_weight}
        if private is None:
            how |= {"local_steps": self.local_steps, "learning_rate": self.learning_rate}
            update = sharing.share(public, images, labels, plan, **how)
            return self.process(public, update, generator)
        place = self.parts.index(private)
        before, after = Defence(self.parts[:place]), Defence(self.parts[place + 1 :])
        each = sharing.share_each(public, images, labels, plan, **how)
        # One after the other: the gradients of a whole batch may not fit into memory.
        single = (before._processed(one.gradients, public, generator) for one in each)
        mean = private.mean(single, public, generator)
        update = SharedUpdate(
            after._processed(mean, public, generator), batch=len(images), defence=str(self), **how
        )
        for part in (*before.parts, *after.parts):
            part.check(update)
        return update

    def process(
        self, public: PublicModel, update: SharedUpdate, generator: torch.Generator
    ) -> SharedUpdate:
        """What a client with this defence makes of its update before it sends it.

        Args:
            public: what the defence's own `public` gave.
            update: of `mjp.privacy.sharing`, without a defence yet.
            generator: of noise; where it is on another device than the update, it seeds one there.
        """
        if update.defence != "none":
            raise ConfigError(
                f"this update has the defence {update.defence} already; process a fresh one"
            )
        for part in self.parts:
            part.check(update)
        gradients = self._processed(update.gradients, public, generator)
        return replace(update, gradients=gradients, defence=str(self))

    def _processed(
        self, gradients: Mapping[str, Tensor], public: PublicModel, generator: torch.Generator
    ) -> Gradients:
        sent = dict(gradients)
        for part in self.parts:
            sent = part.process(sent, public, generator)
        return sent

    def _part(self, kind: type[Kind]) -> Kind | None:
        return next((part for part in self.parts if isinstance(part, kind)), None)


def parse_defence(text: str) -> Defence:
    """The defence that a text names: `none`, or parts joined by `+`, in the order they act.

    `mjp=0.27` (ratio; `mjp=0.27,0.5` with a probability), `shuffle=0.27`, `frozen`, `unshared`,
    `sincos`, `fp16`, `bf16`, `prune=0.9` (share set to zero), `clip=1` (total norm), `noise=1e-4`
    (standard deviation), `dp=1,1` (noise multiplier, clipping norm), `batch=4` (images of an
    update), `steps=4,0.01` (local steps, learning rate).
    """
    text = text.strip().lower()
    if text == "none":
        return Defence()
    # A plus before a digit belongs to a number, such as 1e+3.
    return Defence(tuple(_parse_part(one.strip(), text) for one in re.split(r"\+(?!\d)", text)))


def _parse_part(text: str, whole: str) -> Part:
    name, equals, rest = text.partition("=")
    name = name.strip()
    if name == "none":
        raise ConfigError(f"none cannot be part of {whole!r}; leave it out")
    if not name:
        raise ConfigError(f"{whole!r} has a part without a name; an example is mjp=0.27+clip=1")
    if name not in PARTS:
        raise ConfigError(f"there is no defence {name!r}{suggestion(name, ['none', *PARTS])}")
    part = PARTS[name]
    values = [value.strip() for value in rest.split(",")] if equals else []
    needed = sum(field.default is MISSING for field in fields(part))
    if not needed <= len(values) <= len(fields(part)):
        raise ConfigError(f"{text!r} is no defence; write {part.usage()}")
    numbers: list[int | float] = []
    for value, field in zip(values, fields(part), strict=False):
        try:
            numbers.append(int(value) if field.type is int else float(value))
        except ValueError as error:
            kind = "whole number" if field.type is int else "number"
            raise ConfigError(f"{value!r} in {text!r} is no {kind}") from error
    return part(*numbers)
