"""ViT and DeiT: what a plan does to position embeddings, and to nothing else."""

import copy
import dataclasses

import pytest
import timm
import torch
from torch.nn import functional as F

import mjp
from tests.models.contract import AdapterContract, plan_for
from tests.models.kinds import CLASSES, KINDS, VITS, Kind


class TestViT(AdapterContract):
    kinds = VITS


def backward(model, images, plan):
    model.zero_grad()
    labels = torch.arange(len(images)) % CLASSES
    logits = model(images, plan=plan)
    F.cross_entropy(logits, labels).backward()
    return logits


@pytest.mark.parametrize("name", [name for name in VITS if not name.startswith("dynamic")])
def test_masked_positions_get_exactly_zero_gradient_and_others_do_not(name):
    model = mjp.wrap(VITS[name].build(), mjp.MJPConfig())
    images = VITS[name].images()
    plan = plan_for(model, images)[torch.zeros(4, dtype=torch.int64)]
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


def test_a_plan_of_nothing_equals_no_plan():
    model = mjp.wrap(VITS["plain"].build().double(), mjp.MJPConfig())
    images = VITS["plain"].images(dtype=torch.float64)
    nothing = mjp.JigsawPlan.identity(model.grid_of(images), len(images))
    torch.testing.assert_close(model(images, plan=nothing), model(images), rtol=0, atol=1e-14)
    torch.testing.assert_close(model.localization_loss(nothing), model.localization_loss(None))


def test_two_threads_may_run_one_model_with_two_plans():
    from concurrent.futures import ThreadPoolExecutor

    model = mjp.wrap(VITS["plain"].build(), mjp.MJPConfig()).eval()
    images = VITS["plain"].images()
    plans = [plan_for(model, images, seed=seed) for seed in range(8)]
    alone = [model(images, plan=plan) for plan in plans]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda plan: model(images, plan=plan), plans * 4))
    assert all(torch.equal(one, alone[index % 8]) for index, one in enumerate(together))


def test_resizing_224_to_384_resamples_the_table_as_timm_does_and_keeps_the_unknown_row():
    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", depth=1)
    wrapped = mjp.wrap(copy.deepcopy(plain), mjp.MJPConfig())
    unknown = wrapped.unknown_position.clone()
    for model in (plain, wrapped):
        model.set_input_size(img_size=(384, 384))
    assert wrapped.pos_embed.shape == (1, 1 + 24 * 24, 192)
    assert torch.equal(wrapped.pos_embed, plain.pos_embed)
    assert torch.equal(wrapped.unknown_position, unknown)
    assert wrapped.position_grid() == mjp.PatchGrid(24, 24)
    images = torch.randn(1, 3, 384, 384)
    assert torch.equal(wrapped(images), plain(images))
    plan = mjp.sample_plan(wrapped.grid_of(images), 1, 0.27, torch.Generator())
    assert wrapped(images, plan=plan).shape == (1, 1000)


def test_timms_own_arguments_of_forward_still_work():
    plain = VITS["plain"].build().eval()
    wrapped = mjp.wrap(plain, mjp.MJPConfig())
    images = VITS["plain"].images()
    tokens = 1 + 8
    blocked = torch.ones(4, 1, tokens, tokens, dtype=torch.bool).tril()
    assert torch.equal(wrapped(images, attn_mask=blocked), plain(images, attn_mask=blocked))


BARE = mjp.MJPConfig(first_block="bare")


def test_a_bare_first_block_is_attention_and_then_the_mlp_with_the_weights_of_the_model():
    plain = KINDS["plain"].build().eval()
    images, first = KINDS["plain"].images(), plain.blocks[0]
    before = plain(images)
    bare = mjp.wrap(plain, BARE).eval()
    tokens = torch.randn(2, 9, 48)
    attended = first.attn(tokens)
    assert torch.equal(bare.blocks[0](tokens), attended + first.mlp(first.norm2(attended)))
    assert bare.blocks[1] is plain.blocks[1]
    assert (bare(images) - before).abs().max() > 1e-3
    # The model that was wrapped is as it was.
    assert plain.blocks[0] is first
    assert torch.equal(plain(images), before)
    own, theirs = dict(bare.named_parameters()), dict(plain.named_parameters())
    assert theirs.keys() - own.keys() == {"blocks.0.norm1.weight", "blocks.0.norm1.bias"}
    assert all(own[name] is theirs[name] for name in theirs.keys() & own.keys())
