import dataclasses

import pytest
import torch

from mjp import ConfigError, JigsawPlan, PatchGrid, sample_plan

GRID = PatchGrid(4, 2)


def draw(batch=3, ratio=0.6, seed=0, **options) -> JigsawPlan:
    return sample_plan(GRID, batch, ratio, torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool])
@pytest.mark.parametrize("pixels", [None, (16, 16)])
def test_invert_undoes_apply_for_every_type_of_pixel(dtype, pixels):
    images = torch.randint(0, 2, (3, 3, 64, 32)).to(dtype)
    plan = draw(pixels=pixels)
    moved = plan.apply(images)
    assert not torch.equal(moved, images)
    assert torch.equal(plan.invert(moved), images)
    assert torch.equal(plan.apply(plan.invert(images)), images)


def test_output_patch_i_is_input_patch_source_i():
    images = torch.randn(3, 3, 64, 32)
    plan = draw()
    before, after = GRID.split(images), GRID.split(plan.apply(images))
    for image in range(3):
        for place in range(GRID.num_patches):
            assert torch.equal(after[image, place], before[image, plan.source[image, place]])


def test_moving_tokens_equals_moving_pixels_for_a_stride_p_embedding():
    embed = torch.nn.Conv2d(3, 5, kernel_size=16, stride=16).double()
    images = torch.randn(3, 3, 64, 32, dtype=torch.float64)
    plan = draw()
    tokens = embed(images).flatten(2).transpose(1, 2)
    of_moved_pixels = embed(plan.apply(images)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(plan.apply_to_tokens(tokens), of_moved_pixels)


def test_the_pixel_shuffle_uses_one_permutation_in_every_patch_of_an_image():
    plan = draw(ratio=0.0, pixels=(16, 16))
    images = torch.randn(3, 3, 64, 32)
    before = GRID.split(images).flatten(3)
    after = GRID.split(plan.apply(images)).flatten(3)
    for image in range(3):
        assert torch.equal(after[image], before[image][..., plan.pixels[image]])
    assert not torch.equal(plan.pixels[0], plan.pixels[1])


def test_a_plan_is_frozen_and_can_be_rebuilt_with_replace():
    plan = draw()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.masked = plan.masked
    assert torch.equal(dataclasses.replace(plan).source, plan.source)
    assert plan.to("cpu").masked.equal(plan.masked)
    assert plan == plan
    assert plan != draw()


@pytest.mark.unchecked
def test_part_of_a_plan_is_the_plan_of_those_images():
    plan = draw(pixels=(16, 16))
    images = torch.randn(3, 3, 64, 32)
    assert torch.equal(plan[1:].apply(images[1:]), plan.apply(images)[1:])
    with pytest.raises(ConfigError, match=r"one image of a plan is plan\[1:2\]"):
        plan[1]
    with pytest.raises(TypeError):
        list(plan)
    chosen = torch.tensor([2, 0])
    assert torch.equal(plan[chosen].apply(images[chosen]), plan.apply(images)[chosen])


def test_plans_can_be_made_inside_vmap():
    plan, images = draw(), torch.randn(3, 3, 64, 32)

    def one(image, masked, source):
        return JigsawPlan(GRID, masked[None], source[None]).apply(image[None])[0]

    moved = torch.func.vmap(one)(images, plan.masked, plan.source)
    assert torch.equal(moved, plan.apply(images))


def test_the_memory_format_of_images_stays():
    images = torch.randn(3, 3, 64, 32).contiguous(memory_format=torch.channels_last)
    moved = draw().apply(images)
    assert moved.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(moved, draw().apply(images.contiguous()))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"masked": torch.zeros(3, 8)}, "plan.masked must be torch.bool on cpu.*got torch.float32"),
        ({"source": torch.zeros(3, 8, dtype=torch.int32)}, "plan.source must be torch.int64"),
        ({"source": torch.zeros(2, 8, dtype=torch.int64)}, r"each of 3 images.*shape \(2, 8\)"),
        ({"masked": torch.zeros(8, dtype=torch.bool)}, r"a row for each of.*shape \(8,\)"),
        ({"grid": PatchGrid(3, 2)}, "6 columns"),
        ({"source": torch.zeros(3, 8, dtype=torch.int64)}, "plan.source must permute the masked"),
        ({"masked": torch.zeros(3, 8, dtype=torch.bool)}, "plan.source must permute the masked"),
        (
            {"source": torch.zeros(3, 8, dtype=torch.int64, device="meta")},
            "int64 on meta",
        ),
        ({"pixels": torch.zeros(1, 4, dtype=torch.int64)}, r"plan.pixels must.*shape \(1, 4\)"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        dataclasses.replace(draw(), **changes)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(2, 3, 64, 32), "the plan is for 3 images, the batch has 2"),
        (torch.zeros(3, 3, 63, 32), "63x32 image cannot be cut into a 4x2 grid"),
        (torch.zeros(3, 64, 32), "images of shape"),
        (torch.zeros(3, 3, 64, 32, device="meta"), "the plan is on cpu, the images are on meta"),
    ],
)
def test_images_that_a_plan_is_not_for_are_refused(images, words):
    with pytest.raises(ConfigError, match=words):
        draw().apply(images)
