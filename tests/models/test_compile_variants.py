"""torch.compile: every variant of the ablation is one graph, and its gradients have exact zeros."""

import shutil

import pytest
import torch

import mjp
from tests.models.compiling import ONE_BLOCK, fresh_compiler, total_loss  # noqa: F401
from tests.models.kinds import VITS

pytestmark = [pytest.mark.unchecked, pytest.mark.usefixtures("fresh_compiler")]


@pytest.mark.parametrize("letter", "ABCDEFGHIJ")
def test_every_variant_traces_as_one_graph(letter):
    model = mjp.wrap(VITS["plain"].build(**ONE_BLOCK), mjp.VARIANTS[letter])
    images = VITS["plain"].images()
    pixels = 16 if letter == "C" else None
    plan = mjp.sample_plan(
        model.grid_of(images), 4, 0.5, torch.Generator().manual_seed(0), pixels=pixels
    )
    loss = total_loss(model)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images, plan), loss(images, plan))
    torch.testing.assert_close(compiled(images, None), loss(images, None))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler for the CPU needs g++")
def test_masked_positions_get_exactly_zero_gradient_in_generated_code_too():
    # Without blocks, whose code takes twice as long; the average has every position matter.
    model = mjp.wrap(VITS["plain"].build(depth=0, global_pool="avg"), mjp.VARIANTS["G"])
    compiled = torch.compile(model, fullgraph=True)
    images = VITS["plain"].images()
    plan = mjp.sample_plan(mjp.PatchGrid(4, 2), 4, 0.5, torch.Generator().manual_seed(0))
    plan = mjp.JigsawPlan(plan.grid, plan.masked[:1].repeat(4, 1), plan.source[:1].repeat(4, 1))
    compiled(images, plan=plan).square().mean().backward()
    gradient = model.pos_embed.grad[0, 1:].abs().sum(dim=1)
    assert (gradient[plan.masked[0]] == 0).all()
    assert (gradient[~plan.masked[0]] > 0).all()
