"""`mjp check`: a recipe with all its values, what it will take, and what is wrong with it."""

import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.table import Table
from torch import Tensor

from mjp.core.configuration import check_count
from mjp.core.display import results
from mjp.core.errors import ConfigError, MjpError
from mjp.core.run import Run
from mjp.core.team import Team, choose_device
from mjp.data.batch import Batching, Calendar
from mjp.data.feed import Feed
from mjp.train.config import CheckOptions, TaskConfig
from mjp.train.distribution import check_graphs
from mjp.train.optimization import scaled
from mjp.train.task import Objective, Task

Given = TypeVar("Given")


def check(options: CheckOptions[Any]) -> None:
    """Prints; raises if anything would keep the recipe from being carried out."""
    config, processes = options.recipe, options.processes
    settings, problems = config.run, dict[str, None]()

    def tried(action: Callable[[], Given]) -> Given | None:
        """What the action gives; None, and a problem more, where it fails."""
        try:
            return action()
        except (MjpError, RuntimeError, AssertionError, TypeError) as error:
            problems[str(error) or type(error).__name__] = None
            return None

    results().print(config.to_toml(), markup=False, highlight=False)
    check_count("processes", processes)
    tried(lambda: check_graphs(settings.compile, processes))
    device = tried(lambda: choose_device(settings.device)) or torch.device("cpu")
    passes = settings.accumulation
    chunk = tried(lambda: Batching(settings.batch, processes, 0, passes).chunk)
    if chunk is None:  # The rest is looked at with a batch that works.
        config = replace(config, run=replace(settings, batch=2 * processes * passes))
    task = config.make_task()
    run = Run(Path(os.devnull), Team(0, processes, device), settings.seed)  # Writes nothing.
    data = tried(lambda: task.data(run))
    for source in () if data is None else (data.source, data.val_source):
        tried(partial(source.picture, 0))
    model, batch = tried(lambda: task.trial(run)) or (None, {})
    memory = model and tried(lambda: estimate_memory(task, model, batch, chunk or 2, processes))
    table = Table(show_header=False)
    for row in _facts(options.recipe, data, model, memory or {}):
        table.add_row(*row)
    results().print(table)
    for note in (*(task.notes(model) if memory else ()), *_room(memory or {}, device)):
        results().print(f"note: {note}", markup=False, highlight=False)
    if problems:
        raise ConfigError(f"{options.name} cannot be carried out:\n  - " + "\n  - ".join(problems))
    results().print("nothing is wrong", highlight=False)


def estimate_memory(
    task: Task[Any], model: Any, batch: Mapping[str, Tensor], chunk: int, processes: int = 1
) -> dict[str, int]:
    """Bytes on each device, from one real pass over the few samples of a batch.

    Raises whatever the model raises on such samples; so this is also a trial. What the backward
    pass needs of the forward pass is that without compilation, which saves some.

    Args:
        chunk: samples in a pass of a process.
    """
    config = task.config
    inputs = {**batch, **{name: torch.tensor(v) for name, v in task.schedule(0.0).items()}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Of a ratio too small: a note says so.
        plan = task.draw_plan(model, batch, torch.Generator().manual_seed(0))
    kept: dict[int, int] = {}
    parameters = {parameter.data_ptr() for parameter in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    objective = Objective(model, task).train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = objective(batch=inputs, plan=plan)["loss"]
    loss.backward()
    model.zero_grad(set_to_none=True)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    weights //= processes if config.run.distribution == "fsdp" else 1
    return {
        "weights": weights,
        "gradients": weights,
        "optimiser": 2 * weights,
        "average": weights if config.optimizer.average else 0,
        "activations": sum(kept.values()) * chunk // len(next(iter(batch.values()))),
    }


def _facts(
    config: TaskConfig, data: Feed | None, model: Any, memory: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    if model is not None:
        yield "parameters", f"{sum(p.numel() for p in model.parameters()):,}"
        if hasattr(model, "mjp_parts"):
            yield "MJP", model.mjp_parts()
    rate = scaled(config.optimizer.learning_rate, config.optimizer, config.run.batch)
    yield "highest learning rate", f"{rate:g}"
    if memory:
        sizes = {"all": sum(memory.values()), **memory}
        listed = (f"{name} {size / 2**20:,.1f} MiB" for name, size in sizes.items() if size)
        yield "memory of a device, about", ", ".join(listed)
    if data is not None:
        samples, batch = len(data.source), config.run.batch
        calendar = Calendar(samples, batch, config.run.epochs)
        yield "classes", f"{len(data.source.classes)}"
        yield "images", f"{samples:,} to train on, {len(data.val_source):,} to validate on"
        yield "steps", f"{calendar.steps:,}, {samples / batch:,.1f} an epoch"
        yield "jigsaw from", f"step {calendar.at(config.run.warmup_epochs):,}"


def _room(memory: Mapping[str, int], device: torch.device) -> Iterator[str]:
    """What will perhaps not fit."""
    there = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else math.inf
    if sum(memory.values()) > 0.95 * there:
        yield (
            f"the estimate is more than the {there / 2**30:.0f} GiB of the device; raise "
            "--run.accumulation"
        )
    free = shutil.disk_usage(Path.cwd()).free
    if 5 * memory.get("weights", 0) * 4 > free:
        yield f"checkpoints will not fit on this disk, which has {free / 2**30:.1f} GiB free"
