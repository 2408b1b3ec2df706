"""`Guard`: what every request passes: whom it is for, where it comes from, how large it is."""

import ipaddress
import json
import sys
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mjp.web.receiving import received
from mjp.web.refusing import RefusedError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")
SAFE = ("GET", "HEAD", "OPTIONS")
UPLOADS = "/api/pictures"
"""The one address that takes large bodies, and reads them by itself."""
SMALL_BODY = 16_000
BODY_SECONDS = 10.0
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Hosts:
    """The names by which this server may be called.

    A page elsewhere can make a name of its own point here (DNS rebinding), and then counts as the
    same site; so names that nobody gave are refused. An address in numbers cannot be made to.
    """

    bound: str
    more: tuple[str, ...] = ()

    def allow(self, header: str) -> bool:
        """Whether this value of the header `Host` is one of them."""
        name = _host(header)
        if name in LOOPBACK or name == self.bound.lower():
            return True
        if name in {one.lower() for one in self.more}:
            return True
        return self.bound in EVERYWHERE and _is_address(name)


def _host(header: str) -> str:
    """Without the port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, scope["path"].startswith("/api") or scope["method"] not in SAFE)
        try:
            headers = Headers(scope=scope)
            self._check(scope["method"], headers)
            if scope["method"] not in SAFE and scope["path"] != UPLOADS:
                receive = await _read_ahead(receive, headers)
            await self._app(scope, receive, answer.send)
        except RefusedError as problem:
            await answer.refuse(problem)
        except ClientDisconnect:
            pass  # Nobody is there to be told.
        except Exception as error:
            print(f"mjp: a request failed: {type(error).__name__}: {error}", file=sys.stderr)
            traceback.print_exc()
            await answer.refuse(
                RefusedError(500, "Something went wrong in the server; this is not your fault.")
            )

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._hosts.allow(host):
            raise RefusedError(
                421,
                "This server does not go by that name. Call it by its address, or start it with "
                "--allow-host and the name.",
            )
        if method in SAFE:
            return
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
        if foreign or site not in ("none", "same-origin"):
            raise RefusedError(403, "Pages of other sites may not use this server.")


class _Answer:
    """Sends an answer with the headers that all of them have."""

    def __init__(self, send: Send, private: bool) -> None:
        self._send = send
        self._private = private
        self._started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store" if self._private else "no-cache")
        await self._send(message)

    async def refuse(self, problem: RefusedError) -> None:
        """Unless an answer has begun, which cannot be taken back."""
        if self._started:
            return
        body = json.dumps({"error": str(problem)}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        headers |= problem.headers
        start = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": start})
        await self.send({"type": "http.response.body", "body": body})


async def _read_ahead(receive: Receive, headers: Headers) -> Receive:
    """The same as `receive`, with the small body read already."""

    async def chunks() -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            more = message.get("more_body", False)
            yield message.get("body", b"")

    body = await received(chunks(), headers.get("content-length"), SMALL_BODY, BODY_SECONDS)
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
