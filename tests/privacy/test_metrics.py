"""Every image metric against scikit-image, numpy or a planted answer."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

from mjp.core.errors import ConfigError
from mjp.jigsaw import PatchGrid
from mjp.privacy import metrics
from mjp.privacy.metrics import identify

GRID = PatchGrid(4, 2)  # Of 64x32 images, in patches of 16x16.
ALL = (metrics.mse, metrics.psnr, metrics.ssim, metrics.fft2d)


def random_images(seed, batch=3, height=64, width=32):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, height, width, generator=generator)


def pair(seed, noise=0.2):
    truth = random_images(seed)
    found = (truth + noise * (random_images(seed + 1) - 0.5)).clamp(0, 1)
    return found, truth


def arrays(images):
    return images.double().numpy()


seeds = st.integers(0, 1000)
noises = st.sampled_from([1e-4, 0.02, 0.2, 1.0])


@settings(deadline=None, max_examples=15)
@given(seeds, noises)
def test_mse_and_psnr_are_scikit_images(seed, noise):
    found, truth = pair(seed, noise)
    pairs = list(zip(arrays(truth), arrays(found), strict=True))
    errors = [mean_squared_error(*both) for both in pairs]
    decibel = [peak_signal_noise_ratio(*both, data_range=1) for both in pairs]
    np.testing.assert_allclose(metrics.mse(found, truth), errors, rtol=1e-9)
    np.testing.assert_allclose(metrics.psnr(found, truth), decibel, rtol=1e-9)


@settings(deadline=None, max_examples=15)
@given(seeds, noises)
def test_ssim_is_scikit_images(seed, noise):
    found, truth = pair(seed, noise)
    expected = [
        structural_similarity(
            one,
            other,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1,
            channel_axis=0,
        )
        for one, other in zip(arrays(found), arrays(truth), strict=True)
    ]
    np.testing.assert_allclose(metrics.ssim(found, truth), expected, atol=1e-9)


def test_ssim_has_a_value_for_images_of_one_window_and_refuses_smaller_ones():
    assert metrics.ssim(*(random_images(seed, 2, 11, 12) for seed in (0, 1))).shape == (2,)
    small = random_images(0, height=10)
    with pytest.raises(ConfigError, match="at least 11x11 pixels, got 10x32"):
        metrics.ssim(small, small)


@settings(deadline=None, max_examples=15)
@given(seeds, noises)
def test_fft2d_is_one_less_the_cosine_of_the_pixels(seed, noise):
    found, truth = pair(seed, noise)
    one, other = (arrays(images).reshape(3, -1) for images in (found, truth))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    expected = 1 - np.abs((one * other).sum(axis=1)) / lengths
    np.testing.assert_allclose(metrics.fft2d(found, truth), expected, atol=1e-12)
    assert metrics.fft2d(torch.zeros_like(truth), truth).tolist() == [1, 1, 1]


def test_identical_images_have_the_best_score_of_every_metric_and_it_is_finite():
    truth = random_images(0)
    assert metrics.mse(truth, truth).tolist() == [0, 0, 0]
    assert metrics.psnr(truth, truth).tolist() == pytest.approx([metrics.HIGHEST_PSNR] * 3)
    assert metrics.ssim(truth, truth).tolist() == pytest.approx([1, 1, 1])
    assert metrics.fft2d(truth, truth).tolist() == pytest.approx([0, 0, 0], abs=1e-12)


def test_psnr_does_not_exceed_its_cap_and_is_exact_below_it():
    truth = torch.zeros(3, 3, 64, 32, dtype=torch.float64)
    offsets = torch.tensor([1e-9, 1e-7, 1e-1], dtype=torch.float64).reshape(3, 1, 1, 1)
    assert metrics.psnr(truth + offsets, truth).tolist() == pytest.approx([150, 140, 20])


@pytest.mark.parametrize("metric", ALL)
def test_a_score_does_not_depend_on_the_rest_of_the_batch(metric, monkeypatch):
    found, truth = pair(3)
    whole = metric(found, truth)
    monkeypatch.setattr(metrics, "CHUNK", 2)
    torch.testing.assert_close(metric(found, truth), whole, rtol=1e-10, atol=1e-12)
    alone = torch.cat([metric(found[i : i + 1], truth[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(alone, whole, rtol=1e-10, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(seeds, st.lists(st.booleans(), min_size=24, max_size=24))
def test_psnr_where_counts_the_pixels_of_the_chosen_patches_alone(seed, flags):
    found, truth = pair(seed)
    chosen = np.array(flags).reshape(3, 8)
    chosen[0, 5] = True
    value = metrics.psnr_where(found, truth, torch.from_numpy(chosen), GRID)
    for image in range(3):
        pixels = np.kron(chosen[image].reshape(4, 2), np.ones((16, 16), bool))
        if not pixels.any():
            assert value[image].isnan()
            continue
        difference = (arrays(found)[image] - arrays(truth)[image])[:, pixels]
        assert value[image].item() == pytest.approx(-10 * np.log10(np.mean(difference**2)))


def test_psnr_where_does_not_look_at_patches_that_were_not_chosen():
    found, truth = pair(0)
    chosen = torch.zeros(3, 8, dtype=torch.bool)
    chosen[:, 3] = True
    before = metrics.psnr_where(found, truth, chosen, GRID)
    found[:, :, :16] = torch.nan  # Patches 0 and 1.
    assert torch.equal(metrics.psnr_where(found, truth, chosen, GRID), before)


@pytest.mark.unchecked
def test_psnr_where_refuses_a_mask_of_another_grid():
    found, truth = pair(0)
    with pytest.raises(ConfigError, match="6 patches cannot be chosen of a 4x2 grid"):
        metrics.psnr_where(found, truth, torch.ones(3, 6, dtype=torch.bool), GRID)


def test_baselines_are_the_mean_of_the_others_and_each_images_mean_colour():
    truth = random_images(0)
    mean_image, mean_colour = metrics.baseline_images(truth)
    for image in range(3):
        others = np.delete(truth.numpy(), image, axis=0)
        np.testing.assert_allclose(mean_image[image], others.mean(0), atol=1e-6)
        for channel in range(3):
            expected = truth[image, channel].mean().expand(64, 32)
            torch.testing.assert_close(mean_colour[image, channel], expected)
    # The mean colour is the best of all plain images: its error is the variance of the pixels.
    variance = truth.double().var(dim=(2, 3), correction=0).mean(dim=1)
    torch.testing.assert_close(metrics.mse(mean_colour, truth), variance)
    # A single image is no guess at itself.
    assert (metrics.baseline_images(truth[:1])[0] == 0.5).all()


@pytest.mark.parametrize("chunk", [16384, 100])
def test_planted_neighbours_are_identified_and_strangers_are_not(chunk, monkeypatch):
    monkeypatch.setattr("mjp.privacy.metrics.VALUES_AT_ONCE", chunk)
    gallery = random_images(0, batch=10)
    truth_index = torch.tensor([7, 2, 2, 0])
    found = gallery[truth_index] + 0.05 * random_images(1, batch=4)
    found[2] = gallery[9]
    assert identify(found, gallery, truth_index).tolist() == [True, True, False, True]
    assert not identify(torch.full_like(found, torch.nan), gallery, truth_index).any()


def test_identification_tells_images_apart_that_differ_in_one_pixel_by_one_level():
    gallery = random_images(0, batch=1, height=224, width=96).repeat(3, 1, 1, 1)
    gallery[1, 0, 5, 7] += 1 / 255
    gallery[2, 2, 200, 50] -= 1 / 255
    index = torch.arange(3)
    assert identify(gallery.clone(), gallery, index).all()
    assert not identify(gallery.roll(1, 0), gallery, index).any()


def test_identification_works_on_features_and_counts_twins_as_one():
    gallery = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [5.0, 5.0]])
    found = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [4.0, 4.0]])
    expected = [False, True, True, True]
    assert identify(found, gallery, torch.arange(4)).tolist() == expected


@pytest.mark.unchecked
def test_identification_refuses_features_against_pixels():
    with pytest.raises(ConfigError, match="compare pixels with pixels"):
        identify(torch.zeros(2, 5), torch.zeros(3, 3, 8, 4), torch.zeros(2, dtype=torch.int64))


@pytest.mark.gpu
@pytest.mark.parametrize("metric", ALL)
def test_scores_are_the_same_on_a_gpu(metric):
    found, truth = pair(0)
    on_gpu = metric(found.cuda(), truth.cuda())
    assert on_gpu.is_cuda
    torch.testing.assert_close(on_gpu.cpu(), metric(found, truth), rtol=1e-9, atol=1e-9)
