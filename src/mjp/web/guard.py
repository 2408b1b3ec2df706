"""`Guard`: what every request passes: whom it is for, where it comes from, how large it is."""

import asyncio
import ipaddress
import sys
import traceback
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
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
"""How long a body that says that it is too large is read and dropped."""
BROKEN = "Something went wrong in the server; this is not your fault."
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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


def busy(sentence: str) -> HTTPException:
    """Refuses what there is no room for now."""
    return HTTPException(429, f"{sentence} Try again in a few seconds.", {"Retry-After": "5"})


def log_failure(what: str, error: Exception) -> None:
    """Tells the operator of an error that nobody expected, and that no visitor gets to see."""
    print(f"mjp: {what} failed: {type(error).__name__}: {error}", file=sys.stderr)
    traceback.print_exc()


class Guard:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app = app
        self._upload_bytes = options.upload_bytes
        self._everywhere = options.host in EVERYWHERE
        names = (*LOOPBACK, options.host, *options.allow_host)
        self._names = {name.lower() for name in names if name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        changes = scope["method"] not in SAFE
        private = changes or scope["path"].startswith("/api")
        headers = Headers(scope=scope)
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                sent = MutableHeaders(scope=message)
                sent.update(HEADERS)
                sent["Cache-Control"] = "no-store" if private else "no-cache"
            await send(message)

        try:
            self._check_host(headers.get("host", ""))
            if changes:
                _check_origin(headers)
                receive = self._limited(scope["path"], headers, receive)
            await self._app(scope, receive, answer)
            return
        except ClientDisconnect:
            return  # Nobody is there to be told.
        except HTTPException as error:
            refused = error
        except Exception as error:
            log_failure("a request", error)
            refused = HTTPException(500, BROKEN)
        if not started:  # An answer that has begun cannot be taken back.
            await refusal(refused)(scope, receive, answer)

    def _check_host(self, header: str) -> None:
        """Refuses names that nobody gave.

        A page elsewhere can make a name of its own point here (DNS rebinding), and then counts as
        the same site. An address in numbers cannot be made to.
        """
        try:
            name = urlsplit(f"//{header}").hostname or ""
            if name not in self._names:
                ipaddress.ip_address(name)
            known = self._everywhere or name in self._names
        except ValueError:
            known = False
        if not known:
            raise HTTPException(
                421,
                "This server does not go by that name. Call it by its address, or start it with "
                "--allow-host and the name.",
            )

    def _limited(self, path: str, headers: Headers, receive: Receive) -> Receive:
        """The same as `receive`, for bodies that are neither too large nor too slow."""
        limit, seconds = SMALL_BODY, BODY_SECONDS
        if path == UPLOADS:
            limit, seconds = self._upload_bytes, UPLOAD_SECONDS
        size, declared = 0, int(headers.get("content-length", "0"))
        if declared > limit:
            seconds = DRAIN_SECONDS
        deadline = asyncio.get_running_loop().time() + seconds

        async def limited() -> Message:
            nonlocal size
            message: Message = {"more_body": True}
            try:
                async with asyncio.timeout_at(deadline):
                    while message.get("more_body"):
                        message = await receive()
                        size += len(message.get("body", b""))
                        # More than that is read and dropped, so that the sender gets to read why.
                        if max(size, declared) <= limit or size > 2 * limit:
                            break
            except TimeoutError as error:
                if declared <= limit:
                    text = f"The file did not arrive within {seconds:g} seconds."
                    raise HTTPException(408, text) from error
            if max(size, declared) > limit:
                most = f"{limit / 1e6:g} MB" if limit >= 100_000 else f"{limit // 1000} kB"
                text = f"That is too large; at most {most} are taken. Send something smaller."
                raise HTTPException(413, text)
            return message

        return limited


def _check_origin(headers: Headers) -> None:
    origin = headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc.lower() != headers["host"].lower()
    if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise HTTPException(403, "Pages of other sites may not use this server.")
