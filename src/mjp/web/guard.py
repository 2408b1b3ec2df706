"""`Guard`: what every request passes: whom it is for, where it comes from, how large it is."""

import asyncio
import ipaddress
import sys
import traceback
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mjp.web.config import ServeOptions

LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")
SAFE = ("GET", "HEAD", "OPTIONS")
UPLOADS = "/api/pictures"
"""The one address that takes large bodies."""
SMALL_BODY = 16_000
BODY_SECONDS = 10.0
UPLOAD_SECONDS = 60.0
DRAIN_SECONDS = 1.0
"""How long what is too much is read and dropped, so that the sender gets to read the answer."""
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


def refusal(error: HTTPException) -> JSONResponse:
    """The answer to a request that is refused."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class Guard:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app = app
        self._options = options
        names = (*LOOPBACK, options.host, *options.allow_host)
        hosts = [f"[{name}]" if ":" in name else name for name in names]
        self._hosts = TrustedHostMiddleware(_pass, hosts, www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        private = scope["path"].startswith("/api") or scope["method"] not in SAFE
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["Cache-Control"] = "no-store" if private else "no-cache"
            await send(message)

        try:
            await self._check_host(scope, receive)
            _check_origin(scope["method"], Headers(scope=scope))
            await self._app(scope, self._limited(scope, receive), answer)
            return
        except ClientDisconnect:
            return  # Nobody is there to be told.
        except HTTPException as error:
            refused = error
        except Exception as error:
            print(f"mjp: a request failed: {type(error).__name__}: {error}", file=sys.stderr)
            traceback.print_exc()
            refused = HTTPException(
                500, "Something went wrong in the server; this is not your fault."
            )
        if not started:  # An answer that has begun cannot be taken back.
            await refusal(refused)(scope, receive, answer)

    async def _check_host(self, scope: Scope, receive: Receive) -> None:
        """Refuses names that nobody gave.

        A page elsewhere can make a name of its own point here (DNS rebinding), and then counts as
        the same site. An address in numbers cannot be made to.
        """

        async def refuse(_: Message) -> None:
            raise HTTPException(
                421,
                "This server does not go by that name. Call it by its address, or start it with "
                "--allow-host and the name.",
            )

        everywhere = self._options.host in EVERYWHERE
        if not (everywhere and _is_address(Headers(scope=scope).get("host", ""))):
            await self._hosts(scope, receive, refuse)

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """The same as `receive`, for bodies that are neither too large nor too slow."""
        limit, seconds = SMALL_BODY, BODY_SECONDS
        if scope["path"] == UPLOADS:
            limit, seconds = self._options.upload_bytes, UPLOAD_SECONDS
        declared = int(Headers(scope=scope).get("content-length", "0"))
        deadline, size, whole = 0.0, 0, False

        async def limited() -> Message:
            nonlocal deadline, size, whole
            if whole:
                return await receive()
            deadline = deadline or asyncio.get_running_loop().time() + seconds
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive() if declared <= limit else {}
            except TimeoutError as error:
                raise HTTPException(
                    408, f"The file did not arrive within {seconds:g} seconds."
                ) from error
            size += len(message.get("body", b""))
            if max(size, declared) > limit:
                await _drop(receive, limit)
                kind = f"{limit / 1e6:g} MB" if limit >= 100_000 else f"{limit // 1000} kB"
                raise HTTPException(
                    413, f"That is too large; at most {kind} are taken. Send something smaller."
                )
            whole = not message.get("more_body", False)
            return message

        return limited


async def _pass(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands for the application where only the host is checked."""


def _is_address(header: str) -> bool:
    try:
        ipaddress.ip_address(urlsplit(f"//{header}").hostname or "")
    except ValueError:
        return False
    return True


def _check_origin(method: str, headers: Headers) -> None:
    if method in SAFE:
        return
    origin = headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc.lower() != headers["host"].lower()
    if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise HTTPException(403, "Pages of other sites may not use this server.")


async def _drop(receive: Receive, limit: int) -> None:
    dropped, more = 0, True
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while more and dropped <= limit:
                message = await receive()
                dropped += len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        pass  # A sender that slow may as well meet a closed door.
