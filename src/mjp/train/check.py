"""`mjp check`: a recipe with all its values, what it will take, and what is wrong with it."""

import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from mjp.commands.options import CheckOptions
from mjp.commands.terminal import choose_device, results
from mjp.core.configuration import to_toml
from mjp.core.errors import ConfigError, MjpError
from mjp.core.ranges import check_count
from mjp.data.batch import Batching, Calendar
from mjp.data.opening import open_both
from mjp.data.source import Source
from mjp.train.estimate import Memory, estimate
from mjp.train.optimization import scaled
from mjp.train.recipe import Recipe
from mjp.train.setup import make_model

UNKNOWN_CLASSES = 1000
"""How many classes are assumed where the data cannot be looked at."""


def run(options: CheckOptions) -> None:
    """Prints; raises if anything would keep the recipe from being carried out."""
    recipe = options.recipe
    results().print(to_toml(recipe), markup=False, highlight=False)
    check_count("processes", options.processes)
    problems: list[str] = []
    if options.processes > 1 and recipe.run.compile == "graphs":
        problems.append("run.compile graphs is for one process; use on for several")
    device = _tried(problems, lambda: choose_device(recipe.run.device))
    sources = _tried(problems, lambda: open_both(recipe.data))
    if sources is not None:
        for source in sources:
            _tried(problems, partial(source.picture, 0))
    batching = _tried(
        problems,
        lambda: Batching(recipe.run.batch, options.processes, 0, recipe.run.accumulation),
    )
    classes = tuple(map(str, range(UNKNOWN_CLASSES))) if sources is None else sources[0].classes
    model = _tried(problems, lambda: make_model(recipe, classes))
    memory = None
    if model is not None and batching is not None:
        memory = _tried(
            problems, lambda: estimate(recipe, model, batching.chunk, options.processes)
        )
    _print_facts(recipe, model, sources, memory)
    for note in _odd(recipe, model, memory, device):
        results().print(f"note: {note}", markup=False, highlight=False)
    if problems:
        raise ConfigError(f"{options.name} cannot be carried out:\n  - " + "\n  - ".join(problems))
    results().print("nothing is wrong", highlight=False)


def _tried(problems: list[str], action: Any) -> Any:
    """What the action gives; None, and a problem more, where it fails."""
    try:
        return action()
    except (MjpError, RuntimeError, AssertionError, TypeError) as error:
        problems.append(str(error) or type(error).__name__)
        return None


def _odd(
    recipe: Recipe, model: Any, memory: Memory | None, device: torch.device | None
) -> list[str]:
    """What can be carried out but is perhaps not meant."""
    notes = []
    mjp = recipe.mjp
    if mjp.ratio > 0 and memory is not None:  # The model has been tried on such images.
        patches = model.grid_of(torch.empty(1, 3, *recipe.model.image_size)).num_patches
        if round(mjp.ratio * patches) == 0:
            notes.append(
                f"mjp.ratio {mjp.ratio:g} masks none of an image's {patches} patches, so there "
                "will never be a jigsaw"
            )
    if mjp.ratio > 0 and mjp.probability == 0:
        notes.append("mjp.probability is 0, so there will never be a jigsaw")
    if mjp.ratio > 0 and mjp.positions == "own" and mjp.localization is not None:
        notes.append("patches are shuffled but keep their positions, and these are localized")
    if recipe.init is not None and recipe.optimizer.layer_decay is None:
        notes.append("fine-tuning often does better with --optimizer.layer-decay 0.75")
    if memory is not None and device is not None and device.type == "cuda":
        _, there = torch.cuda.mem_get_info(device)
        if memory.total > 0.95 * there:
            notes.append(
                f"the estimate is more than the {there / 2**30:.0f} GiB of the device; raise "
                "--run.accumulation"
            )
    free = shutil.disk_usage(Path.cwd()).free
    if memory is not None and 5 * memory.weights * 4 > free:
        notes.append(
            f"checkpoints will not fit on this disk, which has {free / 2**30:.1f} GiB free"
        )
    return notes


def _print_facts(
    recipe: Recipe, model: Any, sources: tuple[Source, Source] | None, memory: Memory | None
) -> None:
    table = Table(show_header=False)
    table.add_column()
    table.add_column()
    run = recipe.run
    if model is not None:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        table.add_row("parameters", f"{parameters:,}")
        table.add_row("MJP", model.mjp_parts())
    if sources is not None:
        train, val = sources
        calendar = Calendar(len(train), run.batch, run.epochs)
        table.add_row("classes", f"{len(train.classes)}")
        table.add_row("images", f"{len(train):,} to train on, {len(val):,} to validate on")
        table.add_row("steps", f"{calendar.steps:,}, {len(train) / run.batch:,.1f} an epoch")
        table.add_row("jigsaw from", f"step {calendar.at(run.warmup_epochs):,}")
    peak = scaled(recipe.optimizer.learning_rate, recipe.optimizer, run.batch)
    table.add_row("highest learning rate", f"{peak:g}")
    if memory is not None:
        parts = (
            ("weights", memory.weights),
            ("gradients", memory.gradients),
            ("optimiser", memory.optimizer),
            ("average", memory.average),
            ("activations", memory.activations),
        )
        listed = ", ".join(f"{name} {_size(value)}" for name, value in parts if value)
        table.add_row("memory of a device, about", f"{_size(memory.total)}: {listed}")
    results().print(table)


def _size(count: int) -> str:
    power = min(4, int(math.log(max(count, 1), 1024)))
    return f"{count / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
