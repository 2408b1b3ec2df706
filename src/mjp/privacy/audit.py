"""`mjp.audit`: clients with defences, attackers on what they send, and how much came back."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mjp.core.configuration import check_count, suggestion
from mjp.core.errors import ConfigError, MjpError
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.core.team import Team
from mjp.models.subject import digest_of, model_facts
from mjp.privacy.attacks import ATTACKS
from mjp.privacy.clients import Clients, Piece, attack_step, client_step
from mjp.privacy.defences import Defence, parse_defence
from mjp.privacy.perceptual import Perceptual
from mjp.privacy.pictures import picture_name
from mjp.privacy.public import Loss, PublicModel, as_public
from mjp.privacy.scoring import Gallery, summarize
from mjp.privacy.sharing import Labels, labels_of
from mjp.privacy.update import Effort
from mjp.report import table

Accuracy = Callable[[Sequence[Defence]], Mapping[str, Mapping[str, Scalar]]]
"""Gives values under some defences, by the text of the parts of each that feed the model."""


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
        rounds: updates that a client sends of the same pictures, each under a mask of its own.
        localization_weight: λ of MJP's localization loss in the clients' loss.
        steps, restarts: of attacks that search; by default each attack's own.
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
    public = as_public(model, loss)
    chosen = checked(label, public, len(images), attacks, defences)
    if labels is None and public.loss is None:
        labels = public.predicted(images)
    how = {"rounds": rounds, "localization_weight": localization_weight, "seed": seed}
    effort = Effort(steps, restarts, seed)
    facts = {**_facts(label, public, images, labels), **how, **(conditions or {})}
    facts |= {"steps": steps, "restarts": restarts}
    facts["lpips_trunk"] = None if perceptual is None else perceptual.name
    gallery = Gallery(images, public.features(public.normalized(images)), perceptual)
    names = names or [f"picture {number}" for number in range(len(images))]
    report = AuditReport(notes=tuple(note for defence in chosen for note in defence.notes(public)))
    audited = Audited(public, gallery, labels, names, effort, facts, report, run, show)
    most = chunk if chunk is not None else 32 if public.device.type == "cuda" else 4
    pieces = [
        Piece(defence, numbers, rounds, localization_weight, seed)
        for defence in chosen
        for numbers in _cut(len(images), defence.images_per_update, most)
    ]
    known = dict(run.known) if run is not None and resume else {}
    team = Team(0, 1, public.device) if run is None else run.team
    total = len(attacks) * sum(len(piece.numbers) for piece in pieces)
    with _metered(run, total, tell) as advance:
        for turn in range(team.rank, len(pieces) + team.rank, team.size):
            piece = pieces[turn] if turn < len(pieces) else None
            for records in audited.attacked(piece, attacks, known, advance):
                known |= {record.key(): record for record in _written(run, records)}
    measured = {} if accuracy is None else accuracy(chosen)
    return replace(report, records=audited.summed_up(chosen, attacks, known, measured))


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
            raise ConfigError(f"there is no attack {name!r}{suggestion(name, list(ATTACKS))}")
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


def _facts(label: str, public: PublicModel, images: Tensor, labels: Labels) -> dict[str, Scalar]:
    """The conditions of model and pictures."""
    surface, dtype = public.surface, next(public.model.parameters()).dtype
    named = {"labels": labels} if isinstance(labels, Tensor) else dict(labels or {})
    levels = (images * 255).round().to(torch.uint8)
    facts: dict[str, Scalar] = {
        **model_facts(label, public.model),
        "image_size": "x".join(map(str, public.size)),
        "surface": f"{surface.patch_embedding} {surface.layout}, {surface.positions}",
        "mean": " ".join(map(str, public.mean)),
        "std": " ".join(map(str, public.std)),
        "gallery": len(images),
        "gradients": {torch.float32: "fp32", torch.float64: "fp64"}.get(dtype, str(dtype)),
        "pictures": digest_of({"levels": levels, **named}),
    }
    if public.loss is not None:
        facts["loss"] = getattr(public.loss, "__qualname__", type(public.loss).__qualname__)
    return facts


def _cut(count: int, each: int, most: int) -> Iterator[range]:
    """Numbers of pictures that fill whole updates, as many together as there shall be."""
    check_count("chunk", most)
    whole, size = count // each * each, max(each, most // each * each)
    for start in range(0, whole, size):
        yield range(start, min(start + size, whole))


@dataclass(frozen=True, eq=False)
class Audited:
    """A model that is audited, with the pictures of its clients.

    Args:
        names: of the pictures.
        conditions: of all its records.
        report: gets the pictures that are kept.
        show: how many of the pictures to keep.
    """

    public: PublicModel
    gallery: Gallery
    labels: Labels
    names: Sequence[str]
    effort: Effort
    conditions: dict[str, Scalar]
    report: AuditReport
    run: Run | None
    show: int

    def under(self, defence: Defence, attack: str = "") -> dict[str, Scalar]:
        """The conditions of a record under a defence, of an attack on it."""
        told = {**self.conditions, "defence": str(defence), "defence_title": defence.title}
        if attack:
            entry = ATTACKS[attack]
            told |= {"attack": attack, "attack_about": entry.about, "attack_kind": entry.kind}
            told["knows_defence"] = entry.knows_defence
        return told

    def pictured(self, defence: Defence, attack: str, number: int) -> dict[str, Scalar]:
        """The conditions of the record of a picture."""
        return {**self.under(defence, attack), "image": self.names[number], "number": number}

    def key(self, defence: Defence, attack: str, number: int) -> str:
        """Of the record of a picture."""
        return Record("audit image", self.pictured(defence, attack, number), {}).key()

    def attacked(
        self,
        piece: Piece | None,
        attacks: Sequence[str],
        known: Mapping[str, Record],
        advance: Callable[[float], None],
    ) -> Iterator[list[Record]]:
        """For each attack the records of some pictures; none where they are known, or no piece."""
        clients = None
        for attack in attacks:
            if piece is None:
                yield []
            elif all(self.key(piece.defence, attack, place) in known for place in piece.numbers):
                advance(float(len(piece.numbers)))
                yield []
            else:
                clients = clients or self.clients(piece)
                advance(0.0)
                yield self.records(clients, attack, advance)

    def clients(self, piece: Piece) -> Clients:
        """Those of some pictures, who have done their part."""
        images, labels = self.gallery.images[piece.part], labels_of(self.labels, piece.part)
        clients = client_step(self.public, piece, images, labels)
        for row, number in enumerate(piece.numbers):
            self.keep(piece.defence, "original", number, images[row])
            self.keep(piece.defence, "client", number, clients.view[row])
            if number < self.show:
                self.report.masks[str(piece.defence), number] = clients.masked[row]
        return clients

    def records(
        self, clients: Clients, attack: str, advance: Callable[[float], None]
    ) -> list[Record]:
        """What an attack makes of what the clients sent."""
        piece, count = clients.piece, len(clients.piece.numbers)
        started, done = time.perf_counter(), 0.0

        def tell(share: float) -> None:
            nonlocal done
            if self.run is not None and ATTACKS[attack].kind == "search":
                self.run.check_stop()  # Nobody wants to wait for the end of one.
            done += share * count
            advance(share * count)

        try:
            effort = replace(self.effort, tell=tell)
            outcomes = attack_step(clients, self.gallery, attack, effort)
        except torch.OutOfMemoryError as error:
            raise MjpError(
                f"{attack} on {count} pictures at a time needs more memory than there is; "
                "use a smaller --chunk and --resume"
            ) from error
        if clients.view.is_cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - started) / count
        advance(count - done)
        records = []
        for number, (values, image) in zip(piece.numbers, outcomes, strict=True):
            conditions = self.pictured(piece.defence, attack, number)
            records.append(Record("audit image", conditions, {**values, "seconds": seconds}))
            if image is not None:
                self.keep(piece.defence, attack, number, image)
        return records

    def keep(self, defence: Defence, what: str, number: int, image: Tensor) -> None:
        """Keeps a picture, if it is one of those that are to be shown."""
        if number >= self.show:
            return
        self.report.images[str(defence), what, number] = image
        if self.run is not None:
            with self.run.file(picture_name(self.under(defence), what, number)) as path:
                write_picture(path, image)

    def summed_up(
        self,
        defences: Sequence[Defence],
        attacks: Sequence[str],
        known: Mapping[str, Record],
        accuracies: Mapping[str, Mapping[str, Scalar]],
    ) -> tuple[Record, ...]:
        """Records of what came of each attack and each defence; then those of all pictures."""
        baselines = self.gallery.baselines()
        summaries, costs, every = [], [], []
        for defence in defences:
            each = defence.images_per_update
            fidelities: list[float] = []
            for attack in attacks:
                count = len(self.names) // each * each
                pictures = [known[self.key(defence, attack, place)] for place in range(count)]
                values = [record.values for record in pictures]
                knows = ATTACKS[attack].knows_defence and bool(defence.parts)
                summary = summarize(values, baselines, knows, len(self.names))
                summaries.append(Record("audit", self.under(defence, attack), summary))
                fidelities += [table.number(one, "fidelity") or 0.0 for one in values]
                every += pictures
            measured = accuracies.get(str(defence.feeding))
            cost: dict[str, Scalar] = {
                **(measured or {"top1": None}),
                "fidelity": sum(fidelities) / len(fidelities),
                "epsilon": defence.epsilon(),
                "accuracy_note": defence.accuracy_note if measured else "accuracy was not measured",
            }
            told = {**self.under(defence), "defence_about": defence.about}
            costs.append(Record("audit accuracy", told, cost))
        if self.run is None:
            return (*summaries, *costs, *every)
        written = self.run.write(*summaries, *costs)
        # Once more, so that the file is written anew, without lines that were cut off.
        return (*written, *self.run.write(*every, environment=False))


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
    done, shown = 0.0, 0
    meter = nullcontext() if run is None else run.progress("attacking", -(-total // run.team.size))
    with meter as show:

        def advance(pictures: float) -> None:
            nonlocal done, shown
            done += pictures
            whole = int(done + 1e-6) - shown
            shown += whole
            if show is not None:
                show(whole)
            if tell is not None:
                tell(pictures / total)

        yield advance
