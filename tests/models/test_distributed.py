"""Two processes on gloo: data parallel and fully sharded training take plans and localize."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

import mjp
from tests.forks import forking
from tests.models.kinds import CLASSES, VITS

WORLD = 2
STEPS = 3


def build():
    torch.manual_seed(0)
    return mjp.wrap(VITS["plain"].build(), mjp.MJPConfig(ratio=0.5, probability=0.5))


def batches():
    """Per step: images, labels, and a plan or none; the same for every process."""
    generator = torch.Generator().manual_seed(0)
    grid = mjp.PatchGrid(4, 2)
    for step in range(STEPS):
        images = torch.randn(2 * WORLD, 3, 64, 32, generator=generator)
        labels = torch.randint(CLASSES, (2 * WORLD,), generator=generator)
        plan = None if step == 1 else mjp.sample_plan(grid, 2 * WORLD, 0.5, generator)
        yield images, labels, plan


def train(model, forward, rows):
    """A few steps in a user's own loop; the weights at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels, plan in batches():
        optimizer.zero_grad()
        own = None if plan is None else plan[rows]
        logits = forward(images[rows], plan=own)
        loss = torch.nn.functional.cross_entropy(logits, labels[rows])
        (loss + 0.1 * model.localization_loss(own)).backward()
        optimizer.step()


def work(rank, port, kind, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    rows = slice(2 * rank, 2 * rank + 2)
    model = build()
    if kind == "ddp":
        forward = DistributedDataParallel(model)
    else:
        mesh = dist.init_device_mesh("cpu", (WORLD,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        forward = fully_shard(model, mesh=mesh, reshard_after_forward=kind == "fsdp resharded")
        register_fsdp_forward_method(model, "localization_loss")
    train(model, forward, rows)
    weights = {
        name: value if kind == "ddp" else value.full_tensor()
        for name, value in model.state_dict().items()
    }
    if rank == 0:
        torch.save(weights, path)
    dist.barrier()
    os._exit(0)  # Gloo's threads race with the end of the interpreter: once in many runs it aborts.


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp resharded"])
def test_two_processes_learn_what_one_does(kind, tmp_path):
    alone = build()
    train(alone, alone, slice(None))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    forking()
    arguments = (port, kind, tmp_path / "weights")
    mp.start_processes(work, args=arguments, nprocs=WORLD, start_method="forkserver")
    together = torch.load(tmp_path / "weights", weights_only=True)
    for name, weight in alone.state_dict().items():
        torch.testing.assert_close(together[name], weight, rtol=1e-4, atol=1e-6, msg=name)
    start = build().state_dict()
    for name in ("unknown_position", "locator.layers.2.bias"):
        assert not torch.equal(start[name], together[name])
