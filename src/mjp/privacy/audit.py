"""`mjp.audit`: clients with defences, attackers on what they send, and how much came back."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mjp.core.configuration import check_count
from mjp.core.errors import ConfigError, MjpError
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.core.team import Team
from mjp.models.facts import digest_of, model_facts
from mjp.privacy.attacks import ATTACKS
from mjp.privacy.clients import AuditSettings, Clients, Piece, attack_step, client_step
from mjp.privacy.defences import Defence, parse_defence
from mjp.privacy.perceptual import Perceptual
from mjp.privacy.pictures import picture_name
from mjp.privacy.public import Loss, PublicModel, as_public
from mjp.privacy.scoring import Gallery, summarize
from mjp.privacy.sharing import Labels, labels_of

Accuracy = Callable[[Sequence[Defence]], Mapping[str, Mapping[str, Scalar]]]
"""Gives values under some defences, by the text of the parts of each that feed the model."""
IMAGE, SUMMARY, ACCURACY = "audit image", "audit", "audit accuracy"
"""The kinds of records that an audit writes."""


@dataclass(frozen=True, eq=False)
class AuditReport:
    """What an audit gave.

    Args:
        records: one of kind `audit` for each defence and attack, with its level and verdict, one
            `audit accuracy` for each defence, and one `audit image` for each picture.
        images: of the pictures that were asked for, by defence, what it is, and number: what the
            attacks of these names recovered, the `original`, and the `client`'s, after its jigsaw.
        masks: the patches that the client's jigsaw moved, by defence and number.
        notes: what has to be said beside the numbers.
    """

    records: tuple[Record, ...] = ()
    images: dict[tuple[str, str, int], Tensor] = field(default_factory=dict)
    masks: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AuditedModel:
    """A model to be audited, with the pictures of its clients.

    Args:
        names: of the pictures.
        conditions: of all its records.
    """

    public: PublicModel
    gallery: Gallery
    labels: Labels
    names: tuple[str, ...]
    settings: AuditSettings
    conditions: dict[str, Scalar]

    def under(self, defence: Defence) -> dict[str, Scalar]:
        """The conditions of a record under a defence."""
        return {**self.conditions, "defence": str(defence), "defence_title": defence.title}

    def attacked(self, defence: Defence, attack: str) -> dict[str, Scalar]:
        """The conditions of a record of an attack."""
        entry = ATTACKS[attack]
        return {
            **self.under(defence),
            "attack": attack,
            "attack_about": entry.about,
            "attack_kind": entry.kind,
            "knows_defence": entry.knows_defence,
        }

    def key(self, defence: Defence, attack: str, number: int) -> str:
        """Of the record of a picture."""
        return Record(IMAGE, self.pictured(defence, attack, number), {}).key()

    def pictured(self, defence: Defence, attack: str, number: int) -> dict[str, Scalar]:
        """The conditions of the record of a picture."""
        own = self.attacked(defence, attack)
        return {**own, "image": self.names[number], "number": number}


def audit(
    model: nn.Module | PublicModel,
    images: Float[Tensor, "pictures 3 height width"],
    labels: Labels = None,
    *,
    attacks: Sequence[str] = ("patch_solve", "adaptive_solve"),
    defences: Sequence[str | Defence] = ("none",),
    rounds: int = 1,
    localization_weight: float = 0.0,
    steps: int | None = None,
    restarts: int | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    label: str = "model",
    names: Sequence[str] = (),
    perceptual: Perceptual | None = None,
    accuracy: Accuracy | None = None,
    conditions: Mapping[str, Scalar] | None = None,
    run: Run | None = None,
    out: Path | None = None,
    resume: bool = False,
    show: int = 0,
    chunk: int | None = None,
    tell: Callable[[float], None] | None = None,
) -> AuditReport:
    """Attacks what clients with each defence send of each picture, and measures what came back.

    Args:
        images: pixels in [0, 1], of the model's size.
        labels: classes, or all else that a batch of the task has; by default what the model says.
        rounds, localization_weight, steps, restarts, seed: as in `AuditSettings`.
        loss: what clients minimise, such as `task.loss`; by default that of a classifier.
        label, names: what to call the model and the pictures in records.
        perceptual: measures LPIPS.
        accuracy: measures it under defences; without it there is none.
        conditions: more conditions of the records.
        run, out: where records and pictures are written, an open run or a folder; or nowhere.
        resume: whether to take what an earlier audit of the same found there.
        show: how many of the pictures to keep.
        chunk: pictures that are worked on together: 32 on a GPU, 4 on a CPU.
        tell: is told the share of the work that was done since; what it raises ends the audit.
    """
    if run is None and out is not None:
        given = {name: value for name, value in locals().items() if name not in ("run", "out")}
        with Run.open(out, seed=seed) as run, run.stoppable():
            return audit(**given, run=run)
    settings = AuditSettings(rounds, localization_weight, steps, restarts, seed)
    public = as_public(model, loss)
    gallery = Gallery.of(public, images, perceptual)
    audited = _audited(public, gallery, labels, tuple(names), settings, label, conditions or {})
    chosen = checked(label, public, len(images), attacks, defences)
    pieces = list(_pieces(audited, chosen, chunk))
    found = dict(run.known) if run is not None and resume else {}
    report = AuditReport(notes=tuple(note for one in chosen for note in one.notes(public)))
    team = Team(0, 1, public.device) if run is None else run.team
    total = len(attacks) * sum(len(piece.numbers) for piece in pieces)
    with _metered(run, total, tell) as advance:
        attacker = _Attacker(audited, report, run, show, advance)
        for turn, attack in product(range(-(-len(pieces) // team.size)), attacks):
            number = turn * team.size + team.rank
            records = attacker.run(pieces[number], attack, found) if number < len(pieces) else []
            found |= {record.key(): record for record in _written(run, records)}
    measured = {} if accuracy is None else accuracy(chosen)
    records = _summaries(audited, chosen, attacks, measured, found, run)
    return replace(report, records=tuple(records))


def checked(
    label: str,
    public: PublicModel,
    count: int,
    attacks: Sequence[str],
    defences: Sequence[str | Defence],
) -> list[Defence]:
    """The defences, each once; an error where they or the attacks cannot be had.

    Args:
        count: how many pictures there are.
    """
    for name in attacks:
        if name not in ATTACKS:
            raise ConfigError(f"there is no attack {name!r}; there are {', '.join(ATTACKS)}")
    if len(set(attacks)) < len(attacks) or not attacks:
        raise ConfigError(f"name every attack once, and at least one; got {', '.join(attacks)}")
    parsed = [parse_defence(one) if isinstance(one, str) else one for one in defences]
    chosen = list({str(defence): defence for defence in parsed}.values())
    if not chosen:
        raise ConfigError("name at least one defence, such as none")
    for defence in chosen:
        try:
            defence.public(public)
        except ConfigError as error:
            raise ConfigError(f"{label} cannot have the defence {defence}: {error}") from error
        if count < (each := defence.images_per_update):
            raise ConfigError(f"the defence {defence} needs at least {each} pictures; raise --most")
    return chosen


def _audited(
    public: PublicModel,
    gallery: Gallery,
    labels: Labels,
    names: tuple[str, ...],
    settings: AuditSettings,
    label: str,
    conditions: Mapping[str, Scalar],
) -> AuditedModel:
    """The model with all conditions of its records."""
    images, surface, perceptual = gallery.images, public.surface, gallery.perceptual
    if labels is None and public.loss is None:
        labels = public.predicted(images)
    named = {"labels": labels} if isinstance(labels, Tensor) else dict(labels or {})
    levels = (images * 255).round().to(torch.uint8)
    dtype = next(public.model.parameters()).dtype
    facts: dict[str, Scalar] = {
        **model_facts(label, public.model),
        "image_size": "x".join(map(str, public.size)),
        "surface": f"{surface.patch_embedding} {surface.layout}, {surface.positions}",
        "mean": " ".join(map(str, public.mean)),
        "std": " ".join(map(str, public.std)),
        "gallery": len(images),
        "rounds": settings.rounds,
        "localization_weight": settings.localization_weight,
        "gradients": {torch.float32: "fp32", torch.float64: "fp64"}.get(dtype, str(dtype)),
        "steps": settings.steps,
        "restarts": settings.restarts,
        "lpips_trunk": None if perceptual is None else perceptual.name,
        "seed": settings.seed,
        "pictures": digest_of({"levels": levels, **named}),
        **conditions,
    }
    if public.loss is not None:
        facts["loss"] = getattr(public.loss, "__qualname__", type(public.loss).__qualname__)
    names = names or tuple(f"picture {number}" for number in range(len(images)))
    return AuditedModel(public, gallery, labels, names, settings, facts)


def _pieces(
    audited: AuditedModel, defences: Sequence[Defence], chunk: int | None
) -> Iterator[Piece]:
    """Pictures that fill whole updates, as many together as there shall be."""
    if chunk is not None:
        check_count("chunk", chunk)
    default = 32 if audited.public.device.type == "cuda" else 4
    for defence in defences:
        each = defence.images_per_update
        size = max(each, (chunk or default) // each * each)
        count = len(audited.names) // each * each
        for start in range(0, count, size):
            yield Piece(defence, tuple(range(start, min(start + size, count))))


class _Attacker:
    """Attacks one piece after the other, and keeps pictures of those that are to be shown."""

    def __init__(
        self,
        audited: AuditedModel,
        report: AuditReport,
        run: Run | None,
        show: int,
        advance: Callable[[float], None],
    ) -> None:
        self._audited, self._report, self._run = audited, report, run
        self._show, self._advance = show, advance
        self._staged: tuple[Piece, Clients] | None = None

    def run(self, piece: Piece, attack: str, found: Mapping[str, Record]) -> list[Record]:
        """The records of an attack on a piece; none where they were found before."""
        audited, count = self._audited, len(piece.numbers)
        if all(audited.key(piece.defence, attack, number) in found for number in piece.numbers):
            self._advance(count)
            return []
        clients = self._clients(piece)
        started, done = time.perf_counter(), 0.0

        def tell(share: float) -> None:
            nonlocal done
            if self._run is not None and ATTACKS[attack].kind == "search":
                self._run.check_stop()  # Nobody wants to wait for the end of one.
            done += share * count
            self._advance(share * count)

        try:
            outcomes = attack_step(clients, piece, audited.gallery, attack, audited.settings, tell)
        except torch.OutOfMemoryError as error:
            raise MjpError(
                f"{attack} on {count} pictures at a time needs more memory than there is; "
                "use a smaller --chunk and --resume"
            ) from error
        if clients.view.is_cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - started) / count
        self._advance(count - done)
        records = []
        for number, (values, image) in zip(piece.numbers, outcomes, strict=True):
            conditions = audited.pictured(piece.defence, attack, number)
            records.append(Record(IMAGE, conditions, {**values, "seconds": seconds}))
            if image is not None:
                self._keep(piece.defence, attack, number, image)
        return records

    def _clients(self, piece: Piece) -> Clients:
        """Those of a piece, who do their part once."""
        if self._staged is None or self._staged[0] is not piece:
            audited, images = self._audited, self._audited.gallery.images[piece.part]
            labels = labels_of(audited.labels, piece.part)
            clients = client_step(audited.public, piece, images, labels, audited.settings)
            self._staged = piece, clients
            for row, number in enumerate(piece.numbers):
                original = images[row]
                self._keep(piece.defence, "original", number, original)
                self._keep(piece.defence, "client", number, clients.view[row])
                if number < self._show:
                    self._report.masks[str(piece.defence), number] = clients.masked[row]
            self._advance(0)
        return self._staged[1]

    def _keep(self, defence: Defence, what: str, number: int, image: Tensor) -> None:
        if number >= self._show:
            return
        self._report.images[str(defence), what, number] = image
        if self._run is not None:
            conditions = self._audited.under(defence)
            with self._run.file(picture_name(conditions, what, number)) as path:
                write_picture(path, image)


def write_picture(path: Path, image: Tensor) -> None:
    """Writes pixels in [0, 1] as PNG."""
    levels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    Image.fromarray(levels).save(path, format="PNG")


def _written(run: Run | None, records: list[Record]) -> list[Record]:
    """The records of all processes, as they stand in the folder, if there is one."""
    if run is None:
        return records
    written = run.write(*run.team.gathered(records))
    run.check_stop(together=True)
    return written


@contextmanager
def _metered(
    run: Run | None, total: int, tell: Callable[[float], None] | None
) -> Iterator[Callable[[float], None]]:
    """What is told how many pictures were attacked, or shares of one, and tells it on."""
    if run is None:
        yield lambda pictures: None if tell is None else tell(pictures / total)
        return
    done = shown = 0.0
    with run.progress("attacking", -(-total // run.team.size)) as advance:

        def count(pictures: float) -> None:
            nonlocal done, shown
            done += pictures
            whole = int(done + 1e-6) - int(shown)
            shown += whole
            advance(whole)
            if tell is not None:
                tell(pictures / total)

        yield count


def _summaries(
    audited: AuditedModel,
    defences: Sequence[Defence],
    attacks: Sequence[str],
    accuracies: Mapping[str, Mapping[str, Scalar]],
    found: Mapping[str, Record],
    run: Run | None,
) -> list[Record]:
    """Records of what came of each attack and each defence; then those of all pictures."""
    baselines, gallery = audited.gallery.baselines(), len(audited.names)
    summaries, costs, every = [], [], []
    for defence in defences:
        count = len(audited.names) // defence.images_per_update * defence.images_per_update
        images = []
        for attack in attacks:
            conditions = audited.attacked(defence, attack)
            own = [found[audited.key(defence, attack, number)] for number in range(count)]
            values = [record.values for record in own]
            summary = summarize(conditions, values, baselines, gallery)
            summaries.append(Record(SUMMARY, conditions, summary))
            images += own
        measured = accuracies.get(str(defence.feeding))
        fidelity = [float(str(record.values["fidelity"])) for record in images]
        cost: dict[str, Scalar] = {
            **(measured or {"top1": None}),
            "fidelity": sum(fidelity) / len(fidelity) if fidelity else None,
            "epsilon": defence.epsilon(),
            "accuracy_note": defence.accuracy_note if measured else "accuracy was not measured",
        }
        costs.append(
            Record(ACCURACY, {**audited.under(defence), "defence_about": defence.about}, cost)
        )
        every += images
    if run is None:
        return [*summaries, *costs, *every]
    # Once more, so that all records of this audit stand together, in order.
    return [*run.write(*summaries, *costs), *run.write(*every, environment=False)]
