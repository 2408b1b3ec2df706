"""`mjp serve`: opens the models, takes the port, and serves until it is stopped."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT, SIGTERM, getsignal, signal

import uvicorn

from mjp.commands.serve_options import ServeOptions
from mjp.commands.terminal import choose_device
from mjp.core.errors import ConfigError
from mjp.web.app import create_app
from mjp.web.desk import Desk
from mjp.web.guarding import EVERYWHERE, LOOPBACK, Hosts
from mjp.web.limits import Limits
from mjp.web.shelf import Shelf

GRACE_SECONDS = 2
"""For answers that are under way when the server is stopped."""
MOST_CONNECTIONS = 500


def run(options: ServeOptions) -> None:
    """Serves until Ctrl-C or SIGTERM, which both are a proper end."""
    limits = Limits.of(options)
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"port must be between 0 and 65535, got {options.port}")
    device = choose_device(options.device)
    with _listening(options.host, options.port) as listener:
        shelf = Shelf(options.model, device)
        app = create_app(limits, shelf, Hosts(options.host, options.allow_host))
        config = uvicorn.Config(
            app,
            access_log=False,  # Addresses hold ids, and whoever knows one sees the picture.
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        desk: Desk = app.state.desk
        _Server(config, desk, _address(options.host, listener)).run(sockets=[listener])
    print("mjp: stopped", file=sys.stderr, flush=True)
    if not desk.jobs.close(0):
        # An attack is deep in linear algebra; Python would wait for it, or trip over it.
        sys.stdout.flush()
        os._exit(0)


class _Server(uvicorn.Server):
    """Says where it is once it can be reached, and cancels attacks as soon as it is to stop."""

    def __init__(self, config: uvicorn.Config, desk: Desk, address: str) -> None:
        super().__init__(config)
        self._desk = desk
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._address, flush=True)
        print("mjp: serving; stop it with Ctrl-C", file=sys.stderr, flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but the signal is not raised again: it did what it was for."""

        def stop(number: int, _: object) -> None:
            self._desk.jobs.stop_soon()
            self.handle_exit(number, None)

        before = {number: getsignal(number) for number in (SIGINT, SIGTERM)}
        for number in before:
            signal(number, stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal(number, handler)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that has the port, so that a taken one is told at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"{host!r} is no address of this machine; try 127.0.0.1") from error
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(128)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on port {port} of {host}: {error.strerror}; choose another with "
                "--port, or 0 for any that is free"
            ) from error
        if host not in LOOPBACK:
            _warn(host)
        yield listener


def _warn(host: str) -> None:
    where = "every address of this machine" if host in EVERYWHERE else host
    print(
        f"mjp: listening on {where}: there is no log-in and no encryption, so everybody who can "
        "reach it can use it; browsers may call it by its address, and by names given with "
        "--allow-host",
        file=sys.stderr,
    )


def _address(host: str, listener: socket.socket) -> str:
    """What to type into a browser on this machine."""
    port = listener.getsockname()[1]
    name = "127.0.0.1" if host in EVERYWHERE else host
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"
