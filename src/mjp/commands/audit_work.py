"""The long part of an audit: every attack on every picture, written down piece by piece."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from mjp.commands.audit_options import AuditOptions
from mjp.commands.terminal import meter
from mjp.core.errors import MjpError
from mjp.core.interruption import StoppedError, StopRequest
from mjp.core.records import Record, Scalar
from mjp.core.team import Team
from mjp.privacy.attacking import ATTACKS
from mjp.privacy.audit import AuditSettings, Gallery, Outcome, Pictures, Scene, examine, stage
from mjp.privacy.defences import Defence
from mjp.privacy.ledger import KIND, Ledger, key_of
from mjp.privacy.pictures import picture_file
from mjp.privacy.public import PublicModel
from mjp.privacy.summary import summarize


@dataclass(frozen=True, eq=False)
class Work:
    """A model under a defence, to be attacked.

    Args:
        public: the model without the defence.
        facts: conditions of all its records.
    """

    label: str
    public: PublicModel
    defence: Defence
    settings: AuditSettings
    pictures: Pictures
    gallery: Gallery
    facts: Mapping[str, Scalar]
    attacks: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many pictures fill whole updates."""
        each = self.defence.images_per_update
        return len(self.pictures.numbers) // each * each

    def conditions(self, attack: str) -> dict[str, Scalar]:
        """Those of a record of one attack."""
        entry = ATTACKS[attack]
        return {
            **self.facts,
            "attack": attack,
            "attack_about": entry.about,
            "attack_kind": entry.kind,
            "knows_defence": entry.knows_defence,
        }

    def conditions_of(self, attack: str, number: int) -> dict[str, Scalar]:
        """Those of a record of one picture."""
        return {**self.conditions(attack), "image": self.pictures.names[number], "number": number}

    def chunk(self, start: int, stop: int) -> Pictures:
        part = slice(start, stop)
        own = self.pictures
        return Pictures(own.images[part], own.labels[part], own.numbers[part], own.names[part])


@dataclass
class _Progress:
    """Turns shares of pieces of work into whole pictures for a meter."""

    tell: Callable[[int], None]
    done: float = 0.0
    told: int = field(default=0)

    def add(self, share: float) -> None:
        self.done += share
        whole = int(self.done + 1e-6)
        if whole > self.told:
            self.tell(whole - self.told)
            self.told = whole


def attack_all(works: list[Work], options: AuditOptions, team: Team, request: StopRequest) -> None:
    """All attacks on this process's share of the pictures, leaving out what is in the ledger."""
    ledger = Ledger(options.out, team.rank)
    if team.leads and not options.resume:
        ledger.clear()
    team.wait()
    known = set(ledger.found()) if options.resume else set()
    pieces = list(_pieces(works, options, team))
    total = sum(len(work.attacks) * (stop - start) for work, start, stop in pieces)
    with meter("attacking", total, shown=team.leads) as tell:
        progress = _Progress(tell)
        for work, start, stop in pieces:
            scene: Scene | None = None
            public = work.defence.public(work.public)
            for attack in work.attacks:
                keys = [key_of(work.conditions_of(attack, n)) for n in range(start, stop)]
                if all(key in known for key in keys):
                    progress.add(stop - start)
                    continue
                if scene is None:
                    scene = stage(public, work.defence, work.chunk(start, stop), work.settings)
                    _keep(options, work, "client", scene.pictures.numbers, scene.view)
                ledger.add(_attack(work, public, scene, attack, options, progress, request))
                _check_asked_to_stop(request, options)


def _check_asked_to_stop(request: StopRequest, options: AuditOptions) -> None:
    if request.number:
        raise StoppedError(
            f"stopped; what was found is kept in {options.out}: go on with the same command and "
            "--resume",
            request.number,
        )


def _pieces(
    works: list[Work], options: AuditOptions, team: Team
) -> Iterator[tuple[Work, int, int]]:
    """Chunks of pictures under one defence, every so many of them for this process."""
    default = 32 if team.device.type == "cuda" else 4
    number = 0
    for work in works:
        each = work.defence.images_per_update
        size = max(each, (options.chunk or default) // each * each)
        for start in range(0, work.count, size):
            if number % team.size == team.rank:
                yield work, start, min(start + size, work.count)
            number += 1


def _attack(
    work: Work,
    public: PublicModel,
    scene: Scene,
    attack: str,
    options: AuditOptions,
    progress: _Progress,
    request: StopRequest,
) -> list[Record]:
    """The records of one attack on a chunk."""
    count = len(scene.pictures.numbers)
    before = progress.done
    started = time.perf_counter()

    def tell(share: float) -> None:
        if ATTACKS[attack].kind == "search":  # Nobody wants to wait for the end of one.
            _check_asked_to_stop(request, options)
        progress.add(share * count)

    try:
        outcomes = list(examine(public, scene, attack, work.settings, work.gallery, tell))
    except torch.OutOfMemoryError as error:
        raise MjpError(
            f"{attack} on {count} pictures at a time needs more memory than there is; "
            "use a smaller --chunk and --resume"
        ) from error
    if scene.view.is_cuda:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / count
    progress.add(before + count - progress.done)
    _keep_found(options, work, attack, outcomes)
    return [
        Record(KIND, work.conditions_of(attack, one.number), {**one.values, "seconds": seconds})
        for one in outcomes
    ]


def _keep_found(options: AuditOptions, work: Work, attack: str, outcomes: list[Outcome]) -> None:
    for one in outcomes:
        if one.image is not None and one.number < options.show:
            write_picture(picture_file(options.out, work.facts, attack, one.number), one.image)


def _keep(
    options: AuditOptions, work: Work, what: str, numbers: tuple[int, ...], images: Tensor
) -> None:
    for number, image in zip(numbers, images, strict=True):
        if number < options.show:
            write_picture(picture_file(options.out, work.facts, what, number), image)
            original = work.pictures.images[number]
            write_picture(picture_file(options.out, work.facts, "original", number), original)


def write_picture(path: Path, image: Tensor) -> None:
    """Writes pixels in [0, 1] as PNG, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    part = path.with_suffix(".part")
    Image.fromarray(levels).save(part, format="PNG")
    part.replace(path)


def recalled(works: list[Work], options: AuditOptions) -> tuple[list[Record], list[Record]]:
    """The records of all pictures, and one for each model, defence and attack."""
    found = Ledger(options.out, 0).found()
    images: list[Record] = []
    summaries: list[Record] = []
    for work in works:
        baselines = work.gallery.baselines()
        for attack in work.attacks:
            keys = [key_of(work.conditions_of(attack, number)) for number in range(work.count)]
            own = [found[key] for key in keys]
            told = [one.values for one in own]
            summaries.append(
                summarize(work.conditions(attack), told, baselines, len(work.gallery.images))
            )
            # Labels are of this run, not of the one that is gone on with.
            images += [
                Record(KIND, {**one.conditions, "model": work.label}, one.values) for one in own
            ]
    return images, summaries
