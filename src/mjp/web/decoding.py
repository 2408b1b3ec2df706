"""From bytes that somebody sent to a small picture, in memory; or to a sentence on why not."""

import io
import struct
import warnings

import numpy as np
from PIL import Image, UnidentifiedImageError

from mjp.web.limits import LONGEST_SIDE, SHORTEST_SIDE, Limits
from mjp.web.refusing import RefusedError

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP"}
"""What is taken, as HTTP and as Pillow call it."""
TAKEN = "PNG, JPEG or WebP"
_OTHERS = (
    (b"GIF8", "a GIF"),
    (b"BM", "a BMP"),
    (b"II*\0", "a TIFF"),
    (b"MM\0*", "a TIFF"),
    (b"%PDF", "a PDF"),
    (b"<?xml", "an XML or SVG file"),
    (b"<svg", "an SVG"),
    (b"PK\x03\x04", "a ZIP archive"),
)
"""How other files begin that people may take for pictures."""
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture upright, by EXIF's number of how the camera was held."""


def read_picture(content: bytes, limits: Limits) -> Image.Image:
    """The first frame, upright, in RGB, at most `LONGEST_SIDE` pixels long, with no metadata."""
    kind = _sniff(content)
    if kind == "WEBP":  # Pillow reserves the whole canvas before it tells the size.
        _check_size(*_webp_size(content), limits)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of sizes, which are checked here.
            with Image.open(io.BytesIO(content), formats=[kind]) as picture:
                _check_size(*picture.size, limits)
                if kind == "JPEG":  # Decodes at a fraction of the size, where that is enough.
                    picture.draft(None, (2 * LONGEST_SIDE, 2 * LONGEST_SIDE))
                picture.load()
                return _reduced(picture)
    except RefusedError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(limits) from error
    except UnidentifiedImageError as error:
        raise _broken(kind) from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error) as error:
        raise _broken(kind) from error


def _sniff(content: bytes) -> str:
    """Pillow's name of the format that the first bytes tell; what a sender calls it is ignored."""
    if not content:
        raise RefusedError(422, f"The file is empty. Send a {TAKEN} picture.")
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if content.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    if content[4:8] == b"ftyp":
        raise RefusedError(
            415, f"This looks like a HEIC, AVIF or video file. Export the picture as {TAKEN}."
        )
    for start, name in _OTHERS:
        if content.startswith(start):
            raise RefusedError(415, f"This is {name}, which is not taken. Send a {TAKEN} picture.")
    raise RefusedError(415, f"This is no picture that can be read. Send a {TAKEN} picture.")


def _webp_size(content: bytes) -> tuple[int, int]:
    """Width and height as the header of a WebP file says."""
    kind, body = content[12:16], content[20:]
    try:
        if kind == b"VP8X":
            return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
        if kind == b"VP8L":
            (bits,) = struct.unpack("<I", body[1:5])
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        width, height = struct.unpack("<HH", body[6:10])
    except struct.error as error:
        raise _broken("WEBP") from error
    return width & 0x3FFF, height & 0x3FFF


def _check_size(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.pixels:
        raise _too_many_pixels(limits, width, height)
    if min(width, height) < SHORTEST_SIDE:
        raise RefusedError(
            422,
            f"The picture has {width} x {height} pixels; it takes at least {SHORTEST_SIDE} x "
            f"{SHORTEST_SIDE} to see anything.",
        )


def _too_many_pixels(limits: Limits, width: int = 0, height: int = 0) -> RefusedError:
    size = f"{width} x {height} pixels" if width else "far too many pixels"
    return RefusedError(
        413,
        f"The picture has {size}; at most {limits.pixels / 1e6:g} megapixels are taken. "
        "Make it smaller and send it again.",
    )


def _broken(kind: str) -> RefusedError:
    name = "WebP" if kind == "WEBP" else kind
    return RefusedError(
        422, f"The file begins as a {name} picture, but it is damaged or cut off. Send it again."
    )


def _reduced(picture: Image.Image) -> Image.Image:
    """Shrunk first, so that what follows is cheap; then turned upright and made RGB."""
    turn = _TURNS.get(picture.getexif().get(_ORIENTATION, 1))
    if picture.mode.startswith("I"):  # 16 bits of grey, of which the upper ones count.
        levels = np.asarray(picture).astype(np.uint32)
        shift = 8 if levels.max() > 255 else 0
        picture = Image.fromarray((levels >> shift).clip(0, 255).astype(np.uint8))
    if picture.mode not in ("L", "RGB"):
        picture = _on_white(picture)
    small = picture.copy() if max(picture.size) <= LONGEST_SIDE else picture
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    small = small.convert("RGB")
    if turn is not None:
        small = small.transpose(turn)
    # A new picture of the pixels alone: place, time and camera stay behind.
    return Image.fromarray(np.array(small))


def _on_white(picture: Image.Image) -> Image.Image:
    """Palettes, transparency and printing colours as RGB."""
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        ground = Image.new("RGB", layer.size, "white")
        ground.paste(layer, mask=layer.getchannel("A"))
        return ground
    return picture.convert("RGB")
