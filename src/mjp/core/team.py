"""`Team`: the processes that share a piece of work; the device and the arithmetic they use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from mjp.core.errors import ConfigError, StoppedError

Item = TypeVar("Item")
Precision = Literal["fp32", "tf32", "bf16"]


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

    def total(
        self, values: Shaped[Tensor, "*shape"], by: Any = dist.ReduceOp.SUM
    ) -> Shaped[Tensor, "*shape"]:
        """The sum over all processes, in each of them."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values, by)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """The largest over all processes, in each of them."""
        return self.total(values, dist.ReduceOp.MAX)

    def gathered(self, items: list[Item]) -> list[Item]:
        """The items of all processes, in the order of their ranks, in each of them."""
        if self.size == 1:
            return items
        parts: list[list[Item]] = [[] for _ in range(self.size)]
        dist.all_gather_object(parts, items)
        return [item for part in parts for item in part]

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()


def choose_device(name: str | None) -> torch.device:
    """The device asked for, or the best there is."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is no device of torch; try cpu or cuda") from error
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"torch cannot use device {name} here ({error}); use cpu") from error
    return device


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


@contextmanager
def float32_precision(precision: Precision) -> Iterator[None]:
    """Whether products of single-precision matrices may use TF32 inside."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    cudnn = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = cudnn
