"""Fifty clients at once: no crash, nobody gets another's picture, clear refusals."""

import asyncio
import io
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
from PIL import Image

from tests.web.running import OPEN, encoded, picture, running

CLIENTS = 50
REFUSED = (404, 408, 413, 415, 422, 429)


def bad_files() -> list[bytes]:
    """One of every kind, the largest of them beyond the limit."""
    whole = encoded(picture(0, (200, 150)))
    return [
        b"",
        whole[: len(whole) // 2],
        encoded(picture(), "GIF"),
        whole[:16] + b"\x7f\xff\xff\xff" + whole[20:],
        bytes(400_000),
        encoded(Image.new("RGB", (4, 4))),
    ]


class Visitor:
    """A client that sends pictures, good and bad, and looks whether it gets its own back."""

    def __init__(self, client: httpx.AsyncClient, met: Counter) -> None:
        self.client = client
        self.met = met

    async def ask(self, method: str, path: str, **body) -> httpx.Response:
        answer = await self.client.request(method, path, **body)
        self.met[answer.status_code] += 1
        assert answer.is_success or answer.status_code in REFUSED, answer.text
        assert answer.is_success or answer.json()["error"].endswith("."), answer.text
        return answer

    async def get_back(self, path: str, sent: Image.Image) -> None:
        answer = await self.ask("GET", path)
        if answer.is_success:
            seen = np.asarray(Image.open(io.BytesIO(answer.content)), int)
            assert np.abs(seen - np.asarray(sent, int)).max() <= 1

    async def attack(self, name: str, sent: Image.Image) -> None:
        body = {"picture": name, "defence": "none", "attack": "patch_solve"}
        answer = await self.ask("POST", "/api/jobs", json=body)
        while answer.is_success and answer.json()["state"] in OPEN:
            await asyncio.sleep(0.1)
            answer = await self.ask("GET", f"/api/jobs/{answer.json()['id']}")
        if answer.is_success and answer.json()["state"] == "done":
            self.met["attacks"] += 1
            await self.get_back(answer.json()["result"]["pictures"]["picture"], sent)

    async def visit(self, number: int, until: float) -> None:
        draw = random.Random(number)
        for turn in range(1000):
            if time.monotonic() > until:
                return
            if draw.random() < 0.4:
                await self.ask("POST", "/api/pictures", content=draw.choice(bad_files()))
                continue
            sent = picture(1000 * number + turn, (96, 96))
            answer = await self.ask("POST", "/api/pictures", content=encoded(sent))
            if not answer.is_success:
                continue
            name = answer.json()["id"]
            await self.get_back(f"/api/pictures/{name}", sent)
            await self.ask("POST", "/api/preview", json={"picture": name})
            if number % 10 == 0:
                await self.attack(name, sent)
            if draw.random() < 0.5:
                await self.ask("DELETE", f"/api/pictures/{name}")


def test_fifty_clients_for_some_seconds():
    met: Counter = Counter()

    async def visits(url: str) -> None:
        until = time.monotonic() + 2
        async with httpx.AsyncClient(
            base_url=url, timeout=60, limits=httpx.Limits(max_connections=CLIENTS)
        ) as client:
            await asyncio.gather(*(Visitor(client, met).visit(n, until) for n in range(CLIENTS)))

    with running(upload_megabytes=0.3, megapixels=1, kept=100) as server:
        with ThreadPoolExecutor() as thread:  # A loop may run in ours.
            thread.submit(asyncio.run, visits(server.url)).result()
        assert met[201] >= CLIENTS // 2
        assert met["attacks"]
        assert all(met[status] for status in (413, 415, 422))
        assert len(server.holds.pictures) <= 100
        assert server.client.get("/api/options").status_code == 200
