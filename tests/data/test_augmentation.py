"""Augmentation in batches, against Pillow and timm, which do it one image at a time."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats
from skimage import data
from timm.data import auto_augment
from timm.data.auto_augment import RandAugment
from timm.data.transforms import RandomResizedCropAndInterpolation

from mjp.data import rand_augment
from mjp.data.batch import ImageFormat, erase
from mjp.data.boxes import crop_and_resize, crop_boxes, erase_boxes
from mjp.data.config import AugmentSettings
from mjp.data.feed import train_transform
from mjp.data.rand_augment import NAMES, Layer, _matrices, apply_layer, draw_layers

FORMAT = ImageFormat((24, 24), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
FILL = torch.tensor([124, 116, 104], dtype=torch.uint8)


@pytest.fixture(scope="module")
def picture():
    return Image.fromarray(data.astronaut()).resize((96, 80))


@pytest.fixture(scope="module")
def batch(picture):
    """The picture, and two others that must not get in its way."""
    tensor = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    return torch.stack([tensor, 255 - tensor, torch.zeros_like(tensor)])


def levels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).int()


@pytest.mark.parametrize(
    ("name", "value", "pillow"),
    [
        ("auto_contrast", 0, ImageOps.autocontrast),
        ("equalize", 0, ImageOps.equalize),
        ("invert", 0, ImageOps.invert),
        *[("posterize", b, lambda i, b=b: auto_augment.posterize(i, b)) for b in (1, 4, 7, 8)],
        *[("solarize", t, lambda i, t=t: ImageOps.solarize(i, t)) for t in (0, 26, 128, 256)],
        *[("solarize_add", a, lambda i, a=a: auto_augment.solarize_add(i, a)) for a in (0, 110)],
        *[
            (kind.__name__.lower(), f, lambda i, f=f, kind=kind: kind(i).enhance(f))
            for kind in (
                *(ImageEnhance.Color, ImageEnhance.Contrast),
                *(ImageEnhance.Brightness, ImageEnhance.Sharpness),
            )
            for f in (0.1, 0.55, 1.0, 1.45, 1.9)
        ],
    ],
)
def test_operations_on_levels_are_pillows_to_the_last_bit(name, value, pillow, picture, batch):
    values = torch.tensor([value, 1.0, 1.0])
    ours = getattr(rand_augment, name)(batch, values)
    assert ours[0].int().equal(levels(pillow(picture)))
    assert ours.shape == batch.shape


@pytest.mark.parametrize(
    ("name", "value", "timms"),
    [
        ("rotate", 20.0, auto_augment.rotate),
        ("rotate", -30.0, auto_augment.rotate),
        ("shear_x", 0.25, auto_augment.shear_x),
        ("shear_y", -0.3, auto_augment.shear_y),
        ("translate_x", 0.3, auto_augment.translate_x_rel),
        ("translate_y", -0.45, auto_augment.translate_y_rel),
    ],
)
def test_geometry_is_pillows_to_rounding(name, value, timms, picture, batch):
    layer = Layer(torch.full((3,), NAMES.index(name)), torch.full((3,), value, dtype=torch.float64))
    matrix = _matrices(layer, 80, 96).float()
    ours = rand_augment.affine(batch, matrix, FILL)[0].int()
    theirs = timms(picture, value, resample=Image.BILINEAR, fillcolor=tuple(FILL.tolist()))
    assert (ours - levels(theirs)).abs().max() <= 1


@pytest.mark.parametrize("box", [(5, 7, 60, 70), (10, 10, 20, 30), (0, 0, 80, 96), (79, 95, 1, 1)])
@pytest.mark.parametrize("kernel", ["bicubic", "bilinear"])
def test_crops_are_resized_as_pillow_does(box, kernel, picture, batch):
    boxes = torch.tensor(box)[:, None].expand(4, 3)
    flipped = torch.tensor([False, True, False])
    ours = crop_and_resize(batch.permute(0, 2, 3, 1), boxes, (32, 48), flipped, kernel)
    top, left, height, width = box
    cut = picture.crop((left, top, left + width, top + height))
    resample = {"bicubic": Image.BICUBIC, "bilinear": Image.BILINEAR}[kernel]
    gap = (ours[0].int() - levels(cut.resize((48, 32), resample))).abs().float()
    # Pillow rounds between rows and columns, and cuts off there what a cubic overshoots.
    assert gap.mean() < 0.5
    assert gap.max() <= (8 if kernel == "bicubic" else 1)
    mirrored_negative = 255 - ours[1].flip(2).int()
    assert (mirrored_negative - ours[0].int()).abs().max() <= 1


def test_crop_boxes_are_distributed_as_timms():
    high, wide, count = 60, 90, 3000
    sizes = torch.full((count,), high), torch.full((count,), wide)
    scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
    ours = crop_boxes(*sizes, scale, ratio, torch.Generator().manual_seed(0))
    random.seed(0)
    blank = Image.new("RGB", (wide, high))
    theirs = np.array(
        [RandomResizedCropAndInterpolation.get_params(blank, scale, ratio) for _ in range(count)]
    )
    for mine, other in zip(ours.numpy(), theirs.T, strict=True):
        assert stats.ks_2samp(mine, other).pvalue > 0.001
    assert (ours[0] + ours[2] <= high).all()
    assert (ours[1] + ours[3] <= wide).all()


def test_an_image_too_long_for_any_crop_gets_the_middle_one():
    boxes = crop_boxes(
        torch.tensor([10]), torch.tensor([1000]), (1.0, 1.0), (0.75, 4 / 3), torch.Generator()
    )
    assert boxes.flatten().tolist() == [0, 493, 10, 13]


def test_erased_boxes_are_distributed_as_timms():
    from timm.data.random_erasing import RandomErasing

    count, size = 2000, (48, 32)
    boxes, chosen = erase_boxes(count, size, 0.25, torch.Generator().manual_seed(0))
    random.seed(0)
    eraser = RandomErasing(1.0, mode="const", device="cpu")
    theirs = []
    for _ in range(count):
        inside = eraser(torch.ones(3, *size))[0] == 0
        rows, cols = inside.any(1).nonzero(), inside.any(0).nonzero()
        theirs.append((rows.min(), cols.min(), len(rows), len(cols)))
    assert abs(chosen.float().mean() - 0.25) < 0.04
    for mine, other in zip(boxes.numpy(), np.array(theirs).T, strict=True):
        assert stats.ks_2samp(mine, other).pvalue > 0.001


def test_erasing_fills_the_box_with_noise_and_leaves_the_rest():
    images = torch.full((4, 3, 20, 30), 7.0)
    boxes = torch.tensor([2, 5, 10, 12])[:, None].expand(4, 4)
    chosen = torch.tensor([True, False, True, False])
    done = erase(images.clone(), boxes, chosen, 3, torch.arange(4))
    assert (done[[1, 3]] == 7).all()
    inside = torch.zeros(20, 30, dtype=torch.bool)
    inside[2:12, 5:17] = True
    assert (done[0][:, ~inside] == 7).all()
    noise = done[[0, 2]][:, :, inside]
    assert abs(noise.mean()) < 0.15
    assert abs(noise.std() - 1) < 0.1
    assert not noise[0].equal(noise[1])


def test_rand_augment_draws_what_timm_draws():
    """Compared by what happens to an image: the share of pixels changed, and by how much."""
    side, count = 24, 1500
    image = Image.fromarray(data.astronaut()).resize((side, side))
    settings = AugmentSettings(rand_augment=9.0, rand_augment_std=0.5)
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).repeat(count, 1, 1, 1)
    original = tensor.int()
    for layer in draw_layers(count, settings, torch.Generator().manual_seed(0)):
        tensor = apply_layer(tensor, layer, FILL)
    ours = (tensor.int() - original).abs().float().mean((1, 2, 3))
    random.seed(0)
    np.random.seed(0)
    transform = train_transform(replace(settings, interpolation="bilinear"), FORMAT)
    [timms] = [step for step in transform.transforms if isinstance(step, RandAugment)]
    theirs = [
        (levels(timms(image)) - original[0]).abs().float().mean().item() for _ in range(count)
    ]
    assert abs((ours == 0).float().mean() - np.mean(np.array(theirs) == 0)) < 0.05
    assert stats.ks_2samp(ours.numpy(), theirs).pvalue > 0.001


def test_the_strongest_rand_augment_never_fails():
    """Pillow 13 refuses what timm asks of it at a magnitude of 10."""
    transform = train_transform(AugmentSettings(rand_augment=10.0, rand_augment_std=0.0), FORMAT)
    image = Image.fromarray(data.astronaut()).resize((30, 30))
    for seed in range(300):
        random.seed(seed)
        np.random.seed(seed)
        assert transform(image).shape == (3, 24, 24)


def test_jitter_is_drawn_once_each_in_torchvisions_range():
    settings = AugmentSettings(rand_augment=0.0, color_jitter=0.4)
    layers = draw_layers(500, settings, torch.Generator().manual_seed(0))
    names = {NAMES[kind] for layer in layers for kind in layer.operation.tolist()}
    assert names == {"brightness", "contrast", "color"}
    values = torch.cat([layer.value for layer in layers])
    assert values.min() >= 0.6
    assert values.max() <= 1.4
    for slot in range(500):
        assert len({int(layer.operation[slot]) for layer in layers}) == 3
