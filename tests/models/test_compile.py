"""torch.compile: one graph for a model, whatever the plan."""

import shutil

import pytest
import torch

import mjp
from tests.models.kinds import KINDS, VITS, Kind

pytestmark = pytest.mark.unchecked

ONE_BLOCK = {"depth": 1}
"""A second would be traced for a second time."""


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def total_loss(model):
    def loss(images, plan):
        return model(images, plan=plan).square().mean() + model.localization_loss(plan)

    return loss


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_one_full_graph_serves_changing_plans(kind: Kind):
    config = mjp.MJPConfig(ratio=0.5, probability=1.0)
    # In evaluation mode: drop path and batch statistics would differ between two calls.
    model = mjp.wrap(kind.build(**(ONE_BLOCK if kind.has_positions else {})), config).eval()
    loss = total_loss(model)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    generator = torch.Generator().manual_seed(0)
    images = kind.images()
    compiled(images, model.draw_plan(images, generator)).backward()
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            plan = model.draw_plan(images, generator)
            model.zero_grad()
            compiled(images, plan).backward()
            ours = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            model.zero_grad()
            loss(images, plan).backward()
            for name, gradient in ours.items():
                expected = model.get_parameter(name).grad
                torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", ["dynamic size", "resnet"])
def test_images_of_changing_size_stay_one_graph(name):
    model = mjp.wrap(KINDS[name].build(), mjp.MJPConfig(ratio=0.5, probability=1.0)).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    generator = torch.Generator().manual_seed(0)
    for side in (64, 96, 128):
        images = torch.randn(2, 3, side, 64)
        plan = model.draw_plan(images, generator)
        torch.testing.assert_close(compiled(images, plan=plan), model(images, plan=plan))


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
