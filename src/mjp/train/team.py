"""`Team`: the processes that share a run, and how a model is spread over them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mjp.core.errors import ConfigError
from mjp.train.interruption import StoppedError

Compile = Literal["off", "on", "graphs"]

_MODES = {"on": "default", "graphs": "reduce-overhead"}


@dataclass(frozen=True)
class Team:
    """This process's place among those of the run; alone, it is a team of one.

    Args:
        device: where this process computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes and reports."""
        return self.rank == 0

    def total(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The sum over all processes, in each of them."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """The largest over all processes, in each of them."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(device: torch.device, minutes: float = 30) -> Iterator[Team]:
    """The team that torchrun started, or this process alone.

    Args:
        device: what kind of device to compute on; under torchrun each process gets its own of it.
        minutes: how long a process may keep the others waiting before they give up. Where one
            dies, torchrun ends the others at once; this is for other launchers.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ:
        yield Team(0, 1, device)
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    backend = "gloo"
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            raise ConfigError(
                f"process {local} of this machine has no GPU of its own; there are "
                f"{torch.cuda.device_count()}: start as many processes with --nproc-per-node"
            )
        device, backend = torch.device("cuda", local), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=minutes))
    try:
        yield Team(rank, size, device)
    except StoppedError:  # In every process at the same step.
        dist.destroy_process_group()
        raise
    # After any other error the others may wait in a collective, and leaving properly would wait for
    # them: the process just ends, and torchrun ends the others.
    dist.destroy_process_group()


def spread(
    objective: nn.Module, team: Team, distribution: Literal["ddp", "fsdp"], compiled: Compile
) -> tuple[Any, Any]:
    """The modules to call in training and in validation: compiled if asked, shared with the team.

    `fsdp` shards the objective itself, in place; the optimiser must be made after this.
    """
    if compiled == "graphs" and team.size > 1:
        raise ConfigError("run.compile graphs is for one process; use on for several")
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
    alone: Any = objective
    if compiled != "off":
        alone = torch.compile(objective, mode=_MODES[compiled])
    if team.size == 1:
        return alone, alone
    devices = [team.device.index] if team.device.type == "cuda" else None
    shared: Any = DistributedDataParallel(
        objective, device_ids=devices, gradient_as_bucket_view=True
    )
    if compiled != "off":
        shared = torch.compile(shared, mode=_MODES[compiled])
    return shared, alone


@contextmanager
def synchronised(module: Any, now: bool) -> Iterator[None]:
    """Whether the backward pass inside shares its gradients with the other processes."""
    inner = getattr(module, "_orig_mod", module)
    if hasattr(inner, "set_requires_gradient_sync"):
        inner.set_requires_gradient_sync(now)
        yield
    elif isinstance(inner, DistributedDataParallel) and not now:
        with inner.no_sync():
            yield
    else:
        yield


def _units(objective: nn.Module) -> Iterator[nn.Module]:
    """The repeated parts of a backbone: blocks of a ViT, stages of a Swin or a ResNet."""
    model: Any = objective.model
    for name in ("blocks", "layers", "layer1", "layer2", "layer3", "layer4"):
        part = getattr(model, name, None)
        if isinstance(part, (nn.Sequential, nn.ModuleList)):
            yield from part
