"""Pictures that can be attacked, in memory only: samples and uploads, read, drawn and forgotten."""

import io
import secrets
import struct
import threading
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageOps, UnidentifiedImageError
from starlette.exceptions import HTTPException
from torch import Tensor

from mjp.data.embedded import photograph
from mjp.jigsaw import PatchGrid
from mjp.web.config import LONGEST_SIDE, SHORTEST_SIDE, ServeOptions

SAMPLES = {
    "astronaut": "Astronaut",
    "coffee": "Coffee",
    "cat": "Cat",
    "retina": "Retina scan",
    "rocket": "Rocket",
    "flower": "Flower",
}
"""Bundled photographs, and what they are called."""
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP"}
"""What is taken, as HTTP and as Pillow call it."""
SHOWN = 384
"""Pixels across a drawing of masked blocks, roughly."""
VEIL = np.array([107.0, 115.0, 125.0])
"""The grey that lies over a masked patch."""
THICKNESS = 0.80
LINE = np.array([250.0, 247.0, 240.0])

Thing = TypeVar("Thing")


class Store(Generic[Thing]):
    """Things by name; full, it forgets what was longest not asked for. Of a name that is not here
    a visitor is told what is missing."""

    def __init__(
        self, options: ServeOptions, missing: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._missing = missing
        self._clock = clock
        self._lock = threading.Lock()
        self._things: dict[str, tuple[float, Thing]] = {}
        """In the order of when they were last asked for."""

    def __len__(self) -> int:
        return len(self._things)

    def add(self, name: str, thing: Thing) -> None:
        """Holds a thing, making room if need be."""
        with self._lock:
            self._things[name] = (self._clock(), thing)
            if len(self._things) > self._options.kept:
                del self._things[next(iter(self._things))]

    def get(self, name: str) -> Thing:
        """The thing, which counts as asked for; a refusal where there is none of this name."""
        self.forget_idle()
        with self._lock:
            thing = self._pop(name)
            self._things[name] = (self._clock(), thing)
            return thing

    def remove(self, name: str) -> None:
        """Forgets a thing; a refusal where there is none of this name."""
        with self._lock:
            self._pop(name)

    def _pop(self, name: str) -> Thing:
        if name not in self._things:
            raise HTTPException(404, self._missing)
        return self._things.pop(name)[1]

    def forget_idle(self) -> None:
        """Forgets what nobody asked for in a while."""
        limit = self._clock() - self._options.idle_seconds
        with self._lock:
            for name in [name for name, (used, _) in self._things.items() if used <= limit]:
                del self._things[name]


def new_id() -> str:
    """A name of 192 random bits, which nobody can guess."""
    return secrets.token_urlsafe(24)


@cache
def sample(name: str) -> Image.Image:
    """A bundled photograph, small; the name is one of `SAMPLES`."""
    image = photograph(name)
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    return image


def read_picture(content: bytes, options: ServeOptions) -> Image.Image:
    """The first frame, upright, in RGB, at most `LONGEST_SIDE` pixels long, with no metadata."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of sizes, which are checked here.
            with Image.open(io.BytesIO(content), formats=list(FORMATS.values())) as picture:
                _check_size(*picture.size, options)
                # Decodes a JPEG at a fraction of the size, where that is enough.
                picture.draft(None, (2 * LONGEST_SIDE, 2 * LONGEST_SIDE))
                return _reduced(picture)
    except UnidentifiedImageError as error:
        raise HTTPException(
            415, "This is no PNG, JPEG or WebP picture, or it is damaged; send one of these."
        ) from error
    except Image.DecompressionBombError as error:
        raise _too_many_pixels("far too many", options) from error
    except (
        *(OSError, SyntaxError, EOFError, struct.error, ValueError, TypeError),
        *(LookupError, ArithmeticError, AttributeError),
    ) as error:  # What decoders trip over in damaged files.
        raise HTTPException(
            422, "The picture is damaged or cut off, and cannot be read. Send it again."
        ) from error


def _check_size(width: int, height: int, options: ServeOptions) -> None:
    if width * height > options.pixels:
        raise _too_many_pixels(f"{width} x {height}", options)
    if min(width, height) < SHORTEST_SIDE:
        least = f"{SHORTEST_SIDE} x {SHORTEST_SIDE}"
        text = f"The picture has {width} x {height} pixels; it takes at least {least} to see"
        raise HTTPException(422, f"{text} anything.")


def _too_many_pixels(number: str, options: ServeOptions) -> HTTPException:
    return HTTPException(
        413,
        f"The picture has {number} pixels; at most {options.pixels / 1e6:g} megapixels are taken. "
        "Make it smaller and send it again.",
    )


def _reduced(picture: Image.Image) -> Image.Image:
    """Turned upright, on white where it is transparent, and small."""
    ImageOps.exif_transpose(picture, in_place=True)
    if picture.mode.startswith("I"):  # 16 bits of grey, of which the upper ones count.
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    small = picture.convert("RGB")
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    # A new picture of the pixels alone: place, time and camera stay behind.
    return Image.fromarray(np.array(small))


def png(image: Image.Image, compress: int = 6) -> bytes:
    """A picture as a file."""
    file = io.BytesIO()
    image.save(file, format="PNG", compress_level=compress)
    return file.getvalue()


def picture_of(image: Float[Tensor, "3 height width"]) -> Image.Image:
    """Pixels in [0, 1] as a picture."""
    levels = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(levels.permute(1, 2, 0).cpu().numpy())


def jigsaw_pictures(
    image: Float[Tensor, "3 height width"],
    fed: Float[Tensor, "3 height width"],
    masked: Bool[Tensor, " patches"],
    grid: PatchGrid,
) -> dict[str, Image.Image]:
    """An image, the same with a veil over its masked patches and lines between them, and what the
    model is fed."""
    zoom = max(1, round(SHOWN / image.shape[1]))
    high, wide = grid.patch_shape(*image.shape[1:])
    cells = masked.reshape(grid.rows, grid.cols).cpu().numpy()
    picture = picture_of(image)
    pixels = np.array(picture)
    hidden = cells.repeat(high, axis=0).repeat(wide, axis=1)
    pixels[hidden] = (1 - THICKNESS) * pixels[hidden] + THICKNESS * VEIL
    pixels = pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)
    edge = np.ones((zoom * high, zoom * wide), dtype=bool)
    edge[1:-1, 1:-1] = False
    lines = np.kron(cells, edge)
    pixels[lines] = (pixels[lines] + LINE) / 2
    veiled = Image.fromarray(pixels)
    return {"picture": picture, "masked": veiled, "shuffled": picture_of(fed)}
