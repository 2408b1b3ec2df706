"""What holds on a GPU: the kernel, no waiting, identity with timm, one graph. `pytest -m gpu`."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.nn import functional as F

import mjp
from mjp.jigsaw import blocks
from mjp.jigsaw.sampling import shuffle_masked
from tests.models.contract import assert_equal_to_timms
from tests.models.kinds import CLASSES, KINDS, VITS, Kind

pytestmark = [pytest.mark.gpu, pytest.mark.unchecked]


@contextmanager
def no_waiting():
    """Any call in here that makes the host wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def seeded(seed=0):
    return torch.Generator("cuda").manual_seed(seed)


@pytest.mark.parametrize("size", [(14, 14), (3, 17), (1, 5), (2, 2), (24, 24), (64, 64)])
@pytest.mark.parametrize("ratio", [0.03, 0.27, 0.5, 0.9])
def test_the_kernel_gives_the_masks_and_permutations_of_plain_torch(size, ratio):
    from mjp.jigsaw.kernel import block_plan

    grid = mjp.PatchGrid(*size)
    num_masked = round(ratio * grid.num_patches)
    if num_masked in (0, grid.num_patches):
        pytest.skip("nothing to choose")
    draws = blocks.draw_for_blocks(grid, 512, num_masked, seeded())
    order = torch.rand(512, grid.num_patches, generator=seeded(1), device="cuda")
    masked, source = block_plan(grid, num_masked, draws, order)
    expected = blocks.block_masks(grid, num_masked, draws)
    assert torch.equal(masked, expected)
    assert torch.equal(source, shuffle_masked(expected, order))


@pytest.mark.parametrize("shape", ["block", "scatter"])
@pytest.mark.parametrize("triton", [True, False], ids=["kernel", "plain torch"])
def test_drawing_never_waits_for_the_device(shape, triton, monkeypatch):
    monkeypatch.setattr("mjp.jigsaw.sampling._kernel_works", lambda: triton)
    with no_waiting():
        plan = mjp.sample_plan(mjp.PatchGrid(14, 14), 64, 0.27, seeded(), shape=shape, pixels=16)
    assert (plan.masked.sum(dim=1) == 53).all()
    assert torch.equal(plan.source.sort(dim=1).values[0].cpu(), torch.arange(196))
    again = mjp.sample_plan(mjp.PatchGrid(14, 14), 64, 0.27, seeded(), shape=shape, pixels=16)
    assert torch.equal(again.source, plan.source)


def test_without_a_working_triton_plain_torch_draws_and_says_so(monkeypatch):
    from mjp.jigsaw import kernel, sampling

    def fail():
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(kernel, "try_out", fail)
    sampling._kernel_works.cache_clear()
    with pytest.warns(RuntimeWarning, match="in plain torch.*Failed to find C compiler"):
        plan = mjp.sample_plan(mjp.PatchGrid(14, 14), 4, 0.27, seeded())
    assert (plan.masked.sum(dim=1) == 53).all()
    sampling._kernel_works.cache_clear()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_training_step_never_waits_for_the_device(kind: Kind):
    model = mjp.wrap(kind.build().cuda(), mjp.MJPConfig(ratio=0.5, probability=1.0))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = kind.images().cuda()
    labels = torch.randint(CLASSES, (4,)).cuda()
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        with nullcontext() if step == 0 else no_waiting():  # The first step fills caches.
            plan = model.draw_plan(images, generator)
            loss = F.cross_entropy(model(images, plan=plan), labels)
            (loss + 0.01 * model.localization_loss(plan)).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_without_a_plan_logits_and_gradients_equal_timms_bitwise(kind: Kind, autocast):
    torch.backends.cudnn.deterministic = True
    assert_equal_to_timms(kind, "cuda", autocast)


@pytest.mark.parametrize("name", ["plain", "swin", "resnet"])
def test_one_compiled_graph_serves_changing_plans(name):
    torch.compiler.reset()
    model = mjp.wrap(KINDS[name].build().cuda(), mjp.MJPConfig(ratio=0.5, probability=1.0)).eval()

    def loss(images, plan):
        return model(images, plan=plan).square().mean() + model.localization_loss(plan)

    compiled = torch.compile(loss, fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    images = KINDS[name].images().cuda()
    compiled(images, model.draw_plan(images, generator)).backward()
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(5):
            plan = model.draw_plan(images, generator)
            torch.testing.assert_close(compiled(images, plan), loss(images, plan))


def test_masked_positions_get_exactly_zero_gradient_in_compiled_bf16():
    torch.compiler.reset()
    model = mjp.wrap(VITS["plain"].build().cuda(), mjp.MJPConfig())
    images = VITS["plain"].images(batch=1).cuda()
    plan = mjp.sample_plan(mjp.PatchGrid(4, 2), 1, 0.5, seeded())
    compiled = torch.compile(model, fullgraph=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        compiled(images, plan=plan).square().mean().backward()
    gradient = model.pos_embed.grad[0, 1:].abs().sum(dim=1)
    assert (gradient[plan.masked[0]] == 0).all()
    assert (gradient[~plan.masked[0]] > 0).all()


def test_a_plan_and_images_on_different_devices_are_refused():
    model = mjp.wrap(VITS["plain"].build().cuda(), mjp.MJPConfig())
    images = VITS["plain"].images().cuda()
    plan = mjp.sample_plan(mjp.PatchGrid(4, 2), 4, 0.5, torch.Generator())
    with pytest.raises(mjp.ConfigError, match=r"the plan is on cpu, the images are on cuda:0"):
        model(images, plan=plan)
    with pytest.raises(mjp.ConfigError, match="the generator is on cpu"):
        mjp.sample_plan(mjp.PatchGrid(4, 2), 4, 0.5, torch.Generator(), device="cuda")
    with pytest.raises(mjp.ConfigError, match="its generator must be on the cpu"):
        model.draw_plan(images, seeded())
