"""Fifty clients at once: no crash, no leak of memory or of anybody's picture, clear refusals."""

import asyncio
import io
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

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
        b"no picture",
        whole[: len(whole) // 2],
        encoded(picture(), "GIF"),
        whole[:16] + b"\x7f\xff\xff\xff" + whole[20:],
        bytes(400_000),
        encoded(Image.new("RGB", (4, 4))),
    ]


@dataclass
class Tally:
    """What the clients met."""

    statuses: Counter = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)
    jobs: int = 0

    def note(self, answer: httpx.Response, allowed: tuple[int, ...] = REFUSED) -> bool:
        """Whether it is a good answer; one that is neither that nor allowed is a mistake."""
        self.statuses[answer.status_code] += 1
        if not answer.is_success and answer.status_code not in allowed:
            self.mistakes.append(f"{answer.status_code}: {answer.text[:200]}")
        elif answer.is_error and not answer.json()["error"].endswith("."):
            self.mistakes.append(f"no sentence: {answer.text[:200]}")
        return answer.is_success

    def check(self, least: int) -> None:
        """No mistakes, among enough pictures for that to mean something."""
        assert self.mistakes == []
        assert self.statuses[201] >= least
        assert all(self.statuses[status] for status in (413, 415, 422))
        assert not any(status >= 500 for status in self.statuses)
        assert self.jobs > 0


async def get_back(client: httpx.AsyncClient, path: str, sent: np.ndarray, tally: Tally) -> None:
    answer = await client.get(path)
    if tally.note(answer):
        seen = np.asarray(Image.open(io.BytesIO(answer.content)), int)
        if seen.shape != sent.shape or np.abs(seen - sent).max() > 1:
            tally.mistakes.append(f"{path} is not the picture that was sent")


async def attack(client: httpx.AsyncClient, name: str, sent: np.ndarray, tally: Tally) -> None:
    body = {"picture": name, "defence": "none", "attack": "patch_solve"}
    answer = await client.post("/api/jobs", json=body)
    if not tally.note(answer):
        return
    job = answer.json()
    while job["state"] in OPEN:
        await asyncio.sleep(0.1)
        job = (await client.get(f"/api/jobs/{job['id']}")).json()
    if job["state"] == "done":
        tally.jobs += 1
        await get_back(client, job["result"]["pictures"]["picture"], sent, tally)


async def visit(url: str, number: int, until: float, tally: Tally) -> None:
    draw = random.Random(number)
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=False) as client:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            if draw.random() < 0.4:
                tally.note(await client.post("/api/pictures", content=draw.choice(bad_files())))
                continue
            mine = picture(1000 * number + turn, (96, 96))
            sent = np.asarray(mine, int)
            answer = await client.post("/api/pictures", content=encoded(mine))
            if not tally.note(answer, (429,)):
                continue
            name = answer.json()["id"]
            await get_back(client, f"/api/pictures/{name}", sent, tally)
            tally.note(await client.post("/api/preview", json={"picture": name}))
            if number % 10 == 0:
                await attack(client, name, sent, tally)
            if draw.random() < 0.5:
                tally.note(await client.delete(f"/api/pictures/{name}"))


def test_fifty_clients_for_some_seconds():
    tally = Tally()

    async def visits() -> None:
        until = time.monotonic() + 2
        await asyncio.gather(*(visit(server.url, n, until, tally) for n in range(CLIENTS)))

    with running(upload_megabytes=0.3, megapixels=1, kept=100) as server:
        server.ended(server.start()["id"])
        thread = threading.Thread(target=lambda: asyncio.run(visits()))  # A loop may run in ours.
        thread.start()
        thread.join()
        tally.check(CLIENTS // 2)
        assert len(server.holds.pictures) <= 100
        assert server.client.get("/api/options").status_code == 200
