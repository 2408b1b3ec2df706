"""A last block that computes only what the head reads: the same logits and the same gradients."""

import copy

import pytest
import timm
import torch

import mjp
from mjp.evaluate.attention import attention_maps
from mjp.models.vit import PrefixBlock, give_prefix_only

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_classes": 5}
GRID = mjp.PatchGrid(4, 4)
READ = {
    "with everything": (
        "vit_tiny_patch16_224",
        {
            "num_heads": 3,
            "qk_norm": True,
            "init_values": 0.1,
            "drop_path_rate": 0.5,
            "qkv_bias": False,
            "reg_tokens": 2,
            "scale_attn_norm": True,
        },
    ),
    "distilled": ("deit_tiny_distilled_patch16_224", {"num_heads": 3}),
}
ALONE = {
    "mean of all tokens": ("vit_tiny_patch16_224", {**SMALL, "num_heads": 3, "global_pool": "avg"}),
    "another block": ("vit_small_patch16_18x2_224", {**SMALL, "num_heads": 3}),
    "no tokens": ("resnet18", {"num_classes": 5}),
}


@pytest.mark.parametrize(("name", "arguments"), READ.values(), ids=READ)
def test_logits_and_gradients_stay(name, arguments):
    torch.manual_seed(0)
    whole = timm.create_model(name, **{**SMALL, **arguments}).double().train()
    shortened = copy.deepcopy(whole)
    give_prefix_only(shortened)
    assert isinstance(shortened.blocks[-1], PrefixBlock)
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    outs = []
    for model in (whole, shortened):
        torch.manual_seed(1)  # Drop path draws the same.
        out = model(images)
        outs.append(torch.cat(out if isinstance(out, tuple) else (out,)))
        outs[-1].square().sum().backward()
    torch.testing.assert_close(outs[1], outs[0])
    for one, other in zip(whole.parameters(), shortened.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)


def test_the_rest_of_the_tokens_is_not_computed():
    model = timm.create_model("vit_tiny_patch16_224", **SMALL, num_heads=3)
    assert model.forward_features(torch.randn(2, 3, 32, 32)).shape == (2, 17, 24)
    give_prefix_only(model)
    assert model.forward_features(torch.randn(2, 3, 32, 32)).shape == (2, 1, 24)


@pytest.mark.parametrize(("name", "arguments"), ALONE.values(), ids=ALONE)
def test_other_models_are_left_alone(name, arguments):
    model = timm.create_model(name, **arguments)
    kinds = [type(one) for one in model.modules()]
    give_prefix_only(model)
    assert [type(one) for one in model.modules()] == kinds


def test_whoever_looks_at_a_trained_model_sees_all_of_it(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", **SMALL, num_heads=3)
    model = mjp.wrap(model, mjp.MJPConfig())
    images = torch.randn(2, 3, 32, 32)
    model.eval()
    with torch.no_grad():
        expected = model.forward_features(images)
        attention = attention_maps(model, images, GRID)
    give_prefix_only(model.train())
    model.eval()
    with torch.no_grad():
        assert torch.equal(model.forward_features(images), expected)
        seen = attention_maps(model, images, GRID)
        assert torch.equal(seen.heads, attention.heads)
    mjp.save(model, tmp_path / "model")
    again = mjp.load(tmp_path / "model").eval()
    assert type(again.blocks[-1]) is type(model.blocks[0])
    with torch.no_grad():
        assert torch.equal(again.forward_features(images), expected)
