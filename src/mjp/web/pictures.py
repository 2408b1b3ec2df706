"""Pictures that can be attacked, in memory only: samples and uploads, read, drawn and forgotten."""

import io
import secrets
import struct
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
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

SAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "astronaut": "Astronaut",
        "coffee": "Coffee",
        "cat": "Cat",
        "retina": "Retina scan",
        "rocket": "Rocket",
        "flower": "Flower",
    }
)
"""Bundled photographs, and what they are called."""
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP"}
"""What is taken, as HTTP and as Pillow call it."""
TAKEN = "PNG, JPEG or WebP"
_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF8", "a GIF"),
    (b"BM", "a BMP"),
    (b"II*\0", "a TIFF"),
    (b"MM\0*", "a TIFF"),
    (b"%PDF", "a PDF"),
    (b"<?xml", "an XML or SVG file"),
    (b"<svg", "an SVG"),
    (b"PK\x03\x04", "a ZIP archive"),
)
"""How files begin that are pictures, and others that people may take for one."""
SHOWN = 384
"""Pixels across a drawing of masked blocks, roughly."""
VEIL = np.array([107.0, 115.0, 125.0])
"""The grey that lies over a masked patch."""
THICKNESS = 0.80
LINE = np.array([250.0, 247.0, 240.0])

Thing = TypeVar("Thing")


class Store(Generic[Thing]):
    """Things by names that nobody can guess; full, it forgets what was longest not asked for.

    Args:
        most: things that it holds.
        idle_seconds: after which a thing is forgotten unless somebody asks for it.
        keep: whether a thing has to stay whatever happens, such as a job that runs.
    """

    def __init__(
        self,
        most: int,
        idle_seconds: float,
        *,
        keep: Callable[[Thing], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._keep = keep
        self._clock = clock
        self._lock = threading.Lock()
        self._things: OrderedDict[str, tuple[float, Thing]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._things)

    def add(self, name: str, thing: Thing) -> None:
        """Holds a thing, making room if need be."""
        with self._lock:
            self._things[name] = (self._clock(), thing)
            for other, (_, held) in list(self._things.items()):
                if len(self._things) > self._most and other != name and not self._keep(held):
                    del self._things[other]

    def get(self, name: str) -> Thing | None:
        """The thing, which counts as asked for; None where there is none of this name."""
        self.forget_idle()
        with self._lock:
            if name not in self._things:
                return None
            thing = self._things[name][1]
            self._things[name] = (self._clock(), thing)
            self._things.move_to_end(name)
            return thing

    def remove(self, name: str) -> bool:
        """Forgets a thing; whether it was there."""
        with self._lock:
            return self._things.pop(name, None) is not None

    def forget_idle(self) -> None:
        """Forgets what nobody asked for in a while."""
        limit = self._clock() - self._idle_seconds
        with self._lock:
            for name, (used, thing) in list(self._things.items()):
                if used <= limit and not self._keep(thing):
                    del self._things[name]


def new_id() -> str:
    """A name of 192 random bits."""
    return secrets.token_urlsafe(24)


class Pictures:
    """Samples and uploads by name; those of visitors have names that nobody can guess."""

    def __init__(self, options: ServeOptions) -> None:
        self.uploads: Store[Image.Image] = Store(options.kept, options.idle_seconds)

    def get(self, name: str) -> Image.Image:
        """The picture of this name; a refusal where there is none."""
        image = sample(name) if name in SAMPLES else self.uploads.get(name)
        if image is None:
            raise HTTPException(
                404, "There is no such picture; it may have been forgotten. Upload it again."
            )
        return image

    def remove(self, name: str) -> None:
        """Forgets a picture; a refusal where there is none."""
        if name in SAMPLES:
            raise HTTPException(403, "A bundled picture cannot be removed.")
        if not self.uploads.remove(name):
            raise HTTPException(
                404, "There is no such picture; it may have been forgotten already."
            )


@cache
def sample(name: str) -> Image.Image:
    """A bundled photograph, small; the name is one of `SAMPLES`."""
    image = photograph(name)
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    return image


def read_picture(content: bytes, options: ServeOptions) -> Image.Image:
    """The first frame, upright, in RGB, at most `LONGEST_SIDE` pixels long, with no metadata."""
    kind = _sniff(content)
    try:
        if kind == "WEBP":  # Pillow reserves the whole canvas before it tells the size.
            _check_size(*_webp_size(content), options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of sizes, which are checked here.
            with Image.open(io.BytesIO(content), formats=[kind]) as picture:
                _check_size(*picture.size, options)
                if kind == "JPEG":  # Decodes at a fraction of the size, where that is enough.
                    picture.draft(None, (2 * LONGEST_SIDE, 2 * LONGEST_SIDE))
                return _reduced(picture)
    except Image.DecompressionBombError as error:
        raise _too_many_pixels("far too many", options) from error
    except (
        *(UnidentifiedImageError, OSError, SyntaxError, EOFError, struct.error),
        *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
    ) as error:  # What decoders trip over in damaged files.
        name = "WebP" if kind == "WEBP" else kind
        raise HTTPException(
            422,
            f"The file begins as a {name} picture, but it is damaged or cut off. Send it again.",
        ) from error


def _sniff(content: bytes) -> str:
    """Pillow's name of the format that the first bytes tell; what a sender calls it is ignored."""
    if not content:
        raise HTTPException(422, f"The file is empty. Send a {TAKEN} picture.")
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    if content[4:8] == b"ftyp":
        raise HTTPException(
            415, f"This looks like a HEIC, AVIF or video file. Export the picture as {TAKEN}."
        )
    name = next((name for start, name in _STARTS if content.startswith(start)), None)
    if name is None:
        raise HTTPException(415, f"This is no picture that can be read. Send a {TAKEN} picture.")
    if name not in FORMATS.values():
        raise HTTPException(415, f"This is {name}, which is not taken. Send a {TAKEN} picture.")
    return name


def _webp_size(content: bytes) -> tuple[int, int]:
    """Width and height as the header of a WebP file says."""
    kind, body = content[12:16], content[20:]
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L":
        (bits,) = struct.unpack("<I", body[1:5])
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", body[6:10])
    return width & 0x3FFF, height & 0x3FFF


def _check_size(width: int, height: int, options: ServeOptions) -> None:
    if width * height > options.pixels:
        raise _too_many_pixels(f"{width} x {height}", options)
    if min(width, height) < SHORTEST_SIDE:
        raise HTTPException(
            422,
            f"The picture has {width} x {height} pixels; it takes at least {SHORTEST_SIDE} x "
            f"{SHORTEST_SIDE} to see anything.",
        )


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
        levels = np.asarray(picture).astype(np.uint32)
        shift = 8 if levels.max() > 255 else 0
        picture = Image.fromarray((levels >> shift).clip(0, 255).astype(np.uint8))
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        picture = Image.new("RGB", layer.size, "white")
        picture.paste(layer, mask=layer.getchannel("A"))
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


def masked_blocks(
    image: Float[Tensor, "3 height width"], masked: Bool[Tensor, " patches"], grid: PatchGrid
) -> Image.Image:
    """The picture with a veil over its masked patches, and lines between them."""
    zoom = max(1, round(SHOWN / image.shape[1]))
    high, wide = grid.patch_shape(*image.shape[1:])
    cells = masked.reshape(grid.rows, grid.cols).cpu().numpy()
    pixels = np.array(picture_of(image))
    hidden = cells.repeat(high, axis=0).repeat(wide, axis=1)
    pixels[hidden] = (1 - THICKNESS) * pixels[hidden] + THICKNESS * VEIL
    pixels = pixels.repeat(zoom, axis=0).repeat(zoom, axis=1)
    edge = np.ones((zoom * high, zoom * wide), dtype=bool)
    edge[1:-1, 1:-1] = False
    lines = np.kron(cells, edge)
    pixels[lines] = (pixels[lines] + LINE) / 2
    return Image.fromarray(pixels)
