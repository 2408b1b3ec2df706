"""`mjp serve`: opens the models, takes the port, and serves until it is stopped."""

import os
import signal
import socket
import sys
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from mjp.core.errors import ConfigError
from mjp.core.team import choose_device
from mjp.web.app import create_app
from mjp.web.config import ServeOptions
from mjp.web.guard import EVERYWHERE, LOOPBACK
from mjp.web.models import Models

GRACE_SECONDS = 2
"""For answers that are under way when the server is stopped."""
MOST_CONNECTIONS = 500


def serve(options: ServeOptions) -> None:
    """Serves until Ctrl-C or SIGTERM, which both are a proper end."""
    device = choose_device(options.device)
    with _listen(options.host, options.port) as listener:
        app = create_app(options, Models(options.model, device))
        config = uvicorn.Config(
            app,
            access_log=False,  # Addresses hold ids, and whoever knows one sees the picture.
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        host = f"[{options.host}]" if ":" in options.host else options.host
        name = "127.0.0.1" if options.host in EVERYWHERE else host  # For this machine's browsers.
        print(f"http://{name}:{listener.getsockname()[1]}/", flush=True)
        print("mjp: serving; stop it with Ctrl-C", file=sys.stderr, flush=True)
        _Server(config).run(sockets=[listener])
    print("mjp: stopped", file=sys.stderr, flush=True)
    if not app.state.server.jobs.close(0):
        # An attack is deep in linear algebra; Python would wait for it, or trip over it.
        sys.stdout.flush()
        os._exit(0)


class _Server(uvicorn.Server):
    """Cancels attacks as soon as it is to stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn does, but the signal is not raised again: it did what it was for."""
        cast(FastAPI, self.config.app).state.server.jobs.closing = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    """A socket that has the port, so that a taken one is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {port} of {host}: {error.strerror}; choose another --port (0 "
            "for any that is free), or another --host, such as 127.0.0.1"
        ) from error
    if host not in LOOPBACK:
        where = "every address of this machine" if host in EVERYWHERE else host
        print(
            f"mjp: listening on {where}: there is no log-in and no encryption, so everybody who "
            "can reach it can use it; browsers may call it by its address, and by names given with "
            "--allow-host",
            file=sys.stderr,
        )
    return listener
