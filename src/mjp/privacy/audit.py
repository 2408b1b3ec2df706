"""The audit: clients with a defence, attackers on what they send, and how much came back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.core.ranges import check_at_least, check_count
from mjp.core.records import Scalar
from mjp.core.seeds import generator_for
from mjp.jigsaw import JigsawPlan
from mjp.privacy import metrics, sharing
from mjp.privacy.attacking import ATTACKS, attack_each
from mjp.privacy.defences import Defence
from mjp.privacy.identification import identify
from mjp.privacy.perceptual import Perceptual
from mjp.privacy.public import PublicModel
from mjp.privacy.result import AttackResult, Effort
from mjp.privacy.update import Observation, SharedUpdate


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


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures of clients, in [0, 1], and what they are called.

    Args:
        numbers: of each picture among all that are audited, from 0.
    """

    images: Float[Tensor, "batch 3 height width"]
    labels: Int64[Tensor, " batch"]
    numbers: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Scene:
    """What clients did and sent: the truth, which attackers never see, and the observations.

    Args:
        masked: the patches that the first update's jigsaw moved.
        view: the pictures as the first update's jigsaw left them.
        fidelity: cosine between each update and the gradient of what the model was fed, as it is.
    """

    pictures: Pictures
    observations: list[Observation]
    masked: Bool[Tensor, "batch patches"]
    view: Float[Tensor, "batch 3 height width"]
    fidelity: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an attack got of one picture, beside how good that is."""

    number: int
    name: str
    values: dict[str, Scalar]
    image: Float[Tensor, "3 height width"] | None


@dataclass(frozen=True, eq=False)
class Gallery:
    """All pictures of an audit, which an attacker might pick the right one from.

    Args:
        features: what the public model sees in each.
        perceptual: measures LPIPS; None where no weights were given.
    """

    images: Float[Tensor, "pictures 3 height width"]
    features: Float[Tensor, "pictures dim"]
    perceptual: Perceptual | None = None

    @classmethod
    def of(
        cls,
        public: PublicModel,
        images: Float[Tensor, "pictures 3 height width"],
        perceptual: Perceptual | None = None,
    ) -> "Gallery":
        """The gallery of these pictures, as the model sees them."""
        return cls(images, public.features(public.normalized(images)), perceptual)

    def identified(
        self, public: PublicModel, found: Float[Tensor, "batch 3 height width"], truth: Tensor
    ) -> dict[str, Bool[Tensor, " batch"]]:
        """Whether the picture nearest to each found one is the true one, in two senses."""
        seen = public.features(public.normalized(found))
        return {
            "identified_pixels": identify(found, self.images, truth),
            "identified_features": identify(seen, self.features, truth),
        }

    def baselines(self) -> dict[str, float]:
        """PSNR of guesses that need no gradient: the mean picture, and each one's mean colour."""
        mean, colour = metrics.baseline_images(self.images)
        return {
            "mean": float(metrics.psnr(mean, self.images).mean()),
            "colour": float(metrics.psnr(colour, self.images).mean()),
        }


def stage(
    public: PublicModel, defence: Defence, pictures: Pictures, settings: AuditSettings
) -> Scene:
    """The clients' part: jigsaw, gradients, defence.

    Args:
        public: what the defence's own `public` gave.
    """
    each = defence.images_per_update
    if len(pictures.numbers) % each:
        raise ConfigError(
            f"{len(pictures.numbers)} pictures cannot be divided into updates of {each}; "
            f"use a multiple of {each}"
        )
    clients = len(pictures.numbers) // each
    inputs = public.normalized(pictures.images)
    rounds: list[list[SharedUpdate]] = []
    plans: list[JigsawPlan | None] = []
    fidelity: list[float] = []
    for number in range(settings.rounds):
        plan = _plans(public, defence, pictures, each, number, settings.seed)
        updates, kept = _updates(public, defence, inputs, pictures, plan, number, settings)
        rounds.append(updates)
        plans.append(plan)
        fidelity = fidelity or kept
    first = plans[0]
    none = torch.zeros(len(inputs), public.grid.num_patches, dtype=torch.bool, device=inputs.device)
    return Scene(
        pictures=pictures,
        observations=[tuple(one[place] for one in rounds) for place in range(clients)],
        masked=none if first is None else first.masked,
        view=pictures.images if first is None else first.apply(pictures.images),
        fidelity=tuple(fidelity),
    )


def _plans(
    public: PublicModel,
    defence: Defence,
    pictures: Pictures,
    each: int,
    number: int,
    seed: int,
) -> JigsawPlan | None:
    """Of all clients; each client's is drawn by its first picture's number, whoever is beside."""
    plans = []
    for first in pictures.numbers[::each]:
        generator = generator_for(seed, "audit jigsaw", rank=number, step=first)
        plans.append(defence.draw_plan(public, each, generator))
    if all(plan is None for plan in plans):
        return None
    still = JigsawPlan.identity(public.grid, each, public.device)
    parts = [still if plan is None else plan for plan in plans]
    return JigsawPlan(
        public.grid,
        torch.cat([plan.masked for plan in parts]),
        torch.cat([plan.source for plan in parts]),
    )


def _updates(
    public: PublicModel,
    defence: Defence,
    inputs: Tensor,
    pictures: Pictures,
    plan: JigsawPlan | None,
    number: int,
    settings: AuditSettings,
) -> tuple[list[SharedUpdate], list[float]]:
    """What the clients send in one round, and how much of the gradient's direction is in it."""
    each = defence.images_per_update
    weight = settings.localization_weight
    noises = [
        generator_for(settings.seed, "audit noise", rank=number, step=first)
        for first in pictures.numbers[::each]
    ]
    if each == 1 and defence.local_steps == 1 and not defence.is_private:
        moved, shown = defence.arrange(inputs, plan)
        raw = sharing.share_each(public, moved, pictures.labels, shown, localization_weight=weight)
        updates, kept = [], []
        for one, noise in zip(raw, noises, strict=True):
            sent = defence.process(public, one, noise)
            updates.append(sent)
            kept.append(cosine(one, sent))
        return updates, kept
    updates, kept = [], []
    for client, noise in enumerate(noises):
        part = slice(client * each, (client + 1) * each)
        own = None if plan is None else plan[part]
        labels = pictures.labels[part]
        sent = defence.share(public, inputs[part], labels, own, noise, localization_weight=weight)
        moved, shown = defence.arrange(inputs[part], own)
        raw_one = sharing.share(public, moved, labels, shown, localization_weight=weight)
        updates.append(sent)
        kept += [cosine(raw_one, sent)] * each
    return updates, kept


def cosine(one: SharedUpdate, other: SharedUpdate) -> float:
    """Between two updates; a gradient that is not shared counts as zero."""
    product = lengths = others = 0.0
    for name, gradient in one.gradients.items():
        lengths += float(gradient.double().square().sum())
        if (told := other.get(name)) is not None:
            product += float((gradient.double() * told.double()).sum())
            others += float(told.double().square().sum())
    scale = (lengths * others) ** 0.5
    return product / scale if scale else 0.0


def examine(
    public: PublicModel,
    scene: Scene,
    attack: str,
    settings: AuditSettings,
    gallery: "Gallery",
    tell: Callable[[float], None],
) -> Iterator[Outcome]:
    """The attackers' part on all observations, and how much of each picture came back."""
    effort = Effort(settings.steps, settings.restarts, settings.seed, tell)
    results = attack_each(attack, public, scene.observations, effort=effort)
    each = len(scene.pictures.numbers) // len(results)
    found = [_matched(scene, result, place, each) for place, result in enumerate(results)]
    done = [place for place, images in enumerate(found) if images is not None]
    scores: dict[int, dict[str, Scalar]] = {}
    if done:
        rows = [row for place in done for row in range(place * each, (place + 1) * each)]
        images = torch.cat([one for one in found if one is not None])
        for row, values in zip(rows, score(public, scene, rows, images, gallery), strict=True):
            scores[row] = values
    for row, number in enumerate(scene.pictures.numbers):
        result = results[row // each]
        recovered = found[row // each]
        values = {
            "applies": result.applies,
            "reason": result.reason,
            "fidelity": scene.fidelity[row],
            "masked_patches": int(scene.masked[row].sum()),
            "patches": scene.masked.shape[1],
            "mask_recovered": _mask_found(scene, result, row),
            **dict(result.facts),
            **scores.get(row, {}),
        }
        image = None if recovered is None else recovered[row % each]
        yield Outcome(number, scene.pictures.names[row], values, image)


def score(
    public: PublicModel,
    scene: Scene,
    rows: list[int],
    images: Float[Tensor, "batch 3 height width"],
    gallery: "Gallery",
) -> list[dict[str, Scalar]]:
    """All numbers of the recovered pictures of these rows."""
    truth, view = scene.pictures.images[rows], scene.view[rows]
    images = images.to(truth)  # Attacks give single precision, whatever the clients compute in.
    masked = scene.masked[rows]
    columns: dict[str, Tensor] = {}
    for prefix, other in (("", truth), ("client_", view)):
        columns[f"{prefix}mse"] = metrics.mse(images, other)
        columns[f"{prefix}psnr"] = metrics.psnr(images, other)
        columns[f"{prefix}ssim"] = metrics.ssim(images, other)
        columns[f"{prefix}fft2d"] = metrics.fft2d(images, other)
        if gallery.perceptual is not None:
            columns[f"{prefix}lpips"] = gallery.perceptual(images, other)
    index = torch.tensor([scene.pictures.numbers[row] for row in rows], device=images.device)
    columns |= gallery.identified(public, images, index)
    if bool(masked.any()):
        columns["psnr_masked"] = metrics.psnr_where(images, truth, masked, public.grid)
        columns["psnr_unmasked"] = metrics.psnr_where(images, truth, ~masked, public.grid)
        colour = truth.mean(dim=(2, 3), keepdim=True).expand_as(truth)
        columns["guess_unmasked"] = metrics.psnr_where(colour, truth, ~masked, public.grid)
    lists = {name: values.double().tolist() for name, values in columns.items()}
    return [{name: values[place] for name, values in lists.items()} for place in range(len(rows))]


def _matched(
    scene: Scene, result: AttackResult, place: int, each: int
) -> Float[Tensor, "each 3 height width"] | None:
    """For each picture of a client, the recovered one that is nearest to it."""
    if result.images is None:
        return None
    if each == 1 and len(result.images) == 1:
        return result.images
    own = scene.pictures.images[place * each : (place + 1) * each].flatten(1)
    distances = torch.cdist(own, result.images.to(own).flatten(1))
    return result.images[distances.argmin(dim=1)]


def _mask_found(scene: Scene, result: AttackResult, row: int) -> bool | None:
    if not bool(scene.masked[row].any()):
        return None
    return result.masked is not None and bool(result.masked.equal(scene.masked[row]))


def check_attacks(names: tuple[str, ...]) -> None:
    """Raises unless there are such attacks, each named once."""
    for name in names:
        if name not in ATTACKS:
            raise ConfigError(f"there is no attack {name!r}; there are {', '.join(ATTACKS)}")
    if len(set(names)) < len(names) or not names:
        raise ConfigError(f"name every attack once, and at least one; got {', '.join(names)}")


def predicted(public: PublicModel, pictures: Pictures) -> Pictures:
    """The pictures with the classes that the model takes them for, where none are known."""
    with torch.no_grad():
        found = [
            public.logits(public.normalized(part)).argmax(dim=1)
            for part in pictures.images.split(32)
        ]
    return replace(pictures, labels=torch.cat(found))
