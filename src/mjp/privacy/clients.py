"""The two sides of an audit: what clients send of their pictures, and what attackers make of it."""

from collections.abc import Iterator
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
class Piece:
    """Pictures under a defence that are worked on together, and how their clients behave.

    Args:
        numbers: of the pictures; they follow one another.
        rounds: updates that each client sends of the same images, each under a mask of its own.
        localization_weight: λ of MJP's localization loss in the clients' loss.
    """

    defence: Defence
    numbers: range
    rounds: int = 1
    localization_weight: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds)
        check_at_least("localization_weight", self.localization_weight, 0.0)

    @property
    def part(self) -> slice:
        """Where they are among all pictures."""
        return slice(self.numbers.start, self.numbers.stop)


@dataclass(frozen=True, eq=False)
class Clients:
    """What the clients of a piece did and sent: observations, and what attackers never see.

    Args:
        public: the model that goes with the defence.
        masked: the patches that the first update's jigsaw moved.
        view: the pictures as the first update's jigsaw left them.
        fidelity: cosine between each update and the gradient of what the model was fed, as it is.
    """

    piece: Piece
    public: PublicModel
    observations: list[Observation]
    masked: Bool[Tensor, "batch patches"]
    view: Float[Tensor, "batch 3 height width"]
    fidelity: list[float]


def client_step(
    public: PublicModel, piece: Piece, images: Float[Tensor, "batch 3 height width"], labels: Labels
) -> Clients:
    """The clients' part: jigsaw, gradients, defence.

    Args:
        public: the model without the defence.
        images, labels: of the piece; pixels in [0, 1].
    """
    defended = piece.defence.public(public)
    inputs = defended.normalized(images)
    plans = [_drawn(defended, piece, number) for number in range(piece.rounds)]
    rounds = [
        list(_sent(defended, piece, inputs, labels, plan, number))
        for number, plan in enumerate(plans)
    ]
    each = len(images) // len(rounds[0])
    first = plans[0] or JigsawPlan.identity(public.grid, len(images), images.device)
    return Clients(
        piece,
        defended,
        list(zip(*([update for update, _ in sent] for sent in rounds), strict=True)),
        masked=first.masked,
        view=first.apply(images),
        fidelity=[value for _, value in rounds[0] for _ in range(each)],
    )


def _generators(piece: Piece, purpose: str, number: int) -> list[torch.Generator]:
    """One for each client in a round, by its first picture's number, whoever is beside."""
    firsts = piece.numbers[:: piece.defence.images_per_update]
    return [generator_for(piece.seed, purpose, rank=number, step=first) for first in firsts]


def _drawn(public: PublicModel, piece: Piece, number: int) -> JigsawPlan | None:
    """The jigsaws of all clients."""
    each = piece.defence.images_per_update
    generators = _generators(piece, "audit jigsaw", number)
    plans = [piece.defence.draw_plan(public, each, generator) for generator in generators]
    if all(plan is None for plan in plans):
        return None
    still = JigsawPlan.identity(public.grid, each, public.device)
    return JigsawPlan(
        public.grid,
        torch.cat([(plan or still).masked for plan in plans]),
        torch.cat([(plan or still).source for plan in plans]),
    )


def _sent(
    public: PublicModel,
    piece: Piece,
    inputs: Tensor,
    labels: Labels,
    plan: JigsawPlan | None,
    number: int,
) -> Iterator[tuple[SharedUpdate, float]]:
    """What each client sends in a round, and how much of the gradient's direction is in it."""
    defence, weight = piece.defence, piece.localization_weight
    each = defence.images_per_update
    noises = _generators(piece, "audit noise", number)
    if each == 1 and defence.local_steps == 1 and not defence.is_private:
        fed, shown = defence.arrange(inputs, plan)
        every = sharing.share_each(public, fed, labels, shown, localization_weight=weight)
        for raw, noise in zip(every, noises, strict=True):
            update = defence.process(public, raw, noise)
            yield update, cosine(raw, update)
        return
    for client, noise in enumerate(noises):
        part = slice(client * each, (client + 1) * each)
        images, classes = inputs[part], labels_of(labels, part)
        own = None if plan is None else plan[part]
        update = defence.share(public, images, classes, own, noise, localization_weight=weight)
        fed, shown = defence.arrange(images, own)
        raw = sharing.share(public, fed, classes, shown, localization_weight=weight)
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
    clients: Clients, gallery: Gallery, attack: str, effort: Effort
) -> list[tuple[dict[str, Scalar], Tensor | None]]:
    """The attackers' part: for each picture its numbers, and what came back of it."""
    results = attack_each(attack, clients.public, clients.observations, effort=effort)
    truth = gallery.images[clients.piece.part]
    each = len(truth) // len(results)
    recovered: list[Tensor | None] = []
    for result, part in zip(results, truth.split(each), strict=True):
        recovered += _matched(part, result)
    rows = [row for row, image in enumerate(recovered) if image is not None]
    scores: dict[int, dict[str, Scalar]] = {}
    if rows:
        index = torch.tensor(rows, device=truth.device) + clients.piece.numbers.start
        images = torch.stack([image for image in recovered if image is not None])
        view, masked = clients.view[rows], clients.masked[rows]
        every = score(clients.public, gallery, index, images, view, masked)
        scores = dict(zip(rows, every, strict=True))
    outcomes = []
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
        outcomes.append((values, image))
    return outcomes


def _matched(
    truth: Float[Tensor, "each 3 height width"], result: AttackResult
) -> list[Tensor] | list[None]:
    """For each picture of a client, the recovered one that is nearest to it."""
    if result.images is None:
        return [None] * len(truth)
    distances = torch.cdist(truth.flatten(1), result.images.to(truth).flatten(1))
    return list(result.images[distances.argmin(dim=1)])
