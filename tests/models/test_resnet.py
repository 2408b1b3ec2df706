"""ResNet: the jigsaw moves pixels; a small stem is for small images."""

import pytest
import timm
import torch

import mjp
from tests.models.contract import PixelJigsawContract
from tests.models.kinds import KINDS, OTHERS


class TestResNet(PixelJigsawContract):
    kinds = {"resnet": OTHERS["resnet"]}  # noqa: RUF012


IMAGES = torch.randn(2, 3, 64, 64)


def small(name="resnet18", **more):
    return mjp.create_model(
        name, mjp.MJPConfig(ratio=0.5, probability=1.0, jigsaw_patch=4), small_stem=True, **more
    ).eval()


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet26t"])
def test_the_last_stage_sees_4x4_places_of_a_64_pixel_image(name):
    model = small(name, num_classes=7)
    assert model.forward_features(IMAGES).shape[2:] == (4, 4)
    assert model(IMAGES).shape == (2, 7)


def test_the_rest_is_timms_network():
    model, plain = small(num_classes=7), timm.create_model("resnet18", num_classes=7).eval()
    theirs = {key: value for key, value in plain.state_dict().items() if key != "conv1.weight"}
    model.load_state_dict(theirs, strict=False)
    x = plain.act1(plain.bn1(model.conv1(IMAGES)))
    for stage in (plain.layer1, plain.layer2, plain.layer3, plain.layer4):
        x = stage(x)
    assert torch.equal(model(IMAGES), plain.forward_head(x))


def test_it_is_saved_and_comes_back(tmp_path):
    model = small(num_classes=7)
    assert model.mjp_arguments == {"num_classes": 7, "small_stem": True}
    mjp.save(model, tmp_path)
    assert torch.equal(mjp.load(tmp_path).eval()(IMAGES), model(IMAGES))
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert torch.equal(again(IMAGES), model(IMAGES))
    features = small(features_only=True)
    sides = [64 // one.shape[2] for one in features(IMAGES)]
    assert sides == features.feature_info.reduction() == [2, 2, 4, 8, 16]


def test_a_resnet_takes_any_size_so_none_is_set(tmp_path):
    mjp.save(mjp.create_model("resnet18"), tmp_path)
    with pytest.raises(mjp.ConfigError, match="takes images of any size"):
        mjp.load(tmp_path, img_size=320)


@pytest.mark.unchecked
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["dynamic size", "resnet"])
def test_images_of_changing_size_stay_one_graph(name):
    model = mjp.wrap(KINDS[name].build(), mjp.MJPConfig(ratio=0.5, probability=1.0)).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    generator = torch.Generator().manual_seed(0)
    for side in (64, 96, 128):
        images = torch.randn(2, 3, side, 64)
        plan = model.draw_plan(images, generator)
        torch.testing.assert_close(compiled(images, plan=plan), model(images, plan=plan))
