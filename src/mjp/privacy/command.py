"""`mjp audit`: attacks x defences x pictures, in tables, pictures and one report."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from mjp.core.configuration import check_count, check_crop
from mjp.core.display import meter, results
from mjp.core.errors import ConfigError, DataError, UnsupportedModelError
from mjp.core.records import Record, Scalar
from mjp.core.run import Run, command_line
from mjp.core.seeds import generator_for
from mjp.core.statistics import estimates
from mjp.core.team import float32_precision
from mjp.data.decoding import Decoder, Reader, View
from mjp.data.embedded import PHOTOGRAPHS, photograph
from mjp.data.feed import worker_count
from mjp.data.opening import open_images
from mjp.data.source import Sample, Source, drawn, pictures_under
from mjp.models.facts import class_outputs, fingerprint
from mjp.models.opening import open_models
from mjp.models.surface import SurfaceNames
from mjp.privacy import tables
from mjp.privacy.attacks import attack
from mjp.privacy.audit import AuditReport, audit, checked, write_picture
from mjp.privacy.config import DEFAULT_MODEL, DEFAULT_SIZE, AuditOptions
from mjp.privacy.defences import Defence
from mjp.privacy.perceptual import Perceptual, open_perceptual
from mjp.privacy.pictures import draw_grids, file_name
from mjp.privacy.public import PublicModel
from mjp.privacy.update import Effort, SharedUpdate
from mjp.report.page import write_report
from mjp.report.table import Column, FilledTable, Row, Table, format_scalar, to_terminal

UPDATE = Table(
    "audit update",
    "attacks; without the pictures nobody can say how good these are: look",
    (
        Column("Attack", "attack", numeric=False),
        Column("Applies", "applies", numeric=False),
        Column("Remarks", "reason", numeric=False),
    ),
)


@dataclass(frozen=True, eq=False)
class Pictures:
    """The pictures that an audit is about, undecoded.

    Args:
        whole: the data set they are of; None for pictures without classes.
        part: those of it that are audited.
    """

    title: str
    names: tuple[str, ...]
    samples: tuple[Sample, ...]
    whole: Source | None = None
    part: Source | None = None

    def shown(self, view: View) -> UInt8[Tensor, "pictures 3 height width"]:
        """The pictures as a model is shown them, in levels."""
        cut = view.transform()
        rows = []
        for name, sample in zip(self.names, self.samples, strict=True):
            try:
                rows.append(torch.as_tensor(cut(sample.decode())))
            except (DataError, OSError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise DataError(f"{name} {reason}") from error
        return torch.stack(rows)


def run_audit(options: AuditOptions) -> None:
    """Attacks, measures, prints, draws."""
    if not options.model:
        if options.update is not None:
            raise ConfigError("an update is of one model: name it with --model MODEL")
        options = replace(options, model=(DEFAULT_MODEL,), size=options.size or DEFAULT_SIZE)
    _check(options)
    with (
        Run.open(options.out, device=options.device, seed=options.seed) as run,
        float32_precision("fp32"),
        run.stoppable(),
    ):
        models = _opened(options, run.device)
        if options.update is not None:
            if run.leads:
                _audit_update(options, models, run)
            return
        pictures = open_pictures(options.images, options.most, options.seed)
        perceptual = None if options.lpips is None else open_perceptual(options.lpips)
        for label, public in models.items():
            checked(label, public, len(pictures.names), options.attacks, options.defences)
        reports = [
            _audited(label, public, pictures, perceptual, options, run)
            for label, public in models.items()
        ]
        if run.leads:
            _present(reports, options, run)


def open_pictures(where: str, most: int, seed: int) -> Pictures:
    """So many of the pictures: bundled ones, a person's own, or of a data set."""
    if where == "photographs":
        names = PHOTOGRAPHS[:most]
        samples = tuple(Sample(np.asarray(photograph(name)), 0) for name in names)
        return Pictures(f"{len(names)} bundled photographs", names, samples)
    files = _loose_pictures(Path(where).expanduser())[:most]
    if files:
        samples = tuple(Sample(file, 0) for file in files)
        return Pictures(f"{len(files)} pictures", tuple(file.name for file in files), samples)
    whole = open_images(where)
    part = drawn(whole, most, generator_for(seed, "images"))
    names = tuple(part.name_of(index) for index in range(len(part)))
    samples = tuple(part[index] for index in range(len(part)))
    return Pictures(part.name, names, samples, whole, part)


def _loose_pictures(path: Path) -> list[Path]:
    """A picture, or those that lie in a folder by themselves; none for a data set."""
    if path.is_file():
        return [] if path.suffix in (".parquet", ".tar") else [path]
    if not path.is_dir():
        raise DataError(f"there is no picture, folder or data set {path}")
    own = {file.name for file in path.iterdir() if file.is_file()}
    return sorted(file for file in pictures_under(path) if file.parent == path and file.name in own)


def _check(options: AuditOptions) -> None:
    check_count("most", options.most)
    for name in ("accuracy", "show"):
        check_count(name, getattr(options, name), 0)
    check_crop(options.crop)


def _opened(options: AuditOptions, device: torch.device) -> dict[str, PublicModel]:
    """The models as the public sees them."""
    names = SurfaceNames(
        options.patch_embedding, options.positions, options.classifier, options.patch_layout
    )
    dtype = torch.float64 if options.gradients == "fp64" else torch.float32
    return {
        label: PublicModel.of(
            model.to(device, dtype),
            names=names,
            size=options.size,
            mean=options.mean,
            std=options.std,
        )
        for label, model in open_models(options.model, options.size).items()
    }


def _audited(
    label: str,
    public: PublicModel,
    pictures: Pictures,
    perceptual: Perceptual | None,
    options: AuditOptions,
    run: Run,
) -> AuditReport:
    """The audit of one model."""
    view = View(public.size, options.crop)
    dtype = next(public.model.parameters()).dtype
    outputs = outputs_of(public.model, pictures.part)
    labels = accuracy = None
    if outputs is not None and pictures.part is not None and pictures.whole is not None:
        labels = outputs[torch.as_tensor(pictures.part.labels)].to(run.device)
        if options.accuracy:
            generator = generator_for(options.seed, "accuracy images")
            some = drawn(pictures.whole, options.accuracy, generator)
            accuracy = partial(accuracies, public, some, outputs, view, run)
    return audit(
        public,
        pictures.shown(view).to(run.device, dtype) / 255,
        labels,
        attacks=options.attacks,
        defences=options.defences,
        rounds=options.rounds,
        localization_weight=options.localization_weight,
        steps=options.steps,
        restarts=options.restarts,
        seed=options.seed,
        label=label,
        names=pictures.names,
        perceptual=perceptual,
        accuracy=accuracy,
        conditions={"data": pictures.title, "crop": options.crop},
        run=run,
        resume=options.resume,
        show=options.show,
        chunk=options.chunk,
    )


def outputs_of(model: Any, source: Source | None) -> Tensor | None:
    """The model's output for each class of the data; None where that cannot be told."""
    if source is None or not hasattr(model, "num_classes"):
        return None
    try:
        return class_outputs(model, source.classes, source.name)
    except (DataError, UnsupportedModelError):
        return None


@torch.no_grad()
def accuracies(
    public: PublicModel,
    source: Source,
    outputs: Tensor,
    view: View,
    run: Run,
    defences: Sequence[Defence],
) -> Mapping[str, Mapping[str, Scalar]]:
    """Top-1 with its interval on what the clients of each defence feed the model, whichever it is.

    Gives values by the text of the parts that decide it: of defences that feed the same, it is
    the same, and is measured once.
    """
    feeding = {str(defence.feeding): defence.feeding for defence in defences}
    views = {name: (defence, defence.public(public)) for name, defence in feeding.items()}
    right = {name: torch.zeros(len(source), device=run.device) for name in views}
    targets = outputs.to(run.device)
    total = -(-len(views) * len(source) // run.team.size)
    with meter("accuracy", total, shown=run.leads) as advance:
        for block in Reader(Decoder(source, view.transform()), run.team, worker_count(None)):
            for name, (defence, defended) in views.items():
                images = (block.images.float() / 255).to(next(public.model.parameters()).dtype)
                generator = generator_for(run.seed, "audit accuracy", step=block.number)
                plan = defence.draw_plan(defended, 1, generator, clients=len(images))
                inputs, inside = defence.arrange(defended.normalized(images), plan)
                answers = []
                for start in range(0, len(inputs), 64):
                    part = slice(start, start + 64)
                    own = None if inside is None else inside[part]
                    answers.append(defended.logits(inputs[part], own).argmax(dim=1))
                hits = torch.cat(answers) == targets[block.labels]
                right[name][block.indices.to(run.device)] = hits.float()
                advance(len(images))
    values: dict[str, dict[str, Scalar]] = {}
    for name, hits in right.items():
        (estimate,) = estimates(100 * np.asarray(run.team.total(hits).cpu())[:, None])
        values[name] = {**estimate.values("top1"), "accuracy_images": len(source)}
    return values


def _present(reports: Sequence[AuditReport], options: AuditOptions, run: Run) -> None:
    """Tables, or records for `--json`; figures; the report."""
    records = [record for report in reports for record in report.records]
    if options.json:
        _print_json(records)
    else:
        for table in (tables.ATTACKED, tables.PAPERS, tables.COST):
            for filled in table.fill_all(records):
                results().print(to_terminal(filled))
        for line, _ in tables.STRONGEST.glances(records):
            results().print(line, markup=False, highlight=False)
    for note in dict.fromkeys(note for report in reports for note in report.notes):
        print(f"note: {note}", file=sys.stderr if options.json else sys.stdout)
    figures = [path for draw in tables.FIGURES.values() for path in draw(records, run.out)]
    figures += draw_grids(records, run.out, options.show)
    page = write_report(
        [run.records_file],
        run.out / "report.html",
        tables.SECTIONS,
        command=shlex.join(command_line()),
        kind="Privacy audit",
        title="How much of a picture does a shared gradient give away?",
        lead="In federated training a device keeps its pictures and sends gradients. This page "
        "shows what attackers made of such gradients.",
    ).path
    if not options.json:
        for path in figures:
            print(f"figure: {path}")
        print(f"records: {run.records_file}")
        print(f"report: {page}")


def _print_json(records: Sequence[Record]) -> None:
    for record in records:
        print(record.to_json(), flush=True)


def _audit_update(options: AuditOptions, models: Mapping[str, PublicModel], run: Run) -> None:
    """Attacks an update of a file; shows the preflight and what came out."""
    if len(models) > 1:
        raise ConfigError("an update is of one model; name that one with --model")
    ((label, public),) = models.items()
    assert options.update is not None
    update = SharedUpdate.load(options.update)
    facts: dict[str, Scalar] = {"model": label, "weights": fingerprint(public.model)}
    facts["update"] = options.update.name
    records, paths = [], []
    with meter("attacking", len(options.attacks)) as advance:
        for name in options.attacks:
            effort = Effort(options.steps, options.restarts, options.seed)
            result = attack(name, public, update, effort=effort)
            labels = None if result.labels is None else " ".join(map(str, result.labels.tolist()))
            values = {"applies": result.applies, "reason": result.reason, **result.facts}
            record = Record("audit update", {**facts, "attack": name}, {**values, "labels": labels})
            records += run.write(record)
            for number, image in enumerate(() if result.images is None else result.images):
                file = f"{file_name('recovered', name, number)}.png"
                with run.file(file) as path:
                    write_picture(path, image)
                paths.append(options.out / file)
            advance(1)
    if options.json:
        _print_json(records)
        return
    for filled in (_preflight(records[0]), UPDATE.fill(records)):
        if filled is not None:
            results().print(to_terminal(filled))
    for path in paths:
        print(f"picture: {path}")
    print(f"records: {run.records_file}")


def _preflight(record: Record) -> FilledTable:
    """What an attacker reads off an update, a row for each fact."""
    facts = [name for name in record.values if name not in ("applies", "reason", "labels")]
    rows = [
        Row((name.replace("_", " "), format_scalar(record.values[name], None))) for name in facts
    ]
    columns = (Column("Fact", "", numeric=False), Column("", "", numeric=False))
    return FilledTable("the update, as an attacker reads it", columns, tuple(rows))
