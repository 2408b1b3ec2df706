"""`mjp audit`: attacks x defences x pictures, in tables, pictures and one report."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
from mjp.data.source import Sample, Source, Subset, drawn, pictures_under
from mjp.models.opening import open_models
from mjp.models.subject import class_outputs, fingerprint
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
from mjp.report.table import Column, Joined, Table, format_scalar, to_terminal


def _read_off(records: Sequence[Record]) -> Joined:
    """What an attacker reads off an update, a row for each fact."""
    for name, value in records[0].values.items():
        if name not in ("applies", "reason", "labels"):
            fact = {"fact": name.replace("_", " "), "value": format_scalar(value, None)}
            yield Record("audit update", fact, {}), ()


PREFLIGHT = Table(
    "audit update",
    "the update, as an attacker reads it",
    (Column("Fact", "fact", numeric=False), Column("", "value", numeric=False)),
    join=_read_off,
)
UPDATE = Table(
    "audit update",
    "attacks; without the pictures nobody can say how good these are: look",
    (
        Column("Attack", "attack", numeric=False),
        Column("Applies", "applies", numeric=False),
        Column("Remarks", "reason", numeric=False),
    ),
)


class Loose(Source):
    """Pictures without classes, by their names."""

    def __init__(self, samples: dict[str, Sample], name: str) -> None:
        self._samples = samples
        super().__init__(("",), np.zeros(len(samples)), name)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[self.name_of(index)]

    def name_of(self, index: int) -> str:
        return list(self._samples)[index]


def run_audit(options: AuditOptions) -> None:
    """Attacks, measures, prints, draws."""
    if not options.model:
        if options.update is not None:
            raise ConfigError("an update is of one model: name it with --model MODEL")
        options = replace(options, model=(DEFAULT_MODEL,), size=options.size or DEFAULT_SIZE)
    check_count("most", options.most)
    check_count("accuracy", options.accuracy, 0)
    check_count("show", options.show, 0)
    check_crop(options.crop)
    names = SurfaceNames(
        options.patch_embedding, options.positions, options.classifier, options.patch_layout
    )
    dtype = torch.float64 if options.gradients == "fp64" else torch.float32
    how: dict[str, Any] = {name: getattr(options, name) for name in ("size", "mean", "std")}
    with (
        Run.open(options.out, device=options.device, seed=options.seed) as run,
        float32_precision("fp32"),
        run.stoppable(),
    ):
        models = {
            label: PublicModel.of(model.to(run.device, dtype), names=names, **how)
            for label, model in open_models(options.model, options.size).items()
        }
        if options.update is not None:
            if run.leads:
                _audit_update(options, models, run)
            return
        whole = open_pictures(options.images)
        perceptual = None if options.lpips is None else open_perceptual(options.lpips)
        count = min(options.most, len(whole))
        for label, public in models.items():
            checked(label, public, count, options.attacks, options.defences)
        reports = [
            _audited(label, public, whole, perceptual, options, run)
            for label, public in models.items()
        ]
        if run.leads:
            _present(reports, options, run)


def open_pictures(where: str) -> Source:
    """Bundled pictures, a person's own, or those of a data set."""
    if where == "photographs":
        photographs = {name: Sample(np.asarray(photograph(name)), 0) for name in PHOTOGRAPHS}
        return Loose(photographs, "bundled photographs")
    path = Path(where).expanduser()
    files: list[Path] = []
    if path.is_dir():
        files = [file for file in pictures_under(path) if file.parent == path and file.is_file()]
    elif not path.is_file():
        raise DataError(f"there is no picture, folder or data set {path}")
    elif path.suffix not in (".parquet", ".tar"):
        files = [path]
    if not files:
        return open_images(where)
    return Loose({one.name: Sample(one, 0) for one in files}, "pictures")


def _audited(
    label: str,
    public: PublicModel,
    whole: Source,
    perceptual: Perceptual | None,
    options: AuditOptions,
    run: Run,
) -> AuditReport:
    """The audit of one model."""
    view = View(public.size, options.crop)
    outputs: Tensor | None = None
    if isinstance(whole, Loose):
        count = min(options.most, len(whole))
        part: Source = Subset(whole, np.arange(count), f"{count} {whole.name}")
    else:
        part = drawn(whole, options.most, generator_for(options.seed, "images"))
        # A model may have none for these classes.
        with suppress(AttributeError, DataError, UnsupportedModelError):
            outputs = class_outputs(public.model, part.classes, part.name)
    cut = view.transform()
    levels = torch.stack([torch.as_tensor(cut(part.picture(i))) for i in range(len(part))])
    labels = accuracy = None
    if outputs is not None:
        labels = outputs[torch.as_tensor(part.labels)].to(run.device)
        if options.accuracy:
            generator = generator_for(options.seed, "accuracy images")
            some = drawn(whole, options.accuracy, generator)
            accuracy = partial(accuracies, public, some, outputs, view, run)
    names = ("attacks", "defences", "rounds", "localization_weight", "steps", "restarts", "seed")
    return audit(
        public,
        levels.to(run.device, next(public.model.parameters()).dtype) / 255,
        labels,
        **{name: getattr(options, name) for name in (*names, "resume", "show", "chunk")},
        label=label,
        names=[part.name_of(number) for number in range(len(part))],
        perceptual=perceptual,
        accuracy=accuracy,
        conditions={"data": part.name, "crop": options.crop},
        run=run,
    )


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
    targets, dtype = outputs.to(run.device), next(public.model.parameters()).dtype
    total = -(-len(views) * len(source) // run.team.size)
    with meter("accuracy", total, shown=run.leads) as advance:
        for block in Reader(Decoder(source, view.transform()), run.team, worker_count(None)):
            images = public.normalized((block.images.float() / 255).to(dtype))
            for name, (defence, defended) in views.items():
                generator = generator_for(run.seed, "audit accuracy", step=block.number)
                plan = defence.draw_plan(defended, 1, generator, clients=len(images))
                inputs, inside = defence.arrange(images, plan)
                answers = []
                for start in range(0, len(inputs), 64):
                    part = slice(start, start + 64)
                    jigsaw = None if inside is None else inside[part]
                    answers.append(defended.logits(inputs[part], jigsaw).argmax(dim=1))
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
        for record in records:
            print(record.to_json(), flush=True)
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


def _audit_update(options: AuditOptions, models: Mapping[str, PublicModel], run: Run) -> None:
    """Attacks an update of a file; shows the preflight and what came out."""
    if len(models) > 1:
        raise ConfigError("an update is of one model; name that one with --model")
    ((label, public),) = models.items()
    assert options.update is not None
    update = SharedUpdate.load(options.update)
    facts: dict[str, Scalar] = {"model": label, "weights": fingerprint(public.model)}
    facts["update"] = options.update.name
    records: list[Record] = []
    files: list[str] = []
    with meter("attacking", len(options.attacks)) as advance:
        for name in options.attacks:
            effort = Effort(options.steps, options.restarts, options.seed)
            result = attack(name, public, update, effort=effort)
            labels = None if result.labels is None else " ".join(map(str, result.labels.tolist()))
            values = {"applies": result.applies, "reason": result.reason, **result.facts}
            record = Record("audit update", {**facts, "attack": name}, {**values, "labels": labels})
            records += run.write(record)
            for number, image in enumerate(() if result.images is None else result.images):
                files.append(f"{file_name('recovered', name, number)}.png")
                with run.file(files[-1]) as path:
                    write_picture(path, image)
            advance(1)
    if options.json:
        for record in records:
            print(record.to_json())
        return
    for table in (PREFLIGHT, UPDATE):
        for filled in table.fill_all(records):
            results().print(to_terminal(filled))
    for file in files:
        print(f"picture: {run.out / file}")
    print(f"records: {run.records_file}")
