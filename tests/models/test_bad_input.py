import pytest
import torch

import mjp
from tests.models.kinds import KINDS, VITS, Kind

pytestmark = pytest.mark.unchecked


def model_and_plan(kind: Kind):
    model = mjp.wrap(kind.build(), mjp.MJPConfig(ratio=0.5, probability=1.0))
    images = kind.images()
    return model, images, model.draw_plan(images, torch.Generator().manual_seed(0))


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def trio(request):
    return model_and_plan(request.param)


def test_a_plan_of_another_batch_is_refused(trio):
    model, images, plan = trio
    with pytest.raises(mjp.ConfigError, match="the plan is for 4 images, the batch has 3"):
        model(images[:3], plan=plan)


def test_a_plan_of_another_grid_is_refused(trio):
    model, images, _ = trio
    other = mjp.JigsawPlan.identity(mjp.PatchGrid(7, 7), 4)
    with pytest.raises(
        mjp.ConfigError, match=r"the plan is on a 7x7 grid.*the images are cut into"
    ):
        model(images, plan=other)


def test_a_plan_on_another_device_is_refused(trio):
    model, images, plan = trio
    with pytest.raises(mjp.ConfigError, match=r"the plan is on meta, the images are on cpu"):
        model(images, plan=plan.to("meta"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_images_that_are_not_in_floating_point_are_refused(trio, dtype):
    model, images, plan = trio
    with pytest.raises(mjp.ConfigError, match="images must be in floating point, got torch"):
        model(images.to(dtype), plan=plan)
    with pytest.raises(mjp.ConfigError, match="images must be in floating point, got torch"):
        model.draw_plan(images.to(dtype), torch.Generator())


def test_a_single_image_without_a_batch_is_refused(trio):
    model, images, _ = trio
    with pytest.raises(mjp.ConfigError, match=r"images must be of shape \(batch, chan"):
        model(images[0])


@pytest.mark.parametrize("name", ["dynamic size", "swin", "resnet"])
def test_an_image_that_is_no_whole_number_of_patches_is_refused(name):
    model = mjp.wrap(KINDS[name].build(), mjp.MJPConfig(ratio=0.5, probability=1.0))
    with pytest.raises(mjp.ConfigError, match="a 65x32 image cannot be cut into 16x16 patches"):
        model.draw_plan(torch.zeros(1, 3, 65, 32), torch.Generator())


@pytest.mark.parametrize("generator", [None, 7, torch.random], ids=["none", "number", "module"])
def test_drawing_wants_a_generator_on_the_host(generator):
    model = mjp.wrap(VITS["plain"].build(), mjp.MJPConfig())
    with pytest.raises(mjp.ConfigError, match="its generator must be on the cpu, not"):
        model.draw_plan(VITS["plain"].images(), generator)


def test_a_plan_in_the_wrong_place_or_of_another_type_is_refused(trio):
    model, images, plan = trio
    for method in (model, model.forward_features, model.forward_intermediates):
        with pytest.raises(mjp.ConfigError, match="pass the plan by its name"):
            method(images, plan)
    with pytest.raises(mjp.ConfigError, match="plan must be a JigsawPlan or None, got True"):
        model(images, plan=True)
    with pytest.raises(mjp.ConfigError, match="images must be a torch tensor, got list"):
        model([images])


def test_a_ratio_too_small_for_the_grid_is_said_instead_of_masking_nothing_in_silence():
    model = mjp.wrap(VITS["plain"].build(), mjp.MJPConfig(probability=1.0))
    with pytest.warns(RuntimeWarning, match=r"masks none of the 8 patches.*use at least 0.125"):
        assert model.draw_plan(VITS["plain"].images(), torch.Generator()) is None


def test_where_nothing_is_to_move_any_image_size_is_fine():
    model = mjp.create_model("resnet18", mjp.VARIANTS["A"])
    assert model.draw_plan(torch.zeros(1, 3, 65, 33), torch.Generator()) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"checkpoint_path": "x.pth"}, "load the file with mjp.load_weights"),
        ({"mjp": mjp.MJPConfig()}, "pass the configuration as config"),
    ],
)
def test_arguments_that_belong_elsewhere_are_refused(arguments, words):
    with pytest.raises(mjp.ConfigError, match=words):
        mjp.create_model("vit_tiny_patch16_224", **arguments)


def test_a_model_whose_forward_was_replaced_is_refused():
    plain = VITS["plain"].build()
    plain.forward = lambda x: x
    with pytest.raises(mjp.ConfigError, match="forward was replaced on the instance"):
        mjp.wrap(plain)


@pytest.mark.parametrize("config", ["J", {"ratio": 0.5}])
def test_a_configuration_of_another_type_is_refused(config):
    with pytest.raises(mjp.ConfigError, match="config must be an MJPConfig"):
        mjp.wrap(VITS["plain"].build(), config)
