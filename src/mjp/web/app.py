"""The application: routes, static files, refusals, and what lives as long as the server."""

import asyncio
import base64
import io
import re
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Annotated, cast

from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.routing import APIRoute
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment
from PIL import Image, ImageOps
from starlette.exceptions import HTTPException
from torch.nn.attention import SDPBackend, sdpa_kernel

from mjp import __version__
from mjp.core.precision import float32_precision
from mjp.privacy.defences import parse_defence
from mjp.web import schema
from mjp.web.config import ServeOptions
from mjp.web.guard import Guard, refusal
from mjp.web.jobs import Job, Jobs, Outcome, Tell, answer, as_shown, attack_picture, first_plan
from mjp.web.models import Models
from mjp.web.pictures import (
    SAMPLES,
    Pictures,
    masked_blocks,
    new_id,
    picture_of,
    png,
    read_picture,
    sample,
)

FOLDER = files("mjp.web")
SWEEP_SECONDS = 15.0
"""How often idle pictures and results are let go of."""
LEAVE_SECONDS = 3.0
"""How long attacks may take to notice that the server stops."""
LOOK_SECONDS = 0.1
"""How often a stream looks whether something has changed."""
WAIT_SECONDS = 10.0
"""How long an upload waits for others to be through."""
UPLOADS = 8
"""Pictures that are received at a time, each held in memory whole."""
THREADS = 4
"""That decode, draw and encode."""
ABOUT = (
    "Attacks on gradients of pictures, and defences against them. There is no log-in; pictures are "
    "held in memory under ids that cannot be guessed. Every refusal has the form "
    '`{"error": "a sentence"}`.'
)


@dataclass(eq=False)
class Server:
    """What the routes work with."""

    options: ServeOptions
    models: Models
    pictures: Pictures
    jobs: Jobs
    uploads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UPLOADS))


def create_app(options: ServeOptions, models: Models) -> FastAPI:
    """The application; its jobs run while it is up."""

    def run(picture: Image.Image, wanted: schema.JobRequest, tell: Tell) -> Outcome:
        tell(0.0)
        name = wanted.picture if wanted.picture in SAMPLES else "upload"
        public = models.of_thread(wanted.model)
        return attack_picture(picture, name, models.label(wanted.model), public, wanted, tell)

    def warm_up() -> None:  # So that the first visitor does not wait.
        first = schema.JobRequest(picture="astronaut", defence="mjp=0.09", attack="patch_solve")
        run(sample(first.picture), first, lambda _: None)

    server = Server(options, models, Pictures(options), Jobs(options, run, warm_up))
    app = FastAPI(
        title="mjp serve",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # FastAPI's own pages fetch scripts from elsewhere.
        redoc_url=None,
        lifespan=_living,
    )
    app.state.server = server
    for part in (router, named):
        for route in part.routes:
            assert isinstance(route, APIRoute)
            route.summary = re.split(r"[.:;]", route.description)[0]
        app.include_router(part)
    app.mount("/static", StaticFiles(directory=str(FOLDER / "static")))
    for path, name in (("/", "index.html"), ("/favicon.ico", "icon.svg")):
        app.add_route(path, partial(_static, name))
    app.add_route("/api", _reference)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_middleware(Guard, options=options)
    return app


@asynccontextmanager
async def _living(app: FastAPI) -> AsyncIterator[None]:
    server: Server = app.state.server
    current_default_thread_limiter().total_tokens = THREADS
    # Both settings are of the whole process. Attacks choose this way of attention again and again;
    # where it is chosen already, threads that do so at the same time change nothing.
    with sdpa_kernel(SDPBackend.MATH), float32_precision("fp32"):
        server.jobs.start()
        sweeping = asyncio.create_task(_sweep(server))
        yield
        sweeping.cancel()
        await asyncio.to_thread(server.jobs.close, LEAVE_SECONDS)


async def _sweep(server: Server) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        server.pictures.uploads.forget_idle()
        server.jobs.store.forget_idle()


# Pages and refusals.


def _static(name: str, _: Request) -> Response:
    return FileResponse(str(FOLDER / "static" / name))


def _reference(request: Request) -> Response:
    """The page that documents the API for people, made from its description for machines."""
    template = Environment(autoescape=True).from_string(FOLDER.joinpath("api.html").read_text())
    return HTMLResponse(template.render(request.app.openapi()))


async def _refused(_: Request, error: Exception) -> Response:
    """Refusals of ours are sentences already; those of the libraries are not."""
    assert isinstance(error, HTTPException)
    said = {
        "Not Found": "There is no such page.",
        "Method Not Allowed": "This address does not take that method.",
        "There was an error parsing the body": "The request cannot be understood.",
    }
    error.detail = said.get(error.detail, error.detail)
    return refusal(error)


async def _not_valid(_: Request, error: Exception) -> Response:
    """Says where and why, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)
    reasons = []
    for item in error.errors()[:3]:
        place = " ".join(str(part) for part in item["loc"][1:] if isinstance(part, str))[:40]
        why = str(item.get("ctx", {}).get("error", item["msg"]))
        reasons.append(f"{place}: {why}" if place else why)
    return refusal(HTTPException(422, f"The request is not valid. {'; '.join(reasons)}."))


# What can be chosen, and pictures.


def _server_of(request: Request) -> Server:
    return cast(Server, request.app.state.server)


Here = Annotated[Server, Depends(_server_of)]
router = APIRouter(prefix="/api", responses=schema.errors(421))
named = APIRouter(prefix="/api", responses=schema.errors(404, 421, 422))
"""Routes of things by their names."""


@router.get("/options")
def read_options(here: Here) -> schema.Choices:
    """What can be chosen: models, attacks, defences, samples; and the limits."""
    return schema.Choices(
        version=__version__,
        models=here.models.offers,
        attacks=schema.attack_offers(),
        defences=schema.defence_offers(),
        samples=[schema.SampleOffer(name=name, label=label) for name, label in SAMPLES.items()],
        limits=schema.LimitsOffer.model_validate(here.options),
    )


@router.post(
    "/pictures",
    status_code=201,
    openapi_extra=schema.UPLOAD,
    responses=schema.errors(400, 403, 408, 413, 415, 422, 429),
)
async def upload_picture(request: Request, here: Here) -> schema.PictureAnswer:
    """Upload a picture: the bytes of a schema.PNG, JPEG or WebP file.

    It is held in memory, shrunk and without its metadata, under an id that cannot be guessed, and
    never written anywhere. There is no list of pictures.
    """
    try:
        await asyncio.wait_for(here.uploads.acquire(), WAIT_SECONDS)
    except TimeoutError as error:
        raise HTTPException(
            429,
            "Too many pictures are being sent. Try again in a few seconds.",
            {"Retry-After": "5"},
        ) from error
    try:
        image = await run_in_threadpool(read_picture, await request.body(), here.options)
    finally:
        here.uploads.release()
    name = new_id()
    here.pictures.uploads.add(name, image)
    return schema.PictureAnswer(
        id=name, width=image.width, height=image.height, idle_seconds=here.options.idle_seconds
    )


@named.get("/pictures/{picture}", response_class=Response, responses=schema.PNG)
def read_a_picture(picture: schema.PictureId, here: Here, side: schema.Side = None) -> Response:
    """See a sample or an uploaded picture."""
    image = here.pictures.get(picture)
    if side is not None:
        side = min(side, *image.size)
        image = ImageOps.fit(image, (side, side), Image.Resampling.LANCZOS)
    return Response(png(image, 1), media_type="image/png")


@named.delete("/pictures/{picture}", status_code=204, responses=schema.errors(403))
def remove_picture(picture: schema.PictureId, here: Here) -> None:
    """Forget an uploaded picture at once."""
    here.pictures.remove(picture)


@named.post("/preview", responses=schema.errors(400, 403, 413))
def draw_preview(wanted: schema.PreviewRequest, here: Here) -> schema.PreviewAnswer:
    """Draw a jigsaw: masked blocks and what the model is fed, before anything is attacked."""
    public = here.models[wanted.model]
    plan = first_plan(public, parse_defence(wanted.defence), wanted.seed)
    image = as_shown(public, here.pictures.get(wanted.picture))
    drawn = {
        "picture": picture_of(image),
        "masked": masked_blocks(image, plan.masked[0], plan.grid),
        "shuffled": picture_of(plan.apply(image[None])[0]),
    }
    encoded = {name: base64.b64encode(png(image, 1)).decode() for name, image in drawn.items()}
    return schema.PreviewAnswer(
        rows=plan.grid.rows,
        cols=plan.grid.cols,
        masked=plan.masked[0].nonzero()[:, 0].tolist(),
        source=plan.source[0].tolist(),
        pictures={name: f"data:image/png;base64,{text}" for name, text in encoded.items()},
    )


# Jobs: start, watch, cancel, see, download.


def _known(job: Job | None) -> Job:
    if job is None:
        raise HTTPException(404, "There is no such job; it may have been forgotten. Run it again.")
    return job


def _job(job: schema.JobId, here: Here) -> Job:
    return _known(here.jobs.look(job))


def _outcome(job: Annotated[Job, Depends(_job)]) -> Outcome:
    if job.outcome is None:
        raise HTTPException(404, f"This job has no result; it is {job.state}.")
    return job.outcome


AJob = Annotated[Job, Depends(_job)]
AnOutcome = Annotated[Outcome, Depends(_outcome)]


@named.post("/jobs", status_code=202, responses=schema.errors(400, 403, 413, 429))
def start_job(wanted: schema.JobRequest, here: Here) -> schema.JobAnswer:
    """Start an attack on a picture; it waits for its turn and then runs.

    The same choices and seed give the same result, and the same as `mjp audit` gives.
    """
    # A refusal where this model cannot have it.
    first_plan(here.models[wanted.model], parse_defence(wanted.defence), wanted.seed)
    return answer(here.jobs.add(here.pictures.get(wanted.picture), wanted))


@named.get("/jobs/{job}")
def read_job(job: AJob) -> schema.JobAnswer:
    """See how far a job is, and its result once it is done."""
    return answer(job)


@named.delete("/jobs/{job}", responses=schema.errors(403))
def cancel_job(job: schema.JobId, here: Here) -> schema.JobAnswer:
    """Cancel a job that waits or runs; forget one that has ended."""
    return answer(_known(here.jobs.cancel(job)))


class Events(EventSourceResponse):
    """So that refusals of the route are documented as JSON, too."""

    media_type = None  # type: ignore[assignment]


@named.get(
    "/jobs/{job}/events",
    response_class=Events,
    responses=schema.file_of(
        "text/event-stream", "Events named `job`, each with a job as JSON; the last one is final."
    ),
)
async def watch_job(job: AJob, here: Here) -> AsyncIterator[ServerSentEvent]:
    """Watch a job: its state and progress as they change (Server-Sent Events)."""
    sent: tuple[object, ...] = ()
    view: Job | None = job
    while view is not None and not here.jobs.closing:
        now = (view.state, round(view.progress, 2), view.ahead)
        if now != sent:
            sent = now
            yield ServerSentEvent(data=answer(view), event="job")
        if not view.is_open:
            return
        await asyncio.sleep(LOOK_SECONDS)
        view = here.jobs.look(job.id)


@named.get("/jobs/{job}/pictures/{shown}.png", response_class=Response, responses=schema.PNG)
def read_job_picture(outcome: AnOutcome, shown: schema.Shown) -> Response:
    """See a picture of a result: the original, masked blocks, the shuffle, what was recovered."""
    if shown not in outcome.pictures:
        raise HTTPException(404, "The attack recovered no picture.")
    return Response(outcome.pictures[shown], media_type="image/png")


@named.get(
    "/jobs/{job}/download",
    response_class=Response,
    responses=schema.file_of("application/zip", "Pictures and `record.json`."),
)
def download_job(outcome: AnOutcome) -> Response:
    """Download a result: its pictures as schema.PNG, and all numbers and conditions as JSON."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in outcome.pictures.items():
            archive.writestr(f"{name}.png", content)
        archive.writestr("record.json", outcome.record.to_json() + "\n")
    name = f"mjp-{outcome.record.conditions['attack']}.zip"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(file.getvalue(), media_type="application/zip", headers=headers)
