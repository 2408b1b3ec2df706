"""The benches: each gives the records of what it timed."""

import itertools
import logging
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import create_dataset, create_loader
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mjp.bench import (
    BenchAuditOptions,
    BenchEvalOptions,
    BenchPlanOptions,
    BenchStepOptions,
    BenchTrainOptions,
)
from mjp.commands.watching import Silent
from mjp.core.precision import float32_precision
from mjp.core.ranges import check_count, check_ratio
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.core.seeds import generator_for
from mjp.data.batch import Finisher
from mjp.data.config import AugmentSettings
from mjp.data.feed import train_transform, worker_count
from mjp.data.folder import FolderSource
from mjp.data.order import Batching
from mjp.data.photographs import PHOTOGRAPHS, photograph
from mjp.data.reading import reader
from mjp.data.subset import Subset
from mjp.data.view import View
from mjp.data.workers import WorkerFeed
from mjp.evaluate.jigsaw import RATIOS, JigsawScorer, JigsawSettings
from mjp.evaluate.showing import show
from mjp.jigsaw import PatchGrid, sample_plan
from mjp.models.config import MJPConfig
from mjp.models.factory import check_supported, create_model, wrap
from mjp.models.opening import RANDOM, ModelName, open_model
from mjp.models.subject import Subject
from mjp.models.vit import give_prefix_only
from mjp.privacy.attacking import attack_each
from mjp.privacy.defences import Defence, parse_defence
from mjp.privacy.metrics import psnr, psnr_where
from mjp.privacy.public import PublicModel
from mjp.train.loop import Trainer
from mjp.train.recipe import read_recipe
from mjp.train.setup import image_format, make_feed, make_model
from mjp.train.weighting import LocalizationWeight

# Importing it would warn of a CUDA compiler on machines that have one and no GPU.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
from torch.utils.benchmark import timer  # noqa: E402

WARM_UP = 3
CLASSES = 100
PICTURE = (375, 500)
"""Height and width of made-up pictures: the usual size of ImageNet's."""
DISTINCT = 512
"""Files to make up for an evaluation; more images are these again."""
CHUNK = 32
"""Clients that are computed together."""


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Seconds of one call, over so many calls without waiting for the device in between."""
    start = timer()  # Waits for the device.
    for _ in range(times):
        work()
    return (timer() - start) / times


def in_turn(
    run: Run, sides: list[Callable[[], object]], rounds: int, times: int = 1
) -> list[list[float]]:
    """Seconds of each side, round by round; the order alternates, so that a slow drift of the
    machine favours none."""
    taken: list[list[float]] = [[] for _ in sides]
    with run.progress("timing", rounds) as advance:
        for number in range(rounds):
            order = list(zip(sides, taken, strict=True))
            for side, result in order if number % 2 else reversed(order):
                result.append(seconds(side, times))
            advance(1)
    return taken


def ratio(of: list[float], to: list[float], name: str = "ratio") -> dict[str, Scalar]:
    """The quartiles of a ratio, round by round."""
    ratios = [one / other for one, other in zip(of, to, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {name: middle, f"{name}_quartile_low": low, f"{name}_quartile_high": high}


def by_device(run: Run, asked: Any, gpu: Any, cpu: Any) -> Any:
    """What was asked for, or what suits the device."""
    if asked is not None:
        return asked
    return gpu if run.device.type == "cuda" else cpu


def time_step(options: BenchStepOptions, run: Run) -> list[Record]:
    """A training step without MJP, with it, and with the last block as `mjp train` has it."""
    name = by_device(run, options.model, "deit_small_patch16_224", "deit_tiny_patch16_224")
    batch = by_device(run, options.batch, 512, 16)
    precision = by_device(run, options.precision, "bf16", "fp32")
    mode = by_device(run, options.mode, "compiled", "eager")
    steps = by_device(run, options.steps, 10, 1)
    check_supported(name)
    check_count("batch", batch)
    check_count("steps", steps)
    torch.set_float32_matmul_precision("high")
    with torch.device("meta"):
        shape = timm.create_model(name).pretrained_cfg["input_size"]
    generator = generator_for(options.seed, "images")
    images = torch.randn(batch, *shape, generator=generator).to(run.device)
    labels = torch.randint(1000, (batch,), generator=generator).to(run.device)
    config = MJPConfig(ratio=options.ratio, probability=options.probability)
    weight = LocalizationWeight().start

    def make_step(*, with_mjp: bool, shortened: bool = False) -> Callable[[], None]:
        torch.manual_seed(options.seed)
        model: Any = (
            create_model(name, config, num_classes=1000)
            if with_mjp
            else timm.create_model(name, num_classes=1000)
        )
        if shortened:
            give_prefix_only(model)
        model = model.to(run.device).train()
        fused = run.device.type == "cuda"
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
        draws = generator_for(options.seed, "jigsaw")

        def loss(plan: Any) -> Tensor:
            bf16 = precision == "bf16"
            with torch.autocast(run.device.type, torch.bfloat16) if bf16 else nullcontext():
                logits = model(images, plan=plan) if with_mjp else model(images)
                value = F.cross_entropy(logits, labels, label_smoothing=0.1)
                return value + weight * model.localization_loss(plan) if with_mjp else value

        compiled = torch.compile(loss) if mode == "compiled" else loss

        def step() -> None:
            plan = model.draw_plan(images, draws) if with_mjp else None
            optimizer.zero_grad(set_to_none=True)
            compiled(plan).backward()
            optimizer.step()

        return step

    def warm_up(step: Callable[[], None]) -> int:
        """The peak memory of a step; 0 where it is not counted."""
        seconds(step, WARM_UP if run.device.type == "cuda" else 1)
        if run.device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats(run.device)
        step()
        return torch.cuda.max_memory_allocated(run.device)

    plain = make_step(with_mjp=False)
    plain_memory = warm_up(plain)
    resident = torch.cuda.memory_allocated(run.device) if plain_memory else 0
    resident -= images.numel() * images.element_size()
    masked = make_step(with_mjp=True)
    memory = warm_up(masked) - resident
    trained = make_step(with_mjp=True, shortened=True)
    warm_up(trained)
    taken = in_turn(run, [plain, masked, trained], options.rounds, steps)
    plain_ms, mjp_ms, trained_ms = (1e3 * statistics.median(times) for times in taken)
    conditions: dict[str, Scalar] = {
        "model": name,
        "batch": batch,
        "precision": precision,
        "mode": mode,
        "ratio": options.ratio,
        "probability": options.probability,
        "rounds": options.rounds,
        "steps": steps,
        "seed": options.seed,
    }
    values: dict[str, Scalar] = {
        "plain_ms": plain_ms,
        "mjp_ms": mjp_ms,
        "trained_ms": trained_ms,
        **ratio(taken[1], taken[0], "time_ratio"),
        "trained_time_ratio": ratio(taken[2], taken[0])["ratio"],
        "memory_ratio": memory / plain_memory if plain_memory else None,
    }
    return [Record("bench step", conditions, values)]


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


def time_train(options: BenchTrainOptions, run: Run) -> list[Record]:
    """The step against its resident feed, and the worker feed against timm's loader."""
    check_count("images", options.images, 64)
    recipe = read_recipe(options.name)
    settings = replace(
        recipe.run,
        batch=by_device(run, options.batch, 2048, 32),
        warmup_epochs=0,
        compile=by_device(run, options.compile, recipe.run.compile, "off"),
        precision=by_device(run, None, "bf16", "fp32"),
        seed=options.seed,
    )
    recipe = replace(
        recipe,
        run=settings,
        data=replace(recipe.data, feed="resident", workers=options.workers),
        augment=recipe.augment if options.augment == "recipe" else AugmentSettings(repeats=1),
        mjp=replace(recipe.mjp, probability=1.0),
    )
    records = []
    if "step" in options.parts:
        records.append(_time_resident(options, recipe, run))
    if "workers" in options.parts:
        records.append(_time_workers(options, recipe, run))
    return records


def _time_resident(options: BenchTrainOptions, recipe: Any, run: Run) -> Record:
    """A step on resident data against the same step on one batch."""
    if run.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as folder:
        source = write_pictures(Path(folder), options.images, recipe.model.image_size, options.seed)
        model = make_model(recipe, source.classes)
        feed = make_feed(recipe, model, source, source, run.team)
        feed.prepare(lambda what, done, total: None)
    trainer = Trainer(recipe, model, feed, run.team, options.out, Silent())
    fed = feed.train(0, 10**9)
    first = next(fed)
    operations = _operations(trainer, first)
    again = itertools.repeat(first)
    sides: list[Callable[[], object]] = [
        lambda: trainer.train_step(fed),
        lambda: trainer.train_step(again),
    ]
    for side in sides:
        seconds(side, WARM_UP)
    taken = in_turn(run, sides, options.rounds, by_device(run, options.steps, 10, 1))
    values = _rates(taken[0], taken[1], recipe.run.batch)
    rate = float(str(values["images_per_second"]))
    conditions: dict[str, Scalar] = {
        "part": "step",
        "compared": "one batch again and again",
        "recipe": options.name,
        "model": recipe.model.name,
        "batch": recipe.run.batch,
        "compile": recipe.run.compile,
        "precision": recipe.run.precision,
        "augment": options.augment,
        "ratio": recipe.mjp.ratio,
        "seed": options.seed,
    }
    share = rate * operations / peak(run.device)
    values |= {"share_of_peak": share, "gflop": operations / 1e9}
    return Record("bench train", conditions, values)


def _operations(trainer: Any, batch: Any) -> float:
    """Floating-point operations of training on one image: forward and backward."""
    few = {name: values[:2] for name, values in batch.inputs.items()}
    with FlopCounterMode(display=False) as counter:
        classification, localization = trainer.objective(**few)
        (classification + localization).backward()
    trainer.optimizer.zero_grad(set_to_none=True)
    return counter.get_total_flops() / 2


def peak(device: torch.device) -> float:
    """Operations a second of a large matrix product in bf16: what the chip can do at most."""
    side = 8192 if device.type == "cuda" else 1024
    one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / min(seconds(lambda: one @ other, 5) for _ in range(6))


def _time_workers(options: BenchTrainOptions, recipe: Any, run: Run) -> Record:
    """The worker feed against timm's loader: the same files, transforms and processes."""
    settings = AugmentSettings(repeats=1, mixup=0.0, cutmix=0.0)
    batch = min(64, options.images)
    cpu = torch.device("cpu")
    form = image_format(recipe, make_model(recipe, tuple(map(str, range(CLASSES)))))
    with tempfile.TemporaryDirectory() as folder:
        source = write_pictures(Path(folder), options.images, PICTURE, options.seed)
        finish = Finisher(settings, form, len(source.classes), batch, options.seed)
        feed = WorkerFeed(
            *(source, source, recipe.data, settings, form, Batching(batch), finish),
            options.seed,
            cpu,
        )
        theirs = create_loader(
            create_dataset("", folder),
            input_size=(3, *form.size),
            batch_size=batch,
            is_training=True,
            re_prob=settings.erasing,
            re_mode="pixel",
            mean=form.mean,
            std=form.std,
            num_workers=feed.num_workers,
            device=cpu,
            persistent_workers=False,
        )
        # The very same transform: timm's own fails in one of some hundred images with Pillow 13.
        theirs.dataset.transform = train_transform(settings, form)
        steps = options.images // batch
        starts = itertools.count(0, steps)

        def read_ours() -> None:
            # Other steps in every round, because what is drawn decides how long it takes.
            start = next(starts)
            exhaust(feed.train(start, start + steps))

        # From the first batch on would not be fair: timm's loader holds one back.
        taken = in_turn(run, [read_ours, lambda: exhaust(theirs)], options.rounds)
    conditions: dict[str, Scalar] = {
        "part": "workers",
        "compared": "timm's loader",
        "side": recipe.model.image_size[0],
        "images": options.images,
        "workers": options.workers,
        "seed": options.seed,
    }
    return Record("bench train", conditions, _rates(taken[0], taken[1], steps * batch))


def _rates(ours: list[float], theirs: list[float], images: int) -> dict[str, Scalar]:
    return {
        "images_per_second": images / statistics.median(ours),
        "compared_images_per_second": images / statistics.median(theirs),
        **ratio(theirs, ours),
    }


def exhaust(batches: Any) -> None:
    for _ in batches:
        pass


def write_pictures(folder: Path, count: int, size: tuple[int, int], seed: int) -> FolderSource:
    """JPEG files with some structure, so that decoding takes what it usually takes."""
    draw = np.random.default_rng(seed)
    for index in range(count):
        target = folder / f"class{index % 4}"
        target.mkdir(exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        smooth = coarse.resize(size[::-1], Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth, np.int16) + draw.integers(-12, 13, (*size, 1))
        picture = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        picture.save(target / f"{index:06d}.jpg", quality=90)
    return FolderSource(folder)


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
    settings = JigsawSettings(RATIOS, options.draws, options.seed)
    passes = 1 + len(RATIOS) * options.draws
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
        outputs = torch.arange(4)  # Of the folders of made-up pictures.
        scorer = JigsawScorer(
            subject, settings, len(source), outputs, run.team, batch=options.batch
        )
        show([scorer], reader(source, subject.view, run.team, workers), lambda _: None)
        scorer.scores()

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
