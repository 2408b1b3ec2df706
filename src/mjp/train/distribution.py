"""How a model is spread over the processes of a team: compiled, replicated or sharded."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mjp.core.errors import ConfigError
from mjp.core.team import Team

Compile = Literal["off", "on", "graphs"]

_MODES = {"on": "default", "graphs": "reduce-overhead"}


def check_graphs(compiled: Compile, processes: int) -> None:
    """Raises where CUDA graphs are asked for that several processes cannot have."""
    if compiled == "graphs" and processes > 1:
        raise ConfigError("run.compile graphs is for one process; use on for several")


def spread(
    objective: nn.Module, team: Team, distribution: Literal["ddp", "fsdp"], compiled: Compile
) -> tuple[Any, Any]:
    """The modules to call in training and in validation: compiled if asked, shared with the team.

    `fsdp` shards the objective itself, in place; the optimiser must be made after this.
    """
    check_graphs(compiled, team.size)
    if distribution == "fsdp":
        if "RANK" not in os.environ:
            raise ConfigError("run.distribution fsdp is for torchrun; use ddp for one process")
        mesh = init_device_mesh(team.device.type, (team.size,))
        for unit in _units(objective):
            if compiled != "off":
                unit.compile(mode=_MODES[compiled])
            fully_shard(unit, mesh=mesh)
        sharded = fully_shard(objective, mesh=mesh)
        return sharded, sharded

    def made(module: nn.Module) -> Any:
        return module if compiled == "off" else torch.compile(module, mode=_MODES[compiled])

    alone = made(objective)
    if team.size == 1:
        return alone, alone
    devices = [team.device.index] if team.device.type == "cuda" else None
    return made(
        DistributedDataParallel(objective, device_ids=devices, gradient_as_bucket_view=True)
    ), alone


def begin_pass(compiled: Compile) -> None:
    """Lets CUDA graphs write over what the last pass gave."""
    if compiled != "off":  # To say so loads the compiler, which takes a second.
        torch.compiler.cudagraph_mark_step_begin()


@contextmanager
def synchronised(module: Any, now: bool) -> Iterator[None]:
    """Whether the backward pass inside shares its gradients with the other processes."""
    inner = getattr(module, "_orig_mod", module)
    if hasattr(inner, "set_requires_gradient_sync"):
        inner.set_requires_gradient_sync(now)
    alone = isinstance(inner, DistributedDataParallel) and not now
    with inner.no_sync() if alone else nullcontext():
        yield


def _units(objective: nn.Module) -> Iterator[nn.Module]:
    """The repeated parts of a backbone: blocks of a ViT, stages of a Swin or a ResNet."""
    for name in ("blocks", "layers", "layer1", "layer2", "layer3", "layer4"):
        yield from getattr(objective.model, name, ())
