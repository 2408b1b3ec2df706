"""Photographs that installed packages carry: pictures to try things on without any file."""

import numpy as np
from PIL import Image

from mjp.core.errors import ConfigError

PHOTOGRAPHS = (
    *("astronaut", "coffee", "rocket", "cat", "retina"),
    *("china", "flower", "motorcycle", "hubble_deep_field", "immunohistochemistry"),
)
"""scikit-image's, but for china and flower, which are scikit-learn's."""


def photograph(name: str) -> Image.Image:
    """One of the photographs, in RGB."""
    if name not in PHOTOGRAPHS:
        raise ConfigError(f"there is no photograph {name!r}; there are {', '.join(PHOTOGRAPHS)}")
    if name in ("china", "flower"):
        from sklearn.datasets import load_sample_image

        return Image.fromarray(np.array(load_sample_image(f"{name}.jpg")))
    from skimage import data

    levels = data.stereo_motorcycle()[0] if name == "motorcycle" else getattr(data, name)()
    return Image.fromarray(np.asarray(levels)).convert("RGB")
