"""How long a training step takes, with MJP and without, and with its data."""

import itertools
import statistics
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import create_dataset, create_loader
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mjp.bench import (
    BenchStepOptions,
    BenchTrainOptions,
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
from mjp.commands.watching import Silent
from mjp.core.ranges import check_count
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.core.seeds import generator_for
from mjp.data.batch import Batching, Finisher
from mjp.data.config import AugmentSettings
from mjp.data.feed import WorkerFeed, train_transform
from mjp.models.config import MJPConfig
from mjp.models.factory import check_supported, create_model
from mjp.models.vit import give_prefix_only
from mjp.train.loop import Trainer
from mjp.train.recipe import read_recipe
from mjp.train.setup import image_format, make_feed, make_model
from mjp.train.weighting import LocalizationWeight

CLASSES = 100


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
