"""Whether a reconstruction is nearer to its own image than to any other of a gallery."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.errors import ConfigError

CHUNK = 16384
"""Values of each vector that are taken at a time, in double precision."""


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
    for piece, others in zip(found.split(CHUNK, 1), gallery.split(CHUNK, 1), strict=True):
        piece, others = piece.double(), others.double()
        total += piece.square().sum(dim=1)[:, None] + others.square().sum(dim=1)
        total -= 2 * piece @ others.T
    return total
