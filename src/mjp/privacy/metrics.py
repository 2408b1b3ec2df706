"""How near a reconstruction comes to the image: a number for each image, pixels in [0, 1]."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import cosine_similarity

from mjp.core.errors import ConfigError
from mjp.jigsaw import PatchGrid

HIGHEST_PSNR = 150.0
"""In dB; nothing scores more, so that identical images have a number and means stay finite.

A root mean square error of 3e-8: below it single precision cannot tell two images apart.
"""

WINDOW, SIGMA = 11, 1.5
"""Pixels across the Gaussian window of SSIM, and its width."""

CHUNK = 64
"""Images that the costly metrics take at a time, so that memory does not grow with the batch."""

VALUES_AT_ONCE = 16384
"""Values of each vector that distances take at a time, in double precision."""

Images = Float[Tensor, "batch 3 height width"]
Scores = Float[Tensor, " batch"]

# Everything is computed in double precision: an exact attack ends 1e-7 from the image, and SSIM
# takes differences of squares, which the TF32 of a GPU's convolutions would drown.


def mse(found: Images, truth: Images) -> Scores:
    """Mean squared error of the pixels."""
    return _squared_error(found, truth).mean(dim=(1, 2, 3))


def psnr(found: Images, truth: Images) -> Scores:
    """Peak signal-to-noise ratio in dB, for a peak of 1; at most `HIGHEST_PSNR`."""
    return _decibel(mse(found, truth))


def psnr_where(
    found: Images, truth: Images, chosen: Bool[Tensor, "batch patches"], grid: PatchGrid
) -> Scores:
    """PSNR over the pixels of each image's chosen patches alone; nan where it has none."""
    if chosen.shape[1] != grid.num_patches:
        raise ConfigError(
            f"{chosen.shape[1]} patches cannot be chosen of a {grid} grid, which has "
            f"{grid.num_patches}"
        )
    errors = grid.split(_squared_error(found, truth)).mean(dim=(2, 3, 4))
    # Not a product: what an attack left undefined elsewhere must not count.
    total = torch.where(chosen, errors, 0).sum(dim=1)
    return _decibel(total / chosen.sum(dim=1))


def ssim(found: Images, truth: Images) -> Scores:
    """Structural similarity: Gaussian window of 11x11 pixels, σ 1.5, mean over the channels.

    Counts only the windows that lie inside the image, as its authors and scikit-image do;
    torchmetrics' own mean would count mirrored borders too.
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    height, width = found.shape[2:]
    if min(height, width) < WINDOW:
        raise ConfigError(
            f"SSIM needs images of at least {WINDOW}x{WINDOW} pixels, got {height}x{width}"
        )
    similarity = partial(
        structural_similarity_index_measure,
        sigma=SIGMA,
        kernel_size=WINDOW,
        reduction="none",
        data_range=1.0,
        return_full_image=True,
    )
    inside = (slice(WINDOW // 2, size - WINDOW // 2) for size in (height, width))
    part = (slice(None), slice(None), *inside)
    return in_chunks(
        lambda one, other: similarity(one.double(), other.double())[1][part].mean(dim=(1, 2, 3)),
        found,
        truth,
    )


def fft2d(found: Images, truth: Images) -> Scores:
    """The paper's FFT2D: 1 - |cosine similarity| of the two complex 2-D spectra.

    The inner product conjugates, so by Parseval's theorem this is 1 - |cosine of the pixels|, and
    so it is computed: it says nothing of frequencies. It is here as the paper's column and nothing
    more. A black image has no direction and scores 1.
    """
    one, other = (images.double().flatten(1) for images in (found, truth))
    cosine = cosine_similarity(one, other, eps=torch.finfo(torch.float64).tiny)
    return 1 - cosine.abs().clamp_max(1)  # Rounding can leave it a little above.


def baseline_images(truth: Images) -> tuple[Images, Images]:
    """What anyone can guess: the mean of the other images, and each image's own mean colour.

    A single image has no others; grey stands in for their mean.
    """
    others = (truth.sum(dim=0, keepdim=True) - truth) / max(len(truth) - 1, 1)
    mean_image = others if len(truth) > 1 else torch.full_like(truth, 0.5)
    mean_colour = truth.mean(dim=(2, 3), keepdim=True).expand_as(truth)
    return mean_image, mean_colour


def identify(
    found: Float[Tensor, "batch *values"],
    gallery: Float[Tensor, "images *values"],
    truth_index: Int64[Tensor, " batch"],
) -> Bool[Tensor, " batch"]:
    """Whether no image of the gallery is nearer, in Euclidean distance, than the true one.

    Serves pixels and features alike: whatever is not the batch is flattened. A guess is right one
    time in `len(gallery)`. Twins in the gallery count as the same image; a reconstruction that is
    no number identifies nothing.

    Args:
        truth_index: where in the gallery the image of each reconstruction is.
    """
    if found.shape[1:] != gallery.shape[1:]:
        raise ConfigError(
            f"what was found has shape {tuple(found.shape[1:])} for each image, the gallery "
            f"{tuple(gallery.shape[1:])}; compare pixels with pixels or features with features"
        )
    distances = squared_distances(found.flatten(1), gallery.flatten(1))
    own = distances.gather(1, truth_index[:, None]).squeeze(1)
    return own <= distances.amin(dim=1)


def squared_distances(
    found: Float[Tensor, "batch dim"], gallery: Float[Tensor, "images dim"]
) -> Float[Tensor, "batch images"]:
    """Squared Euclidean distance of every vector to every one of the gallery.

    By |a|² + |b|² - 2ab, which is a product of matrices. Double precision pays for the difference
    of large numbers, and the vectors are taken piece by piece to bound the memory.
    """
    total = torch.zeros(len(found), len(gallery), dtype=torch.float64, device=found.device)
    for piece, others in zip(
        found.split(VALUES_AT_ONCE, 1), gallery.split(VALUES_AT_ONCE, 1), strict=True
    ):
        piece, others = piece.double(), others.double()
        total += piece.square().sum(dim=1)[:, None] + others.square().sum(dim=1)
        total -= 2 * piece @ others.T
    return total


def in_chunks(measure: Callable[[Tensor, Tensor], Tensor], found: Images, truth: Images) -> Scores:
    """The measure of all images, a few at a time."""
    pairs = zip(found.split(CHUNK), truth.split(CHUNK), strict=True)
    return torch.cat([measure(one, other) for one, other in pairs])


def _squared_error(found: Tensor, truth: Tensor) -> Tensor:
    return (found.double() - truth.double()).square()


def _decibel(error: Tensor) -> Tensor:
    return -10 * error.clamp_min(10 ** (-HIGHEST_PSNR / 10)).log10()
