"""`Trial`: one attack on one picture, as an audit does it, and what came of it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from mjp import __version__
from mjp.core.errors import ConfigError
from mjp.core.records import Record, Scalar
from mjp.core.seeds import generator_for
from mjp.data.decoding import View
from mjp.jigsaw import JigsawPlan
from mjp.models.facts import architecture_of, fingerprint
from mjp.privacy.attacking import ATTACKS
from mjp.privacy.audit import (
    AuditSettings,
    Gallery,
    Outcome,
    Pictures,
    Scene,
    examine,
    predicted,
    stage,
)
from mjp.privacy.defences import Defence
from mjp.privacy.public import PublicModel
from mjp.privacy.summary import summarize
from mjp.web.drawing import masked_blocks, picture_of, png
from mjp.web.refusing import RefusedError
from mjp.web.shelf import Shelf

Attempt = Callable[["Trial", Callable[[float], None]], "Finding"]
"""Runs a trial, telling the share of the work that was done since it last told."""
PICTURES = ("picture", "masked", "shuffled", "recovered")
"""What a trial shows, in this order."""


@dataclass(frozen=True, eq=False)
class Trial:
    """What a visitor asked for, checked.

    Args:
        name: what the picture is called in records; never a file of the visitor's.
        model: key of the model.
        label: what people call the model.
    """

    picture: Image.Image
    name: str
    model: str
    label: str
    defence: Defence
    attack: str
    settings: AuditSettings


@dataclass(frozen=True, eq=False)
class Finding:
    """What came of a trial.

    Args:
        pictures: PNG files by their names of `PICTURES`; no `recovered` where nothing was.
    """

    record: Record
    pictures: Mapping[str, bytes]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Preview:
    """What the client does to a picture before anything is attacked."""

    plan: JigsawPlan
    pictures: Mapping[str, bytes]


def preview(public: PublicModel, picture: Image.Image, defence: Defence, seed: int) -> Preview:
    """The jigsaw that a trial with this seed will have, drawn."""
    plan = plan_of(public, defence, seed)
    image = shown(public, picture)
    found = {
        "picture": png(picture_of(image), 1),
        "masked": png(masked_blocks(image, plan.masked[0], plan.grid), 1),
        "shuffled": png(picture_of(plan.apply(image[None])[0]), 1),
    }
    return Preview(plan, found)


def plan_of(public: PublicModel, defence: Defence, seed: int) -> JigsawPlan:
    """The jigsaw that `stage` draws for the first picture; one that moves nothing for none."""
    generator = generator_for(seed, "audit jigsaw", rank=0, step=0)
    try:
        plan = defence.draw_plan(public, 1, generator)
    except ConfigError as error:
        raise RefusedError(422, f"{str(error)[0].upper()}{str(error)[1:]}.") from error
    return plan or JigsawPlan.identity(public.grid, 1, public.device)


def shown(public: PublicModel, picture: Image.Image) -> Tensor:
    """The picture as the model is shown it: (3, height, width), in [0, 1]."""
    levels = torch.as_tensor(View(public.size).transform()(picture))
    dtype = next(public.model.parameters()).dtype
    return levels.to(public.device, dtype) / 255


class Bench:
    """Where one thread tries things: it has models of its own, which no other thread touches."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._models: dict[str, PublicModel] = {}

    def attempt(self, trial: Trial, tell: Callable[[float], None]) -> Finding:
        """Runs a trial.

        Args:
            tell: is told the share of the work that was done since; what it raises ends the trial.
        """
        if trial.model not in self._models:
            self._models[trial.model] = self._shelf.copy(trial.model)
        tell(0.0)
        return attempt(trial, self._models[trial.model], tell)


def attempt(trial: Trial, public: PublicModel, tell: Callable[[float], None]) -> Finding:
    """Client, defence, attack and numbers for one picture."""
    started = time.perf_counter()
    image = shown(public, trial.picture)[None]
    labels = torch.zeros(1, dtype=torch.int64, device=image.device)
    pictures = predicted(public, Pictures(image, labels, (0,), (trial.name,)))
    defended = trial.defence.public(public)
    scene = stage(defended, trial.defence, pictures, trial.settings)
    tell(0.0)
    gallery = Gallery.of(public, image)
    (outcome,) = examine(defended, scene, trial.attack, trial.settings, gallery, tell)
    seconds = time.perf_counter() - started
    values = {**outcome.values, "seconds": seconds}
    record = summarize(_conditions(trial, public), [values], gallery.baselines(), 1)
    record = Record("trial", record.conditions, _own(record.values, values))
    return Finding(record, _drawn(scene, defended, outcome), trial.defence.notes(public))


def _drawn(scene: Scene, public: PublicModel, outcome: Outcome) -> dict[str, bytes]:
    image = scene.pictures.images[0]
    found = {
        "picture": png(picture_of(image)),
        "masked": png(masked_blocks(image, scene.masked[0], public.grid)),
        "shuffled": png(picture_of(scene.view[0])),
    }
    if outcome.image is not None:
        found["recovered"] = png(picture_of(outcome.image))
    return found


def _conditions(trial: Trial, public: PublicModel) -> dict[str, Scalar]:
    """All that decides what comes out."""
    attack, settings = ATTACKS[trial.attack], trial.settings
    return {
        "model": trial.label,
        "architecture": architecture_of(public.model),
        "weights": fingerprint(public.model),
        "image": trial.name,
        "image_size": "x".join(map(str, public.size)),
        "patches": public.grid.num_patches,
        "defence": str(trial.defence),
        "defence_title": trial.defence.title,
        "epsilon": trial.defence.epsilon(),
        "attack": trial.attack,
        "attack_kind": attack.kind,
        "knows_defence": attack.knows_defence,
        "rounds": settings.rounds,
        "steps": settings.steps,
        "restarts": settings.restarts,
        "seed": settings.seed,
        "mjp": __version__,
        "torch": torch.__version__,
    }


LEFT_OUT = ("identified", "gallery", "psnr_low", "psnr_high", "ssim_low", "ssim_high")
"""Of one picture there is nothing to pick from and no spread."""


def _own(summary: Mapping[str, Scalar], values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The summary's words beside the picture's own numbers."""
    found = {**values, **{name: one for name, one in summary.items() if one is not None}}
    return {name: one for name, one in found.items() if not name.startswith(LEFT_OUT)}
