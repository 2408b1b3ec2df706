"""ImageNet-C's corruptions, made of any pictures, seeded for each picture by itself."""

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from mjp.core.configuration import suggestion
from mjp.core.errors import ConfigError, DataError
from mjp.core.seeds import seed_for
from mjp.data.batch import numpy_seeded
from mjp.data.decoding import Decoder, View
from mjp.data.source import Source

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The fifteen of the benchmark: noise, blur, weather, digital."""

EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more, meant for tuning; not part of mCE."""

SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST_SIDE = 32
JPEG_QUALITY = 85
"""What ImageNet-C's own files were written at, after the corruption."""

_TAKES_SEED = ("impulse_noise", "glass_blur")


def corrupt(picture: np.ndarray, name: str, severity: int, seed: int) -> np.ndarray:
    """A corrupted copy of a picture, of shape (height, width, 3) in levels.

    Args:
        seed: decides everything that is random, of 32 bits.
    """
    from imagecorruptions import corrupt as corrupted  # Numba and OpenCV: a second or two.

    check_corruption(name)
    if name in FAST:
        return FAST[name](picture, severity)
    more: dict[str, Any] = {"seed": seed} if name in _TAKES_SEED else {}
    # Where an image's side is not what it expects, the package prints to stdout and goes on; where
    # nothing spatters, it divides by zero.
    with (
        numpy_seeded(seed),
        contextlib.redirect_stdout(io.StringIO()),
        np.errstate(all="ignore"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)
        made: np.ndarray = corrupted(picture, severity, name, **more)
    return made


def check_corruption(name: str) -> None:
    """Raises unless there is such a corruption."""
    known = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
    if name not in known:
        raise ConfigError(f"there is no corruption {name!r}{suggestion(name, list(known))}")


class CorruptingDecoder(Decoder):
    """Gives every severity of one corruption of each picture, as (severities, 3, height, width).

    The picture is cut to what the model sees and then corrupted, as ImageNet-C was made; then it
    goes through JPEG once, as ImageNet-C's files did. What is random depends on the seed, the
    picture's number, the corruption and the severity, and on nothing else.

    Args:
        quality: of the JPEG; None leaves it out.
        keep: a folder to write the files to, in ImageNet-C's layout.
    """

    def __init__(
        self,
        source: Source,
        view: View,
        corruption: str,
        seed: int,
        *,
        quality: int | None = JPEG_QUALITY,
        keep: Path | None = None,
    ) -> None:
        check_corruption(corruption)
        height, width = view.size
        if min(view.size) < SMALLEST_SIDE:
            raise ConfigError(
                f"corruptions are for images of at least {SMALLEST_SIDE}x{SMALLEST_SIDE} pixels, "
                f"not {height}x{width}"
            )
        for name in source.classes if keep else ():
            if not name or name[0] == "." or any(mark in name for mark in "/\\\0"):
                raise DataError(
                    f"{source.name}: the class {name!r} cannot be a folder's name, so --keep "
                    "cannot write it"
                )
        super().__init__(source, view.transform(), seed)
        self._corruption = corruption
        self._quality = quality
        self._keep = keep
        # Better done once, before processes are forked: imports, and compiling glass blur.
        import cv2

        cv2.setNumThreads(0)  # Processes share the cores; and threads do not outlive a fork.
        corrupt(np.zeros((SMALLEST_SIDE, SMALLEST_SIDE, 3), np.uint8), "glass_blur", 1, 0)

    def shown(self, picture: Image.Image, place: int) -> UInt8[Tensor, "5 3 height width"]:
        clean = np.ascontiguousarray(np.asarray(self.transform(picture)).transpose(1, 2, 0))
        versions = []
        for severity in SEVERITIES:
            seed = seed_for(self.seed, f"{self._corruption} {severity}", step=place) % 2**32
            made = corrupt(clean, self._corruption, severity, seed)
            versions.append(self._through_jpeg(made, severity, place))
        return torch.from_numpy(np.stack(versions)).permute(0, 3, 1, 2).contiguous()

    def _through_jpeg(self, made: np.ndarray, severity: int, place: int) -> np.ndarray:
        if self._quality is None:
            return made
        buffer = io.BytesIO()
        Image.fromarray(made).save(buffer, "JPEG", quality=self._quality)
        if self._keep is not None:
            label = self.source.classes[int(self.source.labels[place])]
            folder = self._keep / self._corruption / str(severity) / label
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{place:08d}.jpg").write_bytes(buffer.getvalue())
        with Image.open(buffer) as read:
            return np.asarray(read.convert("RGB"))


def find_prepared(root: Path) -> dict[str, list[Path]]:
    """The severities' folders of each corruption in a copy of ImageNet-C; empty if it is none.

    Corruptions may lie in the root, or one level deeper, as the published archives put them.
    """
    found: dict[str, list[Path]] = {}
    for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS):
        for place in [root / name, *sorted(root.glob(f"*/{name}"))]:
            folders = [place / str(severity) for severity in SEVERITIES]
            missing = [folder.name for folder in folders if not folder.is_dir()]
            if len(missing) == len(folders):
                continue  # None, or a class that is called so, in a clean set.
            if missing:
                raise DataError(f"{place} has no severity {', '.join(missing)}")
            found[name] = folders
            break
    return found


ZOOMS = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
"""End and step of the zoom factors at each severity."""
BRIGHTER = (0.1, 0.2, 0.3, 0.4, 0.5)
SATURATIONS = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))
"""Factor and offset of the saturation at each severity."""


def zoom_blur(picture: np.ndarray, severity: int) -> np.ndarray:
    """The mean of the picture and of ever larger zooms into its middle.

    At some sizes, scipy's zoom rounds its way past the last row or column and leaves it black; this
    does not.
    """
    end, step = ZOOMS[severity - 1]
    factors = np.arange(1, end, step)
    image = torch.from_numpy(picture.astype(np.float32) / 255).permute(2, 0, 1)[None]
    height, width = picture.shape[:2]
    total = image.clone()
    for factor in factors:
        high, wide = (int(np.ceil(side / factor)) for side in (height, width))
        top, left = (height - high) // 2, (width - wide) // 2
        part = image[:, :, top : top + high, left : left + wide]
        size = (round(high * factor), round(wide * factor))
        # Corners on corners, as scipy.ndimage.zoom samples.
        zoomed = F.interpolate(part, size, mode="bilinear", align_corners=True)
        zoomed = zoomed[:, :, :height, :width]
        total[:, :, : zoomed.shape[2], : zoomed.shape[3]] += zoomed
    mean = (total / (len(factors) + 1)).clamp(0, 1)
    return (mean[0].permute(1, 2, 0) * 255).numpy().astype(np.uint8)


def brightness(picture: np.ndarray, severity: int) -> np.ndarray:
    """The picture with a higher value in HSV: hue and saturation stay, so colours are scaled."""
    image = picture / 255
    value = image.max(axis=2, keepdims=True)
    brighter = np.clip(value + BRIGHTER[severity - 1], 0, 1)
    scaled = image * (brighter / np.where(value > 0, value, 1))
    return (np.clip(np.where(value > 0, scaled, brighter), 0, 1) * 255).astype(np.uint8)


def saturate(picture: np.ndarray, severity: int) -> np.ndarray:
    """The picture with another saturation in HSV: distances from the value are scaled."""
    factor, offset = SATURATIONS[severity - 1]
    image = picture / 255
    value = image.max(axis=2, keepdims=True)
    spread = value - image.min(axis=2, keepdims=True)
    old = spread / np.where(value > 0, value, 1)
    new = np.clip(old * factor + offset, 0, 1)
    made = value - (value - image) * (new / np.where(old > 0, old, 1))
    # Grey has no hue; in HSV it is called red.
    red = value * np.concatenate((np.ones_like(new), 1 - new, 1 - new), axis=2)
    return (np.clip(np.where(old > 0, made, red), 0, 1) * 255).astype(np.uint8)


FAST = {fast.__name__: fast for fast in (zoom_blur, brightness, saturate)}
