"""`mjp check`: a recipe with all its values, what it will take, and what is wrong with it."""

import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
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
from mjp.train.config import CheckOptions, TaskConfig
from mjp.train.optimization import scaled
from mjp.train.task import Objective, Task

Given = TypeVar("Given")


def check(options: CheckOptions[Any]) -> None:
    """Prints; raises if anything would keep the recipe from being carried out."""
    config, processes = options.recipe, options.processes
    settings = config.run
    results().print(config.to_toml(), markup=False, highlight=False)
    check_count("processes", processes)
    problems: list[str] = []
    if processes > 1 and settings.compile == "graphs":
        problems.append("run.compile graphs is for one process; use on for several")
    device = _tried(problems, lambda: choose_device(settings.device)) or torch.device("cpu")
    passes = settings.accumulation
    chunk = _tried(problems, lambda: Batching(settings.batch, processes, 0, passes).chunk)
    if chunk is None:  # The rest is looked at with a batch that works.
        config = replace(config, run=replace(settings, batch=2 * processes * passes))
    task = config.make_task()
    run = Run(Path(os.devnull), Team(0, processes, device), settings.seed)  # Writes nothing.
    data = _tried(problems, lambda: task.data(run))
    for source in () if data is None else (data.source, data.val_source):
        _tried(problems, partial(source.picture, 0))
    trial = _tried(problems, lambda: task.trial(run))
    model, memory = None, None
    if trial is not None:
        model, batch = trial
        memory = _tried(
            problems, lambda: estimate_memory(task, model, batch, chunk or 2, processes)
        )
    table = Table(show_header=False)
    facts = _facts(options.recipe, model, memory)
    if data is not None:
        samples, held_out = len(data.source), len(data.val_source)
        calendar = Calendar(samples, settings.batch, settings.epochs)
        facts["classes"] = f"{len(data.source.classes)}"
        facts["images"] = f"{samples:,} to train on, {held_out:,} to validate on"
        facts["steps"] = f"{calendar.steps:,}, {samples / settings.batch:,.1f} an epoch"
        facts["jigsaw from"] = f"step {calendar.at(settings.warmup_epochs):,}"
    for row in facts.items():
        table.add_row(*row)
    results().print(table)
    notes = task.notes(model) if memory is not None else []
    for note in (*notes, *_room(memory or {}, device)):
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

    objective = Objective(model, task, config.run.precision).train()
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


def _tried(problems: list[str], action: Callable[[], Given]) -> Given | None:
    """What the action gives; None, and a problem more, where it fails."""
    try:
        return action()
    except (MjpError, RuntimeError, AssertionError, TypeError) as error:
        text = str(error) or type(error).__name__
        if text not in problems:
            problems.append(text)
        return None


def _facts(config: TaskConfig, model: Any, memory: dict[str, int] | None) -> dict[str, str]:
    facts = {}
    if model is not None:
        facts["parameters"] = f"{sum(p.numel() for p in model.parameters()):,}"
        if hasattr(model, "mjp_parts"):
            facts["MJP"] = model.mjp_parts()
    rate = scaled(config.optimizer.learning_rate, config.optimizer, config.run.batch)
    facts["highest learning rate"] = f"{rate:g}"
    if memory is not None:
        listed = ", ".join(f"{name} {_size(value)}" for name, value in memory.items() if value)
        facts["memory of a device, about"] = f"{_size(sum(memory.values()))}: {listed}"
    return facts


def _room(memory: Mapping[str, int], device: torch.device) -> list[str]:
    """What will perhaps not fit."""
    notes = []
    if device.type == "cuda":
        _, there = torch.cuda.mem_get_info(device)
        if sum(memory.values()) > 0.95 * there:
            notes.append(
                f"the estimate is more than the {there / 2**30:.0f} GiB of the device; raise "
                "--run.accumulation"
            )
    free = shutil.disk_usage(Path.cwd()).free
    if 5 * memory.get("weights", 0) * 4 > free:
        notes.append(
            f"checkpoints will not fit on this disk, which has {free / 2**30:.1f} GiB free"
        )
    return notes


def _size(count: int) -> str:
    power = min(4, int(math.log(max(count, 1), 1024)))
    return f"{count / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
