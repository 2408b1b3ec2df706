"""Attention maps against weights computed by hand, for every kind of ViT."""

import pytest
import timm
import torch

import mjp
from mjp.core.errors import UnsupportedModelError
from mjp.evaluate.attention import attention_grid, attention_maps
from mjp.jigsaw import PatchGrid
from tests.models.kinds import TINY_SWIN, VITS


def by_hand(model, images):
    """The weights of the last attention, from its queries and keys."""
    given = []
    last = model.blocks[-1].attn
    hook = last.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    with torch.no_grad():
        model.forward_features(images)
    hook.remove()
    x = given[0]
    with torch.no_grad():
        qkv = last.qkv(x).reshape(*x.shape[:2], 3, last.num_heads, last.head_dim)
        q, k, _ = qkv.permute(2, 0, 3, 1, 4)
        q, k = last.q_norm(q), last.k_norm(k)
        return (q @ k.transpose(-2, -1) * last.head_dim**-0.5).softmax(dim=-1)


@pytest.mark.parametrize("wrapped", [False, True], ids=["timm", "mjp"])
@pytest.mark.parametrize("kind", VITS)
def test_maps_are_the_class_tokens_weights_on_the_patches(kind, wrapped):
    model = VITS[kind].build().eval()
    model = mjp.wrap(model, mjp.MJPConfig()) if wrapped else model
    images = VITS[kind].images(batch=2)
    height, width = images.shape[2:]
    grid = PatchGrid(-(-height // 16), -(-width // 16))
    found = attention_maps(model, images, grid)
    weights = by_hand(model, images)
    prefix = weights.shape[-1] - grid.num_patches
    assert found.heads.shape == (2, 3, grid.rows, grid.cols)
    if model.cls_token is not None:
        assert found.query == "class token"
        expected = weights[:, :, 0, prefix:]
    else:
        assert found.query == "mean over all patches"
        expected = weights[:, :, prefix:, prefix:].mean(dim=2)
    torch.testing.assert_close(found.heads.flatten(2), expected, rtol=1e-3, atol=1e-6)


def test_fused_attention_is_on_again_afterwards_and_the_model_unchanged():
    model = VITS["plain"].build().eval()
    attention = model.blocks[-1].attn
    attention.fused_attn = True
    images = VITS["plain"].images()
    before = model(images)
    attention_maps(model, images, PatchGrid(4, 2))
    assert attention.fused_attn is True
    assert not attention.attn_drop._forward_hooks
    assert torch.equal(model(images), before)


def test_how_many_patches_a_head_looks_at():
    model = VITS["plain"].build().eval()
    found = attention_maps(model, VITS["plain"].images(batch=1), PatchGrid(4, 2))
    even = type(found)(torch.full((1, 2, 4, 2), 0.1), "class token")
    torch.testing.assert_close(even.spread(), torch.full((1, 2), 8.0))
    one = torch.zeros(1, 1, 4, 2)
    one[0, 0, 2, 1] = 0.5
    torch.testing.assert_close(type(found)(one, "").spread(), torch.ones(1, 1))


def test_weights_that_are_mixed_after_the_softmax_are_no_attention():
    model = timm.create_model("cait_xxs24_224", depth=1).eval()
    with pytest.raises(UnsupportedModelError, match="no shares of attention"):
        attention_maps(model, torch.randn(1, 3, 224, 224), PatchGrid(14, 14))


@pytest.mark.parametrize("kind", ["plain", "dynamic size", "dynamic padding"])
def test_the_grid_is_that_of_the_tokens(kind):
    model, (height, width) = VITS[kind].build(), VITS[kind].image_size
    expected = PatchGrid(-(-height // 16), -(-width // 16))
    assert attention_grid(model, (height, width)) == expected
    hybrid = timm.create_model("vit_tiny_r_s16_p8_224")
    assert attention_grid(hybrid, (224, 224)) == PatchGrid(7, 7)  # Of a map of 56x56 features.
    with pytest.raises(UnsupportedModelError, match="what grid"):
        attention_grid(timm.create_model("resnet18"), (224, 224))


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "resnet18"])
def test_a_model_without_a_global_attention_is_refused(name):
    model = timm.create_model(name, **(TINY_SWIN if "swin" in name else {}))
    with pytest.raises(UnsupportedModelError, match="no last self-attention"):
        attention_maps(model, torch.zeros(1, 3, 64, 32), PatchGrid(4, 2))
