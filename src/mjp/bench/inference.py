"""How long jigsaws, evaluations and closed-form attacks take."""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mjp.bench import (
    BenchAuditOptions,
    BenchEvalOptions,
    BenchPlanOptions,
)
from mjp.bench.timing import (
    PICTURE,
    WARM_UP,
    by_device,
    exhaust,
    in_turn,
    ratio,
    seconds,
    write_pictures,
)
from mjp.core.precision import float32_precision
from mjp.core.ranges import check_count, check_ratio
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.core.seeds import generator_for
from mjp.data.decoding import View, reader
from mjp.data.embedded import PHOTOGRAPHS, photograph
from mjp.data.feed import worker_count
from mjp.data.source import Subset
from mjp.evaluate.accuracy import JigsawScorer, images_shown
from mjp.evaluate.config import EvalAccuracyOptions
from mjp.evaluate.evaluation import gather
from mjp.jigsaw import PatchGrid, sample_plan
from mjp.models.config import MJPConfig
from mjp.models.factory import wrap
from mjp.models.opening import RANDOM, ModelName, open_model
from mjp.models.subject import Subject
from mjp.privacy.attacks import attack_each
from mjp.privacy.defences import Defence, parse_defence
from mjp.privacy.metrics import psnr, psnr_where
from mjp.privacy.public import PublicModel

DISTINCT = 512
"""Files to make up for an evaluation; more images are these again."""
CHUNK = 32
"""Clients that are computed together."""


def time_plan(options: BenchPlanOptions, run: Run) -> list[Record]:
    """Drawing the jigsaws of a batch, at each ratio."""
    grid = PatchGrid(options.rows, options.cols)
    check_count("repeats", options.repeats, 2)
    check_count("batch", options.batch)
    generator = generator_for(options.seed, "jigsaw", device=run.device)
    records = []
    with run.progress("drawing", len(options.ratios)) as advance:
        for share in options.ratios:

            def draw(share: float = share) -> None:
                sample_plan(grid, options.batch, share, generator)

            seconds(draw, 10 * WARM_UP)  # Compiles kernels and fills caches.
            times = [1e3 * seconds(draw, 10) for _ in range(options.repeats)]
            low, middle, high = statistics.quantiles(times, n=4)
            records.append(
                Record(
                    "bench plan",
                    {
                        "batch": options.batch,
                        "grid": str(grid),
                        "ratio": share,
                        "seed": options.seed,
                    },
                    {"ms": middle, "ms_quartile_low": low, "ms_quartile_high": high},
                )
            )
            advance(1)
    return records


def time_eval(options: BenchEvalOptions, run: Run) -> list[Record]:
    """An evaluation from encoded images against the model alone."""
    for name in ("batch", "draws", "images"):
        if getattr(options, name) is not None:
            check_count(name, getattr(options, name))
    if options.workers is not None:
        check_count("workers", options.workers, 0)
    name = by_device(run, options.model, "deit_small_patch16_224", "deit_tiny_patch16_224")
    count = by_device(run, options.images, 8192, 64)
    precision = by_device(run, options.precision, "bf16", "fp32")
    settings = EvalAccuracyOptions(model=(name,), data="", draws=options.draws, seed=options.seed)
    passes = images_shown(settings)
    workers = worker_count(options.workers)
    model = open_model(ModelName(name, name, RANDOM))
    subject = Subject.of(name, model, precision=precision).on(run.device)
    batch = min(options.batch, count)
    images = torch.randn(batch, 3, *subject.view.size, device=run.device)

    @torch.inference_mode()
    def pass_alone(batches: int) -> None:
        for _ in range(batches):
            subject.answers(images)

    def evaluate(source: Any) -> None:
        outputs = torch.arange(4, device=run.device)  # Of the folders of made-up pictures.
        scorer = JigsawScorer(subject, settings, outputs, options.batch)
        blocks = reader(source, subject.view, run.team, workers)
        gather([scorer], blocks, len(source), run.team, lambda _: None)

    with tempfile.TemporaryDirectory() as folder, float32_precision(precision):
        distinct = min(count, DISTINCT)
        files = write_pictures(Path(folder), distinct, PICTURE, options.seed)
        source = Subset(files, np.arange(count) % distinct, f"{count} made-up pictures")
        pass_alone(WARM_UP)
        evaluate(Subset(files, np.arange(min(distinct, 64)), "a few"))
        batches = passes * -(-count // batch)
        taken = in_turn(
            run, [lambda: pass_alone(batches), lambda: evaluate(source)], options.rounds
        )
    forwards = count * passes
    alone = [spent * forwards / (batches * batch) for spent in taken[0]]
    ratios = [one / other for one, other in zip(alone, taken[1], strict=True)]
    conditions: dict[str, Scalar] = {
        "model": name,
        "images": count,
        "passes": passes,
        "batch": options.batch,
        "precision": precision,
        "workers": workers,
    }
    values: dict[str, Scalar] = {
        "alone_per_second": forwards / statistics.median(alone),
        "evaluated_per_second": forwards / statistics.median(taken[1]),
        "ratio": statistics.median(ratios),
        "ratio_lowest": min(ratios),
        "ratio_highest": max(ratios),
    }
    return [Record("bench eval", conditions, values)]


def time_audit(options: BenchAuditOptions, run: Run) -> list[Record]:
    """Closed-form attacks, sharing included, against the clients' gradients alone."""
    check_ratio("ratio", options.ratio)
    name = by_device(run, options.model, "deit_small_patch16_224", "deit_tiny_patch16_224")
    plans = (
        ("patch_solve", "none", by_device(run, options.images, 1000, 8)),
        (
            "adaptive_solve",
            f"mjp={options.ratio:g}",
            by_device(run, options.adaptive_images, 64, 4),
        ),
    )
    for _, _, count in plans:
        check_count("images", count)
    model = wrap(open_model(ModelName(name, name, RANDOM)), MJPConfig(ratio=options.ratio))
    public = PublicModel.of(model.to(run.device).eval())
    records = []
    for attack, defence, count in plans:
        with float32_precision("fp32"):
            values = _time_attack(options, run, public, attack, parse_defence(defence), count)
        conditions: dict[str, Scalar] = {
            "model": name,
            "attack": attack,
            "defence": defence,
            "images": count,
            "image_size": "x".join(map(str, public.size)),
            "seed": options.seed,
        }
        records.append(Record("bench audit", conditions, values))
    return records


def _time_attack(
    options: BenchAuditOptions,
    run: Run,
    public: PublicModel,
    attack: str,
    defence: Defence,
    count: int,
) -> dict[str, Scalar]:
    cut = View(public.size).transform()
    photographs = torch.stack([torch.as_tensor(cut(photograph(name))) for name in PHOTOGRAPHS])
    # Again and again, each time moved a little, so that all differ.
    shifts = [photographs.roll(7 * turn, dims=3) for turn in range(-(-count // len(photographs)))]
    images = torch.cat(shifts)[:count].to(run.device).float() / 255

    def share(images: Tensor) -> Iterator[tuple[Tensor, Any, Any]]:
        for number, part in enumerate(images.split(CHUNK)):
            labels = torch.zeros(len(part), dtype=torch.int64, device=part.device)
            generator = generator_for(options.seed, "bench", step=number)
            plan = defence.draw_plan(public, 1, generator, clients=len(part))
            inputs = public.normalized(part)
            yield part, plan, list(defence.share_each(public, inputs, labels, plan, generator))

    def recover(originals: Tensor) -> float:
        """The mean PSNR of what came back of unmasked patches."""
        total = 0.0
        for part, plan, updates in share(originals):
            outcomes = attack_each(attack, public, [(update,) for update in updates])
            recovered = torch.cat(
                [result.images for result in outcomes if result.images is not None]
            )
            if plan is None:
                total += float(psnr(recovered, part).sum())
            else:
                total += float(psnr_where(recovered, part, ~plan.masked, public.grid).sum())
        return total / len(originals)

    recover(images[: min(4, count)])  # Warms up.
    quality: list[float] = []
    whole, alone = in_turn(
        run,
        [lambda: quality.append(recover(images)), lambda: exhaust(share(images))],
        options.rounds,
    )
    taken = statistics.median(whole)
    return {
        "seconds": taken,
        "seconds_per_image": taken / count,
        "gradients_alone": statistics.median(alone),
        "ratio": ratio(whole, alone)["ratio"],
        "psnr": quality[-1],
    }
