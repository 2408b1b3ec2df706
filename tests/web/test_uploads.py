"""Uploads: what is taken, what is refused and how, and what is kept of it."""

import io
import pickle
import socket
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from starlette.exceptions import HTTPException

from mjp.web.config import LONGEST_SIDE, ServeOptions
from mjp.web.pictures import Store, read_picture
from tests.web.running import OPENED, encoded, picture


def seen(client, name: str) -> Image.Image:
    answer = client.get(f"/api/pictures/{name}")
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(answer.content))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises so many pixels, and which is a few bytes long."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 100))


def webp_bomb(width: int, height: int) -> bytes:
    """A WebP of two frames of a few pixels on a canvas of so many."""
    frame = Image.new("RGB", (16, 16), "red")
    moving = {"save_all": True, "append_images": [Image.new("RGB", (16, 16))], "lossless": True}
    whole = encoded(frame, "WEBP", **moving)
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return whole[:24] + canvas + whole[30:]


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 415, "no PNG, JPEG or WebP picture"),
        (b"just some text", 415, "no PNG, JPEG or WebP picture"),
        (encoded(picture(), "GIF"), 415, "no PNG, JPEG or WebP picture"),
        (encoded(picture(), "TIFF"), 415, "no PNG, JPEG or WebP picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "no PNG, JPEG or WebP picture"),
        (pickle.dumps({"a": 1}), 415, "no PNG, JPEG or WebP picture"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), 415, "or it is damaged"),
        (encoded(picture())[:200], 422, "damaged or cut off"),
        (encoded(picture(), "JPEG")[:300], 422, "damaged or cut off"),
        (encoded(picture(), "WEBP")[:60], 422, "damaged or cut off"),
        (b"RIFF\0\0\0\0WEBPVP8 ", 422, "damaged or cut off"),
        (bomb(50_000, 50_000), 413, "1 megapixels"),
        (bomb(1001, 1000), 413, "1001 x 1000 pixels"),
        (webp_bomb(10_000, 10_000), 413, "10000 x 10000 pixels"),
        (webp_bomb(16_000, 16_000), 413, "1 megapixels"),
        (bomb(2_000_000_000, 2), 413, "megapixels"),
        (encoded(Image.new("RGB", (15, 400))), 422, "at least 16 x 16"),
        (bytes(300_001), 413, "at most 0.3 MB"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(server, content, status, words):
    answer = server.upload(content)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]
    assert set(answer.json()) == {"error"}


def test_a_body_without_a_length_is_counted_as_it_comes(server):
    def endless():
        for _ in range(40):
            yield bytes(20_000)

    answer = server.client.post("/api/pictures", content=endless())
    assert answer.status_code == 413
    assert "at most 0.3 MB" in answer.json()["error"]


@pytest.mark.parametrize("length", ["99999999999999", "-5", "9" * 30])
def test_a_length_that_is_too_large_is_refused_before_anything_arrives(server, length):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as line:
        head = f"POST /api/pictures HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n"
        line.sendall(head.encode())
        status = line.recv(4096).split(b" ")[1]
    # What is no length at all is refused by the HTTP server itself.
    assert status == (b"413" if len(length) == 14 else b"400")


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG"])
def test_what_was_sent_comes_back_upright_and_without_where_it_was_taken(server, kind):
    sent = picture(5, (80, 40))
    exif = Image.Exif()
    exif[0x0112] = 6  # The camera was held on its side.
    exif[0x010F] = "SecretCamera"
    exif.get_ifd(0x8825)[2] = (52.0, 31.0, 12.0)
    lossless = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(sent, kind, exif=exif, **lossless)
    assert b"SecretCamera" in content
    answer = server.upload(content)
    assert answer.status_code == 201
    taken = answer.json()
    assert (len(taken["id"]), taken["width"], taken["height"]) == (32, 40, 80)
    back = seen(server.client, taken["id"])
    assert back.size == (40, 80)
    upright = np.asarray(sent.transpose(Image.Transpose.ROTATE_270), int)
    difference = np.abs(np.asarray(back, int) - upright)
    assert difference.mean() < 4 if kind == "JPEG" else difference.max() == 0
    assert not back.getexif()
    assert not {"exif", "icc_profile", "xmp"} & set(back.info)
    assert b"SecretCamera" not in server.client.get(f"/api/pictures/{taken['id']}").content
    small = server.client.get(f"/api/pictures/{taken['id']}?side=32")
    assert Image.open(io.BytesIO(small.content)).size == (32, 32)


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGBA", (40, 30), (255, 0, 0, 0)),
        Image.new("LA", (40, 30), (0, 0)),
        Image.new("L", (40, 30), 255),
        Image.new("1", (40, 30), 1),
        Image.new("P", (40, 30), 0).convert("P", palette=Image.Palette.ADAPTIVE),
        Image.fromarray(np.full((30, 40), 65535, dtype=np.uint16)),
    ],
    ids=lambda image: image.mode,
)
def test_every_kind_of_colour_becomes_rgb_on_white(image):
    found = read_picture(encoded(image), ServeOptions())
    assert found.mode == "RGB"
    assert found.size == (40, 30)
    if image.mode != "P":
        assert np.asarray(found).min() == 255


def test_cmyk_moving_and_large_pictures_are_read_too():
    assert read_picture(encoded(picture().convert("CMYK"), "JPEG"), ServeOptions()).mode == "RGB"
    frames = [picture(1), picture(2)]
    moving = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    first = np.asarray(read_picture(moving, ServeOptions()), int)
    assert np.abs(first - np.asarray(frames[0], int)).max() == 0
    large = read_picture(encoded(picture(0, (2000, 900)), "JPEG"), ServeOptions())
    assert max(large.size) == LONGEST_SIDE
    assert abs(large.width / large.height - 2000 / 900) < 0.02


def test_random_damage_is_refused_and_never_crashes():
    draw = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "Camera"
    exif.get_ifd(0x8825)[2] = (52.0, 31.0, 12.0)
    for kind in ("PNG", "JPEG", "WEBP"):
        whole = np.frombuffer(encoded(picture(), kind, exif=exif), np.uint8)
        for start in draw.integers(0, len(whole) - 200, 120):
            broken = whole.copy()
            broken[start + draw.integers(0, 200, 12)] = draw.integers(0, 256, 12)
            status = 201
            try:
                assert read_picture(broken.tobytes(), ServeOptions(megapixels=1)).mode == "RGB"
            except HTTPException as error:
                status = error.status_code
            assert status in (201, 413, 415, 422)


def test_a_removed_picture_is_gone_and_nobody_else_has_it(server):
    first, second = (server.upload(encoded(picture(seed))).json()["id"] for seed in (1, 2))
    assert first != second
    assert server.client.delete(f"/api/pictures/{first}").status_code == 204
    assert server.client.delete(f"/api/pictures/{first}").status_code == 404
    assert server.client.get(f"/api/pictures/{first}").status_code == 404
    gone = server.client.post("/api/jobs", json={"picture": first})
    assert gone.status_code == 404
    assert "Upload it again" in gone.json()["error"]
    found = seen(server.client, second)
    assert np.array_equal(np.asarray(found), np.asarray(picture(2)))
    assert server.client.delete("/api/pictures/astronaut").status_code == 403
    assert server.client.get("/api/pictures").status_code == 405, "there is no list"


def test_nothing_is_written(server):
    """Neither large uploads nor attacks nor downloads touch the disk."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(noise), "PNG")
    assert len(content) > 250_000
    server.ended(server.start()["id"])  # What is imported late may write bytecode.
    OPENED.clear()
    name = server.upload(content).json()["id"]
    job = server.ended(server.start(picture=name)["id"])
    assert job["state"] == "done"
    assert server.client.get(job["result"]["download"]).status_code == 200
    assert [path for path, how in OPENED if how == "write"] == []


def test_what_nobody_asks_for_is_forgotten_first():
    now = 0.0
    store: Store[str] = Store(ServeOptions(kept=3, minutes=1), "gone", lambda: now)
    for name in "abc":
        store.add(name, name)
    assert store.get("a") == "a"
    store.add("d", "d")
    with pytest.raises(HTTPException, match="gone"):
        store.get("b")
    now = 50
    assert store.get("a") == "a"
    now = 100
    for name in "cd":
        with pytest.raises(HTTPException, match="gone"):
            store.get(name)
    assert store.get("a") == "a"
    now = 161
    store.forget_idle()
    assert len(store) == 0
