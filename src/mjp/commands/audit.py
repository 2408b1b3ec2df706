"""`mjp audit`: attacks x defences x pictures, in tables, pictures and one report."""

import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mjp import __version__
from mjp.commands.audit_accuracy import accuracies, outputs_of
from mjp.commands.audit_options import DEFAULT_MODEL, DEFAULT_SIZE, AuditOptions
from mjp.commands.audit_pictures import Album, open_album
from mjp.commands.audit_results import present
from mjp.commands.audit_update import audit_update
from mjp.commands.audit_work import Work, attack_all, recalled
from mjp.commands.evaluating import claim
from mjp.commands.terminal import choose_device, hardware, meter
from mjp.core.errors import ConfigError
from mjp.core.interruption import stop_requests
from mjp.core.precision import float32_precision
from mjp.core.ranges import check_count, check_crop
from mjp.core.records import Record, Scalar, append_records
from mjp.core.seeds import generator_for
from mjp.core.team import Team, joined
from mjp.data.decoding import View
from mjp.data.source import Source, drawn
from mjp.models.facts import digest_of, model_facts
from mjp.models.opening import open_models
from mjp.models.surface import SurfaceNames
from mjp.privacy.audit import AuditSettings, Gallery, Pictures, check_attacks, predicted
from mjp.privacy.defences import Defence, parse_defence
from mjp.privacy.perceptual import Perceptual, open_perceptual
from mjp.privacy.public import PublicModel


@dataclass(frozen=True, eq=False)
class Suspect:
    """A model to be audited, with what it is shown."""

    label: str
    public: PublicModel
    facts: dict[str, Scalar]
    pictures: Pictures
    gallery: Gallery
    outputs: Tensor | None
    view: View


def run(options: AuditOptions) -> None:
    """Attacks, measures, prints, draws."""
    if not options.model:
        if options.update is not None:
            raise ConfigError("an update is of one model: name it with --model MODEL")
        size = options.size or DEFAULT_SIZE
        options = replace(options, model=(DEFAULT_MODEL,), size=size)
    settings = AuditSettings(
        options.rounds, options.localization_weight, options.steps, options.restarts, options.seed
    )
    check_attacks(options.attacks)
    defences = _defences(options.defences)
    for name in ("most", "chunk"):
        if getattr(options, name) is not None:
            check_count(name, getattr(options, name))
    for name in ("accuracy", "show"):
        check_count(name, getattr(options, name), 0)
    check_crop(options.crop)
    claim(options.out)
    device = choose_device(options.device)
    with joined(device) as team, float32_precision("fp32"):
        models = _opened(options, team.device)
        if options.update is not None:
            if team.leads:
                audit_update(options, models)
            return
        album, whole = open_album(options.images, options.most, options.seed)
        perceptual = _perceptual(options.lpips, team.device)
        suspects = [
            _suspect(label, public, album, perceptual, options, team)
            for label, public in models.items()
        ]
        for suspect in suspects:
            _check_defences(suspect, defences)
        works = [_work(one, defence, settings, options) for one in suspects for defence in defences]
        with stop_requests() as request:
            attack_all(works, options, team, request)
        team.wait()
        extra = _accuracy_records(suspects, defences, whole, options, team)
        if not team.leads:
            return
    images, summaries = recalled(works, options)
    records = [*summaries, *extra(images), *images]
    append_records(options.out / "records.jsonl", records)
    command = shlex.join(["mjp", *sys.argv[1:]])
    notes = [note for one in suspects for defence in defences for note in defence.notes(one.public)]
    told = tuple(dict.fromkeys(notes))
    present(records, options, command, told)


def _defences(texts: tuple[str, ...]) -> list[Defence]:
    found = {str(defence): defence for defence in map(parse_defence, texts)}
    if not found:
        raise ConfigError("name at least one defence, such as none")
    return list(found.values())


def _opened(options: AuditOptions, device: torch.device) -> dict[str, PublicModel]:
    """The models as the public sees them."""
    names = SurfaceNames(
        options.patch_embedding, options.positions, options.classifier, options.patch_layout
    )
    dtype = torch.float64 if options.gradients == "fp64" else torch.float32
    found = {}
    for label, model in open_models(options.model, options.size).items():
        public = PublicModel.of(
            model.to(device, dtype),
            names=names,
            size=options.size,
            mean=options.mean,
            std=options.std,
        )
        found[label] = public
    return found


def _perceptual(path: Path | None, device: torch.device) -> Perceptual | None:
    return None if path is None else open_perceptual(path).to(device)


def _suspect(
    label: str,
    public: PublicModel,
    album: Album,
    perceptual: Perceptual | None,
    options: AuditOptions,
    team: Team,
) -> Suspect:
    view = View(public.size, options.crop)
    dtype = next(public.model.parameters()).dtype
    levels = album.shown(view)
    images = levels.to(team.device, dtype) / 255
    outputs = outputs_of(public.model, album.source)
    labels = torch.zeros(len(images), dtype=torch.int64, device=team.device)
    pictures = Pictures(images, labels, tuple(range(len(images))), album.names)
    if outputs is None or album.source is None:
        pictures = predicted(public, pictures)
    else:
        own = torch.as_tensor(album.source.labels)
        pictures = Pictures(images, outputs[own].to(team.device), pictures.numbers, album.names)
    return Suspect(
        label=label,
        public=public,
        facts={
            **_facts(label, public, album, options, perceptual, team),
            "pictures": digest_of({"levels": levels, "labels": pictures.labels}),
        },
        pictures=pictures,
        gallery=Gallery.of(public, images, perceptual),
        outputs=outputs,
        view=view,
    )


def _facts(
    label: str,
    public: PublicModel,
    album: Album,
    options: AuditOptions,
    perceptual: Perceptual | None,
    team: Team,
) -> dict[str, Scalar]:
    """All conditions of one model's numbers, for records."""
    surface = public.surface
    return {
        **model_facts(label, public.model),
        "image_size": "x".join(map(str, public.size)),
        "surface": f"{surface.patch_embedding} {surface.layout}, {surface.positions}",
        "mean": " ".join(map(str, public.mean)),
        "std": " ".join(map(str, public.std)),
        "crop": options.crop,
        "data": album.title,
        "gallery": len(album.names),
        "rounds": options.rounds,
        "localization_weight": options.localization_weight,
        "gradients": options.gradients,
        "steps": options.steps,
        "restarts": options.restarts,
        "lpips_trunk": None if perceptual is None else perceptual.name,
        "seed": options.seed,
        "processes": team.size,
        "hardware": hardware(team.device),
        "mjp": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _check_defences(suspect: Suspect, defences: list[Defence]) -> None:
    """Raises before any work where a model cannot have one of the defences."""
    for defence in defences:
        try:
            defence.public(suspect.public)
        except ConfigError as error:
            raise ConfigError(
                f"{suspect.label} cannot have the defence {defence}: {error}"
            ) from error
        each = defence.images_per_update
        if len(suspect.pictures.numbers) < each:
            raise ConfigError(f"the defence {defence} needs at least {each} pictures; raise --most")


def _work(
    suspect: Suspect, defence: Defence, settings: AuditSettings, options: AuditOptions
) -> Work:
    return Work(
        label=suspect.label,
        public=suspect.public,
        defence=defence,
        settings=settings,
        pictures=suspect.pictures,
        gallery=suspect.gallery,
        facts={
            **suspect.facts,
            "defence": str(defence),
            "defence_title": defence.title,
        },
        attacks=options.attacks,
    )


def _accuracy_records(
    suspects: list[Suspect],
    defences: list[Defence],
    whole: Source | None,
    options: AuditOptions,
    team: Team,
) -> Callable[[list[Record]], Iterator[Record]]:
    """Measures accuracy where the pictures have classes; makes the records with the fidelity."""
    found: dict[tuple[str, str], dict[str, Scalar]] = {}
    for suspect in suspects:
        if whole is None or suspect.outputs is None or not options.accuracy:
            continue
        some = drawn(whole, options.accuracy, generator_for(options.seed, "accuracy images"))
        views = [(defence, defence.public(suspect.public)) for defence in defences]
        passes = len({defence.feeding for defence in defences})
        with _metered(f"accuracy of {suspect.label}", passes * len(some), team) as tell:
            values = accuracies(
                views, some, suspect.outputs, suspect.view, team, options.seed, tell
            )
        found |= {(suspect.label, name): one for name, one in values.items()}

    def make(images: list[Record]) -> Iterator[Record]:
        for suspect in suspects:
            for defence in defences:
                told = [
                    float(str(one.values["fidelity"]))
                    for one in images
                    if one.conditions["defence"] == str(defence)
                    and one.conditions["model"] == suspect.label
                ]
                own = found.get((suspect.label, str(defence)))
                values: dict[str, Scalar] = dict(own or {"top1": None})
                values["fidelity"] = sum(told) / len(told) if told else None
                values["epsilon"] = defence.epsilon()
                values["accuracy_note"] = (
                    defence.accuracy_note if own else "accuracy was not measured"
                )
                conditions = {
                    **suspect.facts,
                    "defence": str(defence),
                    "defence_title": defence.title,
                    "defence_about": defence.about,
                }
                yield Record("audit accuracy", conditions, values)

    return make


@contextmanager
def _metered(what: str, total: int, team: Team) -> Iterator[Callable[[int], None]]:
    with meter(what, -(-total // team.size), shown=team.leads) as tell:
        yield tell
