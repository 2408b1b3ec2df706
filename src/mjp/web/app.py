"""The application: routes, static files, errors, and what lives as long as the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from torch.nn.attention import SDPBackend, sdpa_kernel

from mjp import __version__
from mjp.core.precision import float32_precision
from mjp.web import job_routes, picture_routes
from mjp.web.desk import Desk
from mjp.web.guarding import Guard, Hosts
from mjp.web.limits import Limits
from mjp.web.reference import reference_page
from mjp.web.refusing import RefusedError
from mjp.web.shelf import Shelf

STATIC = {
    "index.html": "text/html; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "chart.js": "text/javascript; charset=utf-8",
    "pictures.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files that are served, and what they are; no other can be had."""
SWEEP_SECONDS = 15.0
"""How often idle pictures and results are let go of."""
LEAVE_SECONDS = 3.0
"""How long attacks may take to notice that the server stops."""
ABOUT = (
    "Attacks on gradients of pictures, and defences against them. There is no log-in; pictures are "
    "held in memory under ids that cannot be guessed. Every refusal has the form "
    '`{"error": "a sentence"}`.'
)


def create_app(limits: Limits, shelf: Shelf, hosts: Hosts) -> FastAPI:
    """The application; its jobs run while it is up."""
    app = FastAPI(
        title="mjp serve",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # FastAPI's own pages fetch scripts from elsewhere.
        redoc_url=None,
        lifespan=_living,
    )
    app.state.desk = Desk.of(limits, shelf)
    app.include_router(picture_routes.router)
    app.include_router(job_routes.router)
    _add_pages(app)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HTTPException, _not_there)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_middleware(Guard, hosts=hosts)
    return app


@asynccontextmanager
async def _living(app: FastAPI) -> AsyncIterator[None]:
    desk: Desk = app.state.desk
    # Both settings are of the whole process. Attacks choose this way of attention again and again;
    # where it is chosen already, threads that do so at the same time change nothing.
    with sdpa_kernel(SDPBackend.MATH), float32_precision("fp32"):
        desk.jobs.start()
        sweeping = asyncio.create_task(_sweep(desk))
        yield
        sweeping.cancel()
        await asyncio.to_thread(desk.jobs.close, LEAVE_SECONDS)
        desk.hands.shutdown(wait=False, cancel_futures=True)


async def _sweep(desk: Desk) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        desk.forget_idle()


@cache
def static_file(name: str) -> bytes:
    """A file of the page; the name is one of `STATIC`."""
    return files("mjp.web").joinpath("static", name).read_bytes()


def _add_pages(app: FastAPI) -> None:
    def page() -> Response:
        return Response(static_file("index.html"), media_type=STATIC["index.html"])

    def icon() -> Response:
        return Response(static_file("icon.svg"), media_type=STATIC["icon.svg"])

    def static(name: str) -> Response:
        if name not in STATIC:
            raise RefusedError(404, "There is no such page.")
        return Response(static_file(name), media_type=STATIC[name])

    def reference() -> Response:
        return HTMLResponse(reference_page(app.openapi()))

    for path, answer in (
        ("/", page),
        ("/favicon.ico", icon),
        ("/static/{name}", static),
        ("/api", reference),
    ):
        app.add_api_route(path, answer, methods=["GET"], include_in_schema=False)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return JSONResponse({"error": str(error)}, error.status, headers=error.headers)


async def _not_there(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = {404: "There is no such page.", 405: "This address does not take that method."}
    sentence = told.get(error.status_code, "The request cannot be understood.")
    return JSONResponse({"error": sentence}, error.status_code, headers=error.headers)


async def _not_valid(_: Request, error: Exception) -> Response:
    """Says where and why, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)
    reasons = []
    for one in error.errors()[:3]:
        place = " ".join(str(part) for part in one["loc"][1:] if isinstance(part, str))[:40]
        reasons.append(f"{place}: {one['msg']}" if place else str(one["msg"]))
    return JSONResponse({"error": f"The request is not valid. {'; '.join(reasons)}."}, 422)
