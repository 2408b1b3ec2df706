"""Many clients at once, good and bad, each of which checks that it gets its own picture back."""

import asyncio
import io
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from tests.web.running import OPEN, encoded, picture

GOOD = (200, 201, 202, 204)
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
    slowest: float = 0.0

    def note(self, answer: httpx.Response, allowed: tuple[int, ...]) -> bool:
        """Whether it is a good answer; one that is neither that nor allowed is a mistake."""
        self.statuses[answer.status_code] += 1
        self.slowest = max(self.slowest, answer.elapsed.total_seconds())
        if answer.status_code not in (*GOOD, *allowed):
            self.mistakes.append(f"{answer.status_code}: {answer.text[:200]}")
        elif answer.status_code >= 400 and not answer.json()["error"].endswith("."):
            self.mistakes.append(f"no sentence: {answer.text[:200]}")
        return answer.status_code in GOOD


def resident(process: int | str = "self") -> float:
    """Megabytes of memory that a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1000


async def _get_back(client: httpx.AsyncClient, path: str, sent: np.ndarray, tally: Tally) -> None:
    answer = await client.get(path)
    if not tally.note(answer, REFUSED):
        return
    found = np.asarray(Image.open(io.BytesIO(answer.content)), int)
    if found.shape != sent.shape or np.abs(found - sent).max() > 1:
        tally.mistakes.append(f"{path} is not the picture that was sent")


async def _job(client: httpx.AsyncClient, name: str, sent: np.ndarray, tally: Tally) -> None:
    body = {"picture": name, "defence": "none", "attack": "patch_solve"}
    answer = await client.post("/api/jobs", json=body)
    if not tally.note(answer, REFUSED):
        return
    job = answer.json()
    while job["state"] in OPEN:
        await asyncio.sleep(0.1)
        job = (await client.get(f"/api/jobs/{job['id']}")).json()
    tally.jobs += job["state"] == "done"
    if job["state"] == "done":
        await _get_back(client, job["result"]["pictures"]["picture"], sent, tally)


async def _client(url: str, number: int, until: float, tally: Tally) -> None:
    draw = random.Random(number)
    files = bad_files()
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=False) as client:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            if draw.random() < 0.4:
                tally.note(await client.post("/api/pictures", content=draw.choice(files)), REFUSED)
                continue
            own = picture(1000 * number + turn, (96, 96))
            sent = np.asarray(own, int)
            answer = await client.post("/api/pictures", content=encoded(own))
            if not tally.note(answer, (429,)):
                continue
            name = answer.json()["id"]
            await _get_back(client, f"/api/pictures/{name}", sent, tally)
            preview = await client.post("/api/preview", json={"picture": name})
            tally.note(preview, REFUSED)
            if number % 10 == 0:
                await _job(client, name, sent, tally)
            if draw.random() < 0.5:
                tally.note(await client.delete(f"/api/pictures/{name}"), REFUSED)


async def _all(url: str, clients: int, seconds: float, tally: Tally) -> None:
    until = time.monotonic() + seconds
    await asyncio.gather(*(_client(url, number, until, tally) for number in range(clients)))


def press(url: str, clients: int, seconds: float) -> Tally:
    """So many clients for so long; in a thread, because a loop may run in this one."""
    tally = Tally()
    thread = threading.Thread(target=lambda: asyncio.run(_all(url, clients, seconds, tally)))
    thread.start()
    thread.join()
    return tally
