"""The benches of `mjp bench`: each times its sides in turn, in one run, and gives records."""

import itertools
import statistics
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from timm.data import create_dataset, create_loader
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mjp.bench.timing import Work, in_turn, quartiles, ratios, seconds, write_pictures
from mjp.catalog import read_recipe
from mjp.core.configuration import check_count
from mjp.core.records import Scalar
from mjp.core.run import Run
from mjp.core.seeds import generator_for
from mjp.core.team import float32_precision
from mjp.data.batch import Batching, Finisher
from mjp.data.config import AugmentSettings
from mjp.data.decoding import Decoder, Reader, View
from mjp.data.embedded import PHOTOGRAPHS, photograph
from mjp.data.feed import WorkerFeed, train_transform, worker_count
from mjp.data.source import Subset
from mjp.evaluate.accuracy import JigsawScorer, images_shown
from mjp.evaluate.config import EvalAccuracyOptions
from mjp.evaluate.evaluation import gather
from mjp.jigsaw import JigsawPlan, PatchGrid, sample_plan
from mjp.models.config import MJPConfig
from mjp.models.factory import check_supported, create_model, wrap
from mjp.models.opening import RANDOM, ModelName, open_model
from mjp.models.subject import Subject
from mjp.models.vit import give_prefix_only
from mjp.privacy.attacks import attack_each
from mjp.privacy.defences import parse_defence
from mjp.privacy.metrics import psnr_where
from mjp.privacy.public import PublicModel
from mjp.privacy.sharing import share_each
from mjp.tasks.classify.config import LocalizationWeight
from mjp.train.loop import Trainer

WARM_UP = 3
"""Calls before a side is timed: they compile kernels and fill caches."""
PICTURE = (375, 500)
"""Height and width of made-up pictures: the usual size of ImageNet's."""
DISTINCT = 512
"""Files to make up for an evaluation; more images are these again."""
CHUNK = 32
"""Clients that are computed together."""
Measurement = tuple[dict[str, Scalar], dict[str, Scalar]]
"""The conditions of a record, its seed left out, and its values."""


def of(options: Any, *names: str) -> dict[str, Scalar]:
    """Some of the options, as conditions of a record."""
    return {name: getattr(options, name) for name in names}


def time_step(options: Any, run: Run) -> Iterator[Measurement]:
    """A training step without MJP, with it, and with the last block as `mjp train` has it."""
    check_supported(options.model)
    torch.set_float32_matmul_precision("high")
    with torch.device("meta"):
        shape = timm.create_model(options.model).pretrained_cfg["input_size"]
    generator = generator_for(options.seed, "images")
    images = torch.randn(options.batch, *shape, generator=generator).to(run.device)
    labels = torch.randint(1000, (options.batch,), generator=generator).to(run.device)
    config = MJPConfig(ratio=options.ratio, probability=options.probability)
    weight, on_gpu = LocalizationWeight().start, run.device.type == "cuda"

    def make_step(with_mjp: bool, shortened: bool) -> Work:
        torch.manual_seed(options.seed)
        make = partial(create_model, config=config) if with_mjp else timm.create_model
        model: Any = make(options.model, num_classes=1000)
        if shortened:
            give_prefix_only(model)
        model = model.to(run.device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
        draws = generator_for(options.seed, "jigsaw")

        def loss(plan: Any) -> Tensor:
            bf16 = options.precision == "bf16"
            with torch.autocast(run.device.type, torch.bfloat16) if bf16 else nullcontext():
                logits = model(images, plan=plan) if with_mjp else model(images)
                value = F.cross_entropy(logits, labels, label_smoothing=0.1)
                return value + weight * model.localization_loss(plan) if with_mjp else value

        compiled = torch.compile(loss) if options.mode == "compiled" else loss

        def step() -> None:
            plan = model.draw_plan(images, draws) if with_mjp else None
            optimizer.zero_grad(set_to_none=True)
            compiled(plan).backward()
            optimizer.step()

        return step

    sides: list[Work] = []
    peaks = []
    for kind in ((False, False), (True, False), (True, True)):
        before = torch.cuda.memory_allocated(run.device) if on_gpu else 0
        sides.append(make_step(*kind))
        seconds(sides[-1], WARM_UP)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(run.device)
            sides[-1]()
            # With the images, which all share; without the models made before.
            peaks.append(torch.cuda.max_memory_allocated(run.device) - before + images.nbytes)
    plain, masked, trained = in_turn(run, options.rounds, *sides, times=options.steps)
    values: dict[str, Scalar] = {
        "plain_ms": 1e3 * statistics.median(plain),
        "mjp_ms": 1e3 * statistics.median(masked),
        "trained_ms": 1e3 * statistics.median(trained),
        **quartiles(ratios(masked, plain), "time_ratio"),
        "trained_time_ratio": statistics.median(ratios(trained, plain)),
        "memory_ratio": peaks[1] / peaks[0] if peaks else None,
    }
    names = ("model", "batch", "precision", "mode", "ratio", "probability", "rounds", "steps")
    yield of(options, *names), values


def time_plan(options: Any, run: Run) -> Iterator[Measurement]:
    """Drawing the jigsaws of a batch, at each ratio."""
    grid = PatchGrid(options.rows, options.cols)
    generator = generator_for(options.seed, "jigsaw", device=run.device)
    with run.progress("drawing", len(options.ratios)) as advance:
        for ratio in options.ratios:
            draw = partial(sample_plan, grid, options.batch, ratio, generator)
            seconds(draw, 10 * WARM_UP)
            times = [1e3 * seconds(draw, 10) for _ in range(options.repeats)]
            conditions = {"batch": options.batch, "grid": str(grid), "ratio": ratio}
            yield conditions, quartiles(times, "ms")
            advance(1)


def time_train(options: Any, run: Run) -> Iterator[Measurement]:
    """The step against its resident feed, and the worker feed against timm's loader."""
    check_count("images", options.images, 64)
    recipe = read_recipe(options.name)
    precision = "bf16" if run.device.type == "cuda" else "fp32"
    settings = {"batch": options.batch, "warmup_epochs": 0, "seed": options.seed}
    settings |= {"compile": options.compile or recipe.run.compile, "precision": precision}
    recipe = replace(
        recipe,
        run=replace(recipe.run, **settings),
        data=replace(recipe.data, feed="resident", workers=options.workers),
        augment=recipe.augment if options.augment == "recipe" else AugmentSettings(repeats=1),
        mjp=replace(recipe.mjp, probability=1.0),
    )
    if "step" in options.parts:
        yield _time_resident(options, recipe, run)
    if "workers" in options.parts:
        yield _time_workers(options, recipe, run)


def _time_resident(options: Any, recipe: Any, run: Run) -> Measurement:
    """A step on resident data against the same step on one batch."""
    if run.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as folder:
        source = write_pictures(Path(folder), options.images, recipe.model.image_size, options.seed)
        task = recipe.make_task()
        feed = task.feed(source, source, run)
        feed.prepare(lambda what, done, total: None)
    trainer = Trainer(task, task.model(feed), feed, run)
    fed = feed.train(0, 10**9)
    first = next(fed)
    operations = _operations(trainer, first)
    again = itertools.repeat(first)
    sides = (lambda: trainer.train_step(fed), lambda: trainer.train_step(again))
    for side in sides:
        seconds(side, WARM_UP)
    ours, theirs = in_turn(run, options.rounds, *sides, times=options.steps)
    conditions = of(recipe.run, "batch", "compile", "precision")
    conditions |= {"part": "step", "compared": "one batch again and again"}
    conditions |= {"recipe": options.name, "model": recipe.model.name}
    conditions |= {"augment": options.augment, "ratio": recipe.mjp.ratio}
    speed = recipe.run.batch * operations / statistics.median(ours)
    values = _rates(ours, theirs, recipe.run.batch)
    values |= {"share_of_peak": speed / _peak(run.device), "gflop": operations / 1e9}
    return conditions, values


def _operations(trainer: Any, batch: Any) -> float:
    """Floating-point operations of training on one image: forward and backward."""
    few = {name: values[:2] for name, values in batch.inputs.items()}
    few |= {name: torch.tensor(value) for name, value in trainer.task.schedule(0.0).items()}
    with FlopCounterMode(display=False) as counter:
        trainer.objective(batch=few)["loss"].backward()
    trainer.optimizer.zero_grad(set_to_none=True)
    return counter.get_total_flops() / 2


def _peak(device: torch.device) -> float:
    """Operations a second of a large matrix product in bf16: what the chip can do at most."""
    side = 8192 if device.type == "cuda" else 1024
    one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / min(seconds(lambda: one @ other, 5) for _ in range(6))


def _time_workers(options: Any, recipe: Any, run: Run) -> Measurement:
    """The worker feed against timm's loader: the same files, transforms and processes."""
    settings = AugmentSettings(repeats=1, mixup=0.0, cutmix=0.0)
    batch = min(64, options.images)
    cpu = torch.device("cpu")
    form = recipe.make_task().image_format()
    with tempfile.TemporaryDirectory() as folder:
        source = write_pictures(Path(folder), options.images, PICTURE, options.seed)
        finish = Finisher(settings, form, len(source.classes), batch, options.seed)
        how = (recipe.data, settings, form, Batching(batch), finish, options.seed, cpu)
        feed = WorkerFeed(source, source, *how)
        normal = {"mean": form.mean, "std": form.std, "input_size": (3, *form.size)}
        erasing = {"re_prob": settings.erasing, "re_mode": "pixel", "is_training": True}
        loading = {"num_workers": feed.num_workers, "persistent_workers": False, "device": cpu}
        data = create_dataset("", folder)
        theirs = create_loader(data, batch_size=batch, **normal, **erasing, **loading)
        # The very same transform: timm's own fails in one of some hundred images with Pillow 13.
        theirs.dataset.transform = train_transform(settings, form)
        steps = options.images // batch
        starts = itertools.count(0, steps)

        def read_ours() -> None:
            # Other steps in every round, because what is drawn decides how long it takes.
            start = next(starts)
            deque(feed.train(start, start + steps), maxlen=0)

        # From the first batch on would not be fair: timm's loader holds one back.
        ours, others = in_turn(run, options.rounds, read_ours, lambda: deque(theirs, maxlen=0))
    conditions = of(options, "images", "workers")
    conditions |= {"part": "workers", "compared": "timm's loader", "side": form.size[0]}
    return conditions, _rates(ours, others, steps * batch)


def _rates(ours: list[float], theirs: list[float], images: int) -> dict[str, Scalar]:
    return {
        "images_per_second": images / statistics.median(ours),
        "compared_images_per_second": images / statistics.median(theirs),
        **quartiles(ratios(theirs, ours), "ratio"),
    }


def time_eval(options: Any, run: Run) -> Iterator[Measurement]:
    """An evaluation from encoded images against the model alone."""
    name, count, precision = options.model, options.images, options.precision
    settings = EvalAccuracyOptions(model=(name,), data="", draws=options.draws, seed=options.seed)
    passes = images_shown(settings)
    workers = worker_count(options.workers)
    model = open_model(ModelName(name, name, RANDOM))
    subject = Subject.of(name, model, precision=precision).on(run.device)
    batch = min(options.batch, count)
    batches = passes * -(-count // batch)
    images = torch.randn(batch, 3, *subject.view.size, device=run.device)

    @torch.inference_mode()
    def pass_alone(batches: int) -> None:
        for _ in range(batches):
            subject.answers(images)

    def evaluate(source: Any) -> None:
        outputs = torch.arange(4, device=run.device)  # Of the folders of made-up pictures.
        scorer = JigsawScorer(subject, settings, outputs, options.batch)
        blocks = Reader(Decoder(source, subject.view.transform()), run.team, workers)
        gather([scorer], blocks, len(source), run.team, lambda _: None)

    with tempfile.TemporaryDirectory() as folder, float32_precision(precision):
        distinct = min(count, DISTINCT)
        files = write_pictures(Path(folder), distinct, PICTURE, options.seed)
        source = Subset(files, np.arange(count) % distinct, f"{count} made-up pictures")
        pass_alone(WARM_UP)
        evaluate(Subset(files, np.arange(min(distinct, 64)), "a few"))
        alone, evaluated = in_turn(
            run, options.rounds, lambda: pass_alone(batches), lambda: evaluate(source)
        )
    alone_rates = [batches * batch / taken for taken in alone]
    rates = [count * passes / taken for taken in evaluated]
    shares = ratios(rates, alone_rates)
    conditions = of(options, "model", "images", "batch", "precision")
    yield (
        {**conditions, "passes": passes, "workers": workers},
        {
            "alone_per_second": statistics.median(alone_rates),
            "evaluated_per_second": statistics.median(rates),
            "ratio": statistics.median(shares),
            "ratio_lowest": min(shares),
            "ratio_highest": max(shares),
        },
    )


def time_audit(options: Any, run: Run) -> Iterator[Measurement]:
    """Closed-form attacks, sharing included, against the clients' gradients alone."""
    model = open_model(ModelName(options.model, options.model, RANDOM))
    model = wrap(model, MJPConfig(ratio=options.ratio))
    public = PublicModel.of(model.to(run.device).eval())
    for attack, defence, count in (
        ("patch_solve", "none", options.images),
        ("adaptive_solve", f"mjp={options.ratio:g}", options.adaptive_images),
    ):
        with float32_precision("fp32"):
            values = _time_attack(options, run, public, attack, defence, count)
        conditions = {"model": options.model, "image_size": "x".join(map(str, public.size))}
        yield {**conditions, "attack": attack, "defence": defence, "images": count}, values


def _time_attack(
    options: Any, run: Run, public: PublicModel, attack: str, defence: str, count: int
) -> dict[str, Scalar]:
    protection = parse_defence(defence)
    cut = View(public.size).transform()
    photographs = torch.stack([torch.as_tensor(cut(photograph(name))) for name in PHOTOGRAPHS])
    # Again and again, each time moved a little, so that all differ.
    shifts = [photographs.roll(7 * turn, dims=3) for turn in range(-(-count // len(photographs)))]
    images = torch.cat(shifts)[:count].to(run.device).float() / 255

    def share(images: Tensor) -> Iterator[tuple[Tensor, Any, Any]]:
        for number, part in enumerate(images.split(CHUNK)):
            labels = torch.zeros(len(part), dtype=torch.int64, device=part.device)
            generator = generator_for(options.seed, "bench", step=number)
            plan = protection.draw_plan(public, 1, generator, clients=len(part))
            inputs = public.normalized(part)
            fed, inside = protection.arrange(inputs, plan)
            raw = share_each(public, fed, labels, inside)
            yield part, plan, [protection.process(public, one, generator) for one in raw]

    def recover(originals: Tensor) -> float:
        """The mean PSNR of what came back of unmasked patches."""
        total = 0.0
        for part, plan, updates in share(originals):
            outcomes = attack_each(attack, public, [(update,) for update in updates])
            images = [result.images for result in outcomes if result.images is not None]
            recovered = torch.cat(images)
            seen = plan or JigsawPlan.identity(public.grid, len(part), part.device)
            total += float(psnr_where(recovered, part, ~seen.masked, public.grid).sum())
        return total / len(originals)

    recover(images[: min(4, count)])  # Warms up.
    quality: list[float] = []
    sides = (lambda: quality.append(recover(images)), lambda: deque(share(images), maxlen=0))
    whole, alone = in_turn(run, options.rounds, *sides)
    taken = statistics.median(whole)
    return {
        "seconds": taken,
        "seconds_per_image": taken / count,
        "gradients_alone": statistics.median(alone),
        "ratio": statistics.median(ratios(whole, alone)),
        "psnr": quality[-1],
    }
