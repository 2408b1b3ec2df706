"""A server of this process on a free port, and pictures to send to it."""

import io
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import numpy as np
import torch
import uvicorn
from PIL import Image

from mjp.web.app import Server, create_app
from mjp.web.config import ServeOptions
from mjp.web.models import Models

OPEN = ("waiting", "running")
OPENED: list[tuple[str, str]] = []
"""Files that this process opened, and how; tests clear it before they look."""


def _note(event: str, arguments: tuple) -> None:
    if event == "open":
        path, mode, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        OPENED.append((str(path), "write" if writes else str(mode)))
        del OPENED[:-1000]


sys.addaudithook(_note)


@dataclass(frozen=True, eq=False)
class Running:
    """A server that runs: its address, what it holds, and a client for it."""

    url: str
    holds: Server
    client: httpx.Client

    def start(self, **wanted) -> dict:
        """A job that was just started; by default a quick one."""
        choices = {"picture": "astronaut", "attack": "patch_solve", "defence": "none"} | wanted
        answer = self.client.post("/api/jobs", json=choices)
        assert answer.status_code == 202, answer.text
        return answer.json()

    def ended(self, job: str, seconds: float = 30) -> dict:
        """The job once it has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.client.get(f"/api/jobs/{job}").json()
            if found["state"] not in OPEN:
                return found
            time.sleep(0.03)
        raise AssertionError(f"the job is still {found['state']} after {seconds} s")

    def upload(self, content: bytes) -> httpx.Response:
        return self.client.post("/api/pictures", content=content)


@contextmanager
def running(**options) -> Iterator:
    """Serves with these options while inside."""
    chosen = ServeOptions(**options)
    threads = torch.get_num_threads()
    app = create_app(chosen, Models((), torch.device("cpu")))
    # The protocol is named, so that asyncio sends small answers at once.
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        with httpx.Client(base_url=url, timeout=30) as client:
            yield Running(url, app.state.server, client)
        app.state.server.jobs.closing = True
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop within 10 s"
    torch.set_num_threads(threads)


def picture(seed: int = 0, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Smooth colours that no other seed has; width and height."""
    noise = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **how) -> bytes:
    """A picture as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, format=kind, **how)
    return file.getvalue()
