"""Images that need no file: digits, a set in which positions decide the class, photographs."""

from typing import Literal

import numpy as np
from PIL import Image

from mjp.core.errors import ConfigError
from mjp.data.source import Sample, Source

Split = Literal["train", "val"]


class DigitsSource(Source):
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels; every fifth is for validation."""

    def __init__(self, split: Split) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        held_out = np.arange(len(digits.target)) % 5 == 4
        chosen = np.flatnonzero(held_out if split == "val" else ~held_out)
        grey = np.round(digits.images[chosen] * (255 / 16)).astype(np.uint8)
        self._images = np.repeat(grey[..., None], 3, axis=-1)
        self._split = split
        super().__init__(tuple("0123456789"), digits.target[chosen], f"digits ({split})")

    def name_of(self, index: int) -> str:
        return f"digit {index} of the {self._split} split"

    def __getitem__(self, index: int) -> Sample:
        return Sample(self._images[index], int(self.labels[index]))


class PositionsSource(Source):
    """Discs and crosses on a noisy ground; the class is the region that the one disc lies in.

    Every image has one bright disc and three dark crosses, one object in each of four of the nine
    regions. What can be seen is alike in all classes; where the disc is, is the class.
    A model that does not know where its patches are can only guess.

    Args:
        size: how many images there are.
        side: pixels of a side; a multiple of 12, so that regions hold whole patches of 4.
        seed: image number i is a function of the seed, the split and i alone.
    """

    REGIONS = 3

    def __init__(self, split: Split, size: int, *, side: int = 48, seed: int = 0) -> None:
        self._split = split
        self._side = side
        self._key = (seed, 0 if split == "train" else 1)
        classes = tuple(
            f"{row}-{col}"
            for row in ("top", "middle", "bottom")
            for col in ("left", "centre", "right")
        )
        labels = np.random.default_rng((*self._key, 2**31)).integers(0, len(classes), size)
        super().__init__(classes, labels, f"positions ({split})")

    def name_of(self, index: int) -> str:
        return f"image {index} of the {self._split} split of positions"

    def __getitem__(self, index: int) -> Sample:
        label = int(self.labels[index])
        draw = np.random.default_rng((*self._key, index))
        side = self._side
        image = draw.normal(110, 10, (side, side, 3))
        others = draw.permutation([region for region in range(9) if region != label])[:3]
        for region in others:
            self._paint(image, int(region), "cross", draw)
        self._paint(image, label, "disc", draw)
        pixels = np.clip(np.round(image), 0, 255).astype(np.uint8)
        return Sample(pixels, label)

    def _paint(
        self,
        image: np.ndarray,
        region: int,
        shape: Literal["disc", "cross"],
        draw: np.random.Generator,
    ) -> None:
        """One object somewhere in a region: a disc in a light colour, a cross in a dark one."""
        width = self._side // self.REGIONS
        radius = width * draw.uniform(0.22, 0.34)
        row, col = divmod(region, self.REGIONS)
        middle = draw.uniform(radius, width - radius, 2) + np.array([row, col]) * width
        down, right = np.mgrid[: self._side, : self._side] + 0.5 - middle[:, None, None]
        if shape == "disc":
            inside = down**2 + right**2 <= radius**2
        else:
            arm = radius * 0.35
            inside = (np.abs(down) <= radius) & (np.abs(right) <= radius)
            inside &= (np.abs(down) <= arm) | (np.abs(right) <= arm)
        color = draw.uniform(170, 250, 3) if shape == "disc" else draw.uniform(0, 60, 3)
        image[inside] = color + draw.normal(0, 12, (int(inside.sum()), 3))


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
