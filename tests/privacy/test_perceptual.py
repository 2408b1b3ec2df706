"""LPIPS against torchmetrics' own network with the same random trunk, and against its promises."""

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from torchmetrics.functional.image.lpips import _LPIPS

from mjp.core.errors import CheckpointError, ConfigError
from mjp.privacy.perceptual import KINDS, open_perceptual

OTHER_NAMES = {"alexnet": "alex", "squeezenet": "squeeze", "squeezenet-caffe": "squeeze"}
ODD_CLASSIFIER = {"classifier.1.weight": torch.zeros(2, 2)}


def random_images(seed, batch=2, height=96, width=64):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, height, width, generator=generator)


@pytest.fixture(scope="module")
def oracles():
    """torchmetrics' LPIPS: its heads as published, its trunk random."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return {net: _LPIPS(net=net, pnet_rand=True) for net in ("alex", "squeeze")}


def trunk_weights(oracle):
    """The trunk under torchvision's names; `slices.4.10.squeeze.bias` there, or `slice2.3.bias`."""
    state = {}
    for name, tensor in oracle.net.state_dict().items():
        parts = name.split(".")
        start = 2 if parts[0] == "slices" else 1
        state[f"features.{'.'.join(parts[start:])}"] = tensor.clone()
    return state


@pytest.fixture
def write(tmp_path, oracles):
    """Writes the trunk of a kind, with a classifier if it is torchvision's; returns the path."""

    def written(kind, **more):
        state = trunk_weights(oracles[OTHER_NAMES[kind]])
        state |= {} if kind == "squeezenet-caffe" else ODD_CLASSIFIER
        save_file(state | more, tmp_path / f"{kind}.safetensors")
        return tmp_path / f"{kind}.safetensors"

    return written


class CaffeInput(torch.nn.Module):
    """What Caffe's networks take, of images that torchmetrics has brought to [-1, 1]."""

    def forward(self, images):
        red, green, blue = ((images + 1) / 2 * 255).unbind(1)
        return torch.stack([blue - 103.939, green - 116.779, red - 123.68], dim=1)


def expected_distance(oracles, kind, found, truth):
    oracle = oracles[OTHER_NAMES[kind]]
    own = oracle.scaling_layer
    try:
        oracle.scaling_layer = CaffeInput() if kind == "squeezenet-caffe" else own
        return oracle(found, truth, normalize=True).flatten()
    finally:
        oracle.scaling_layer = own


@pytest.mark.parametrize("kind", KINDS)
def test_lpips_is_torchmetrics_with_the_same_weights(kind, write, oracles):
    perceptual = open_perceptual(write(kind))
    found, truth = random_images(0), random_images(1)
    expected = expected_distance(oracles, kind, found, truth)
    assert perceptual.name == KINDS[kind]
    assert expected.min() > 1e-4
    torch.testing.assert_close(perceptual(found, truth), expected, rtol=1e-4, atol=1e-7)
    assert perceptual(truth, truth).tolist() == [0, 0]


def test_small_images_are_enlarged_and_keep_their_shape(write, oracles):
    perceptual = open_perceptual(write("alexnet"))
    found, truth = random_images(0, height=48, width=32), random_images(1, height=48, width=32)
    large = [F.interpolate(images, (96, 64), mode="bilinear") for images in (found, truth)]
    expected = expected_distance(oracles, "alexnet", *large)
    torch.testing.assert_close(perceptual(found, truth), expected, rtol=1e-4, atol=1e-7)


def test_a_score_does_not_depend_on_the_rest_of_the_batch(write, monkeypatch):
    perceptual = open_perceptual(write("squeezenet"))
    found, truth = random_images(0, batch=3), random_images(1, batch=3)
    whole = perceptual(found, truth)
    monkeypatch.setattr("mjp.privacy.metrics.CHUNK", 2)
    torch.testing.assert_close(perceptual(found, truth), whole, rtol=1e-4, atol=1e-7)


def test_opening_and_measuring_draw_nothing_and_keep_no_history(write):
    path = write("alexnet")
    before = torch.get_rng_state()
    found = random_images(0).requires_grad_()
    assert not open_perceptual(path)(found, random_images(1)).requires_grad
    assert torch.equal(torch.get_rng_state(), before)


def test_half_precision_weights_and_torch_files_are_read(write, oracles, tmp_path):
    state = {name: tensor.half() for name, tensor in trunk_weights(oracles["alex"]).items()}
    torch.save(state, tmp_path / "alexnet.pth")
    found, truth = random_images(0), random_images(1)
    value = open_perceptual(tmp_path / "alexnet.pth")(found, truth)
    torch.testing.assert_close(
        value, open_perceptual(write("alexnet"))(found, truth), rtol=0.02, atol=0
    )


@pytest.mark.unchecked
def test_the_caller_may_say_what_a_file_without_classifier_holds(write):
    path = write("squeezenet-caffe")
    assert open_perceptual(path).name == "LPIPS proxy (SqueezeNet 1.1, Caffe trunk)"
    assert open_perceptual(path, "squeezenet").name == "LPIPS (SqueezeNet 1.1)"
    with pytest.raises(CheckpointError, match="expected alexnet's convolutions"):
        open_perceptual(path, "alexnet")
    with pytest.raises(ConfigError, match="trunk must be one of auto, alexnet"):
        open_perceptual(path, "vgg")


@pytest.mark.parametrize(
    "more",
    [{"features.0.weight": torch.zeros(64, 3, 7, 7)}, {"layer4.0.weight": torch.zeros(2)}],
    ids=["other shape", "other name"],
)
def test_a_file_that_fits_no_trunk_is_refused_and_told_what_was_expected(write, more):
    with pytest.raises(CheckpointError, match=r"AlexNet's or SqueezeNet 1\.1's convolutions"):
        open_perceptual(write("alexnet", **more))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_lpips_is_the_same_on_a_gpu(kind, write):
    perceptual = open_perceptual(write(kind))
    found, truth = random_images(0), random_images(1)
    on_cpu = perceptual(found, truth)
    on_gpu = perceptual(found.cuda(), truth.cuda())
    assert on_gpu.is_cuda
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-4, atol=1e-6)
