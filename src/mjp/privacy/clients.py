"""The two sides of an audit: what clients send of their pictures, and what attackers make of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mjp.core.configuration import check_at_least, check_count
from mjp.core.records import Scalar
from mjp.core.seeds import generator_for
from mjp.jigsaw import JigsawPlan
from mjp.privacy import sharing
from mjp.privacy.attacks import attack_each
from mjp.privacy.defences import Defence
from mjp.privacy.public import PublicModel
from mjp.privacy.scoring import Gallery, score
from mjp.privacy.sharing import Labels, labels_of
from mjp.privacy.update import AttackResult, Effort, Observation, SharedUpdate


@dataclass(frozen=True)
class AuditSettings:
    """How clients and attackers behave.

    Args:
        rounds: updates that each client sends of the same images, each under a mask of its own.
        localization_weight: λ of MJP's localization loss in the clients' loss.
        steps, restarts: of attacks that search; None for each attack's own.
    """

    rounds: int = 1
    localization_weight: float = 0.0
    steps: int | None = None
    restarts: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds)
        check_at_least("localization_weight", self.localization_weight, 0.0)
        Effort(self.steps, self.restarts)


@dataclass(frozen=True, eq=False)
class Piece:
    """Some pictures under a defence, which are worked on together."""

    defence: Defence
    numbers: tuple[int, ...]

    @property
    def part(self) -> slice:
        """Where they are among all pictures."""
        return slice(self.numbers[0], self.numbers[-1] + 1)


@dataclass(frozen=True, eq=False)
class Clients:
    """What the clients of a piece did and sent: observations, and what attackers never see.

    Args:
        public: the model that goes with the defence.
        masked: the patches that the first update's jigsaw moved.
        view: the pictures as the first update's jigsaw left them.
        fidelity: cosine between each update and the gradient of what the model was fed, as it is.
    """

    public: PublicModel
    observations: list[Observation]
    masked: Bool[Tensor, "batch patches"]
    view: Float[Tensor, "batch 3 height width"]
    fidelity: tuple[float, ...]


def client_step(
    public: PublicModel,
    piece: Piece,
    images: Float[Tensor, "batch 3 height width"],
    labels: Labels,
    settings: AuditSettings,
) -> Clients:
    """The clients' part: jigsaw, gradients, defence.

    Args:
        public: the model without the defence.
        images, labels: of the piece; pixels in [0, 1].
    """
    defended = piece.defence.public(public)
    inputs = defended.normalized(images)
    rounds: list[list[SharedUpdate]] = []
    plans: list[JigsawPlan | None] = []
    fidelity: tuple[float, ...] = ()
    for number in range(settings.rounds):
        plan = _drawn(defended, piece, number, settings.seed)
        sent = list(_sent(defended, piece, inputs, labels, plan, number, settings))
        rounds.append([update for update, _ in sent])
        plans.append(plan)
        each = len(images) // len(sent)
        fidelity = fidelity or tuple(value for _, value in sent for _ in range(each))
    first = plans[0]
    none = torch.zeros(len(images), public.grid.num_patches, dtype=torch.bool, device=images.device)
    return Clients(
        public=defended,
        observations=list(zip(*rounds, strict=True)),
        masked=none if first is None else first.masked,
        view=images if first is None else first.apply(images),
        fidelity=fidelity,
    )


def _drawn(public: PublicModel, piece: Piece, number: int, seed: int) -> JigsawPlan | None:
    """Of all clients; each client's is drawn by its first picture's number, whoever is beside."""
    each, plans = piece.defence.images_per_update, []
    for first in piece.numbers[::each]:
        generator = generator_for(seed, "audit jigsaw", rank=number, step=first)
        plans.append(piece.defence.draw_plan(public, each, generator))
    if all(plan is None for plan in plans):
        return None
    still = JigsawPlan.identity(public.grid, each, public.device)
    parts = [still if plan is None else plan for plan in plans]
    return JigsawPlan(
        public.grid,
        torch.cat([plan.masked for plan in parts]),
        torch.cat([plan.source for plan in parts]),
    )


def _sent(
    public: PublicModel,
    piece: Piece,
    inputs: Tensor,
    labels: Labels,
    plan: JigsawPlan | None,
    number: int,
    settings: AuditSettings,
) -> Iterator[tuple[SharedUpdate, float]]:
    """What each client sends in a round, and how much of the gradient's direction is in it."""
    defence, weight = piece.defence, settings.localization_weight
    each = defence.images_per_update
    noises = [
        generator_for(settings.seed, "audit noise", rank=number, step=first)
        for first in piece.numbers[::each]
    ]
    if each == 1 and defence.local_steps == 1 and not defence.is_private:
        fed, shown = defence.arrange(inputs, plan)
        every = sharing.share_each(public, fed, labels, shown, localization_weight=weight)
        for raw, noise in zip(every, noises, strict=True):
            update = defence.process(public, raw, noise)
            yield update, cosine(raw, update)
        return
    for client, noise in enumerate(noises):
        part = slice(client * each, (client + 1) * each)
        own = None if plan is None else plan[part]
        some = labels_of(labels, part)
        update = defence.share(public, inputs[part], some, own, noise, localization_weight=weight)
        fed, shown = defence.arrange(inputs[part], own)
        raw = sharing.share(public, fed, some, shown, localization_weight=weight)
        yield update, cosine(raw, update)


def cosine(update: SharedUpdate, other: SharedUpdate) -> float:
    """Between two updates; a gradient that is not shared counts as zero."""
    product = lengths = others = 0.0
    for name, gradient in update.gradients.items():
        lengths += float(gradient.double().square().sum())
        if (its := other.get(name)) is not None:
            product += float((gradient.double() * its.double()).sum())
            others += float(its.double().square().sum())
    scale = (lengths * others) ** 0.5
    return product / scale if scale else 0.0


def attack_step(
    clients: Clients,
    piece: Piece,
    gallery: Gallery,
    attack: str,
    settings: AuditSettings,
    tell: Callable[[float], None],
) -> list[tuple[dict[str, Scalar], Tensor | None]]:
    """The attackers' part: for each picture its numbers, and what came back of it."""
    effort = Effort(settings.steps, settings.restarts, settings.seed, tell)
    results = attack_each(attack, clients.public, clients.observations, effort=effort)
    truth = gallery.images[piece.part]
    each = len(truth) // len(results)
    recovered: list[Tensor | None] = []
    for place, result in enumerate(results):
        recovered += _matched(truth[place * each : (place + 1) * each], result)
    rows = [row for row, image in enumerate(recovered) if image is not None]
    scores: dict[int, dict[str, Scalar]] = {}
    if rows:
        index = torch.tensor(rows, device=truth.device) + piece.numbers[0]
        images = torch.stack([image for image in recovered if image is not None])
        view, masked = clients.view[rows], clients.masked[rows]
        every = score(clients.public, gallery, index, images, view, masked)
        scores = dict(zip(rows, every, strict=True))
    found = []
    for row, image in enumerate(recovered):
        result, masked = results[row // each], clients.masked[row]
        right = result.masked is not None and bool(result.masked.equal(masked))
        values = {
            "applies": result.applies,
            "reason": result.reason,
            "fidelity": clients.fidelity[row],
            "masked_patches": int(masked.sum()),
            "patches": len(masked),
            "mask_recovered": right if bool(masked.any()) else None,
            **result.facts,
            **scores.get(row, {}),
        }
        found.append((values, image))
    return found


def _matched(
    truth: Float[Tensor, "each 3 height width"], result: AttackResult
) -> list[Tensor] | list[None]:
    """For each picture of a client, the recovered one that is nearest to it."""
    if result.images is None:
        return [None] * len(truth)
    if len(truth) == len(result.images) == 1:
        return list(result.images)
    distances = torch.cdist(truth.flatten(1), result.images.to(truth).flatten(1))
    return list(result.images[distances.argmin(dim=1)])
