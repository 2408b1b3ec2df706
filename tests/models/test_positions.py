"""What a plan does to position embeddings, and to nothing else."""

import copy
import dataclasses

import pytest
import torch
from torch.nn import functional as F

import mjp
from mjp.models.vit import MJPVisionTransformer
from tests.models.kinds import CLASSES, TINY_SWIN, VITS, Kind

SWIN_WITH_TABLE = mjp.MJPConfig(absolute_positions="added")


def plan_for(model, images, ratio=0.5, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return mjp.sample_plan(model.grid_of(images), len(images), ratio, generator, **options)


def backward(model, images, plan):
    model.zero_grad()
    labels = torch.arange(len(images)) % CLASSES
    logits = model(images, plan=plan)
    F.cross_entropy(logits, labels).backward()
    return logits


def one_mask_for_all(plan):
    return plan[torch.zeros(plan.batch, dtype=torch.int64)]


@pytest.mark.parametrize("name", [name for name in VITS if not name.startswith("dynamic")])
def test_masked_positions_get_exactly_zero_gradient_and_others_do_not(name):
    model = mjp.wrap(VITS[name].build(), mjp.MJPConfig())
    images = VITS[name].images()
    plan = one_mask_for_all(plan_for(model, images))
    backward(model, images, plan)
    gradient = model.pos_embed.grad[0, -8:]
    masked = plan.masked[0]
    assert (gradient[masked] == 0).all()
    assert (gradient[~masked].abs().sum(dim=1) > 0).all()
    if not model.no_embed_class and model.num_prefix_tokens:
        assert (model.pos_embed.grad[0, :-8].abs().sum(dim=1) > 0).all()


def test_the_unknown_embedding_gets_the_sum_of_what_masked_positions_would_have_received():
    model = mjp.wrap(VITS["plain"].build().double(), mjp.MJPConfig())
    images = VITS["plain"].images(dtype=torch.float64)
    plan = plan_for(model, images)
    # A hook on the embedded tokens sees what each position of each image would have received.
    received = []
    model.blocks[0].register_full_backward_hook(lambda *call: received.append(call[1][0]))
    backward(model, images, plan)
    would_be = received[0][:, model.num_prefix_tokens :]
    expected = torch.where(plan.masked[..., None], would_be, 0).sum(dim=(0, 1))
    torch.testing.assert_close(model.unknown_position.grad[0, 0], expected, rtol=0, atol=1e-15)
    known = torch.where(plan.masked[..., None], 0, would_be).sum(dim=0)
    torch.testing.assert_close(
        model.pos_embed.grad[0, model.num_prefix_tokens :], known, rtol=0, atol=1e-15
    )


@pytest.mark.parametrize("kind", VITS.values(), ids=VITS)
def test_with_unknown_positions_the_permutation_changes_neither_logits_nor_gradients(kind: Kind):
    model = mjp.wrap(kind.build().double(), mjp.MJPConfig())
    images = kind.images(dtype=torch.float64)
    if model.patch_embed.dynamic_img_pad:
        images = torch.nn.functional.pad(images, (0, 10, 0, 14))
    plan = plan_for(model, images)
    logits = backward(model, images, plan)
    skipped = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    # The same model, but the pixels really move; the plan then only tells which are masked.
    still = dataclasses.replace(
        plan, source=torch.arange(plan.grid.num_patches).expand_as(plan.source)
    )
    moved_logits = backward(model, plan.apply(images), still)
    torch.testing.assert_close(moved_logits, logits, rtol=0, atol=1e-12)
    for name, gradient in skipped.items():
        moved = model.get_parameter(name).grad
        torch.testing.assert_close(moved, gradient, rtol=0, atol=1e-12, msg=name)


def test_with_own_positions_the_permutation_does_change_the_logits():
    model = mjp.wrap(VITS["plain"].build().double(), mjp.VARIANTS["E"])
    images = VITS["plain"].images(dtype=torch.float64)
    plan = plan_for(model, images, ratio=1.0)
    assert (model(images, plan=plan) - model(images)).abs().max() > 1e-6
    torch.testing.assert_close(model(images, plan=plan), model(plan.apply(images)))


def test_whoever_reads_the_tokens_finds_them_where_the_plan_puts_them():
    model = mjp.wrap(VITS["plain"].build().double(), mjp.MJPConfig()).eval()
    images = VITS["plain"].images(dtype=torch.float64)
    plan = plan_for(model, images)
    prefix = model.num_prefix_tokens
    moved = model.forward_features(images, plan=plan)
    still = model.forward_features(
        images, plan=dataclasses.replace(plan, source=torch.arange(8).expand_as(plan.source))
    )
    torch.testing.assert_close(moved[:, prefix:], plan.apply_to_tokens(still[:, prefix:]))
    torch.testing.assert_close(moved[:, :prefix], still[:, :prefix])
    (feature_map,) = model.forward_intermediates(
        images, indices=1, plan=plan, norm=True, intermediates_only=True
    )
    torch.testing.assert_close(feature_map.flatten(2).transpose(1, 2), moved[:, prefix:])


def test_without_pooling_the_output_is_tokens_so_they_are_moved():
    model = mjp.wrap(VITS["plain"].build(global_pool=""), mjp.MJPConfig()).eval()
    images = VITS["plain"].images()
    plan = plan_for(model, images)
    expected = model.forward_head(model.forward_features(images, plan=plan))
    assert torch.equal(model(images, plan=plan), expected)


def test_a_plan_of_nothing_equals_no_plan():
    model = mjp.wrap(VITS["plain"].build().double(), mjp.MJPConfig())
    images = VITS["plain"].images(dtype=torch.float64)
    nothing = mjp.JigsawPlan.identity(model.grid_of(images), len(images))
    torch.testing.assert_close(model(images, plan=nothing), model(images), rtol=0, atol=1e-14)
    torch.testing.assert_close(model.localization_loss(nothing), model.localization_loss(None))


def test_each_image_of_a_batch_is_masked_by_its_own_mask():
    model = mjp.wrap(VITS["plain"].build().double(), mjp.MJPConfig())
    images = VITS["plain"].images(dtype=torch.float64)
    plan = plan_for(model, images)
    together = model(images, plan=plan)
    for index in range(len(images)):
        alone = plan[index : index + 1]
        torch.testing.assert_close(model(images[index, None], plan=alone)[0], together[index])


def swin(config=SWIN_WITH_TABLE, **more):
    return mjp.create_model(
        "swin_tiny_patch4_window7_224", config, num_classes=CLASSES, **{**TINY_SWIN, **more}
    )


def test_swin_moves_pixels_in_patches_of_sixteen():
    model = swin(mjp.MJPConfig()).double().eval()
    images = torch.randn(2, 3, 64, 32, dtype=torch.float64)
    plan = plan_for(model, images)
    assert plan.grid == mjp.PatchGrid(4, 2)
    torch.testing.assert_close(model(images, plan=plan), model(plan.apply(images)))
    assert model.localization_loss(plan) == 0
    assert "no table of absolute positions" in model.mjp_parts()


def test_swin_tokens_inside_masked_patches_get_the_unknown_embedding():
    model = swin().double()
    images = torch.randn(2, 3, 64, 32, dtype=torch.float64)
    plan = one_mask_for_all(plan_for(model, images))
    backward(model, images, plan)
    gradient = model.pos_embed.grad[0].reshape(16, 8, -1)
    inside = plan.masked[0].reshape(4, 2).repeat_interleave(4, 0).repeat_interleave(4, 1)
    assert (gradient[inside] == 0).all()
    assert (gradient[~inside].abs().sum(dim=1) > 0).all()
    assert model.unknown_position.grad.abs().sum() > 0


def test_swin_localizes_four_by_four_tokens_from_their_own_embedding():
    model = swin(dataclasses.replace(SWIN_WITH_TABLE, localization="linear"))
    assert model.position_grid() == mjp.PatchGrid(16, 8)
    with torch.no_grad():
        # Row and column written into the first two dimensions and read off by the regressor.
        model.pos_embed.zero_()
        model.pos_embed[0, :, :2] = model.position_grid().coordinates()
        model.locator.layers.weight.zero_()
        model.locator.layers.weight[:, :2] = torch.eye(2)
        model.locator.layers.bias.zero_()
    assert model.localization_loss(None) == 0


def test_swin_features_see_the_absolute_positions():
    model = swin().eval()
    images = torch.randn(2, 3, 64, 32)
    before = model.forward_intermediates(images, intermediates_only=True)
    with torch.no_grad():
        model.pos_embed.add_(1.0)
    after = model.forward_intermediates(images, intermediates_only=True)
    assert not torch.equal(before[-1], after[-1])
    plan = plan_for(model, images)
    assert not torch.equal(
        after[-1], model.forward_intermediates(images, plan=plan, intermediates_only=True)[-1]
    )


def test_resnet_moves_pixels():
    model = mjp.create_model("resnet18", num_classes=CLASSES).double().eval()
    images = torch.randn(2, 3, 64, 32, dtype=torch.float64)
    plan = plan_for(model, images)
    torch.testing.assert_close(model(images, plan=plan), model(plan.apply(images)))
    assert model.localization_loss(plan) == 0


@pytest.mark.parametrize(
    ("build", "config", "words"),
    [
        ("resnet", mjp.VARIANTS["B"], "only ratio, shape, pixels"),
        ("resnet", SWIN_WITH_TABLE, "only ratio, shape, pixels"),
        ("swin", mjp.VARIANTS["B"], "takes 'unknown' or 'own'"),
        ("swin", mjp.VARIANTS["F"], "takes 'unknown' or 'own'"),
        (
            "swin",
            mjp.MJPConfig(absolute_positions="added", jigsaw_patch=10),
            "cut through this Swin's 4x4 tokens",
        ),
    ],
)
def test_what_a_backbone_cannot_do_is_refused(build, config, words):
    from tests.models.kinds import OTHERS

    with pytest.raises(mjp.ConfigError, match=words):
        mjp.wrap(OTHERS[build].build(), config)


def test_a_vit_without_positions_is_only_for_configurations_without_positions():
    plain = VITS["plain"].build(pos_embed="none")
    with pytest.raises(mjp.ConfigError, match="has no position table"):
        mjp.wrap(plain, mjp.MJPConfig())
    assert isinstance(mjp.wrap(plain, mjp.VARIANTS["B"]), MJPVisionTransformer)


def test_two_threads_may_run_one_model_with_two_plans():
    from concurrent.futures import ThreadPoolExecutor

    model = mjp.wrap(VITS["plain"].build(), mjp.MJPConfig()).eval()
    images = VITS["plain"].images()
    plans = [plan_for(model, images, seed=seed) for seed in range(8)]
    alone = [model(images, plan=plan) for plan in plans]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda plan: model(images, plan=plan), plans * 4))
    assert all(torch.equal(one, alone[index % 8]) for index, one in enumerate(together))


def test_a_model_copied_before_wrapping_is_independent():
    plain = VITS["plain"].build()
    wrapped = mjp.wrap(copy.deepcopy(plain), mjp.MJPConfig())
    with torch.no_grad():
        wrapped.pos_embed.zero_()
    assert plain.pos_embed.abs().sum() > 0
