"""Swin: the jigsaw moves pixels; positions are added where that is asked for."""

import dataclasses

import torch

import mjp
from tests.models.contract import PixelJigsawContract, plan_for
from tests.models.kinds import CLASSES, OTHERS, TINY_SWIN

SWIN = OTHERS["swin"]
SWIN_WITH_TABLE = mjp.MJPConfig(absolute_positions="added")


class TestSwin(PixelJigsawContract):
    kinds = {"swin": SWIN}  # noqa: RUF012


def swin(config=SWIN_WITH_TABLE, **more):
    return mjp.create_model(
        "swin_tiny_patch4_window7_224", config, num_classes=CLASSES, **{**TINY_SWIN, **more}
    )


def test_swin_tokens_inside_masked_patches_get_the_unknown_embedding():
    model = swin().double()
    images = torch.randn(2, 3, 64, 32, dtype=torch.float64)
    plan = plan_for(model, images)[torch.zeros(2, dtype=torch.int64)]
    model(images, plan=plan).square().sum().backward()
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


def test_a_resized_swin_comes_back_with_its_table_resampled(tmp_path):
    small = {"depths": (1, 1, 1, 1), "embed_dim": 24}
    model = mjp.create_model("swin_tiny_patch4_window7_224", SWIN_WITH_TABLE, **small)
    mjp.save(model, tmp_path / "a")
    larger = mjp.load(tmp_path / "a", img_size=384).eval()
    assert larger.pos_embed.shape == (1, 96 * 96, 24)
    assert torch.equal(larger.unknown_position, model.unknown_position)
    mjp.save(larger, tmp_path / "b")
    images = torch.randn(1, 3, 384, 384)
    assert torch.equal(mjp.load(tmp_path / "b").eval()(images), larger(images))
