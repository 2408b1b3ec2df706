"""torch.compile: one graph for a model of any kind, whatever the plan."""

import pytest
import torch

import mjp
from tests.models.compiling import ONE_BLOCK, fresh_compiler, total_loss  # noqa: F401
from tests.models.kinds import KINDS, Kind

pytestmark = [pytest.mark.unchecked, pytest.mark.usefixtures("fresh_compiler")]


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
