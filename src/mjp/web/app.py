"""The application: routes, static files, refusals, and what lives as long as the server."""

import asyncio
import base64
import io
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Literal, cast

from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment
from PIL import Image, ImageOps
from starlette.exceptions import HTTPException
from torch.nn.attention import SDPBackend, sdpa_kernel

from mjp import __version__
from mjp.core.team import float32_precision
from mjp.web import schema
from mjp.web.config import LONGEST_SIDE, SHORTEST_SIDE, ServeOptions
from mjp.web.guard import Guard, busy, refusal
from mjp.web.jobs import OPEN, Job, Jobs, Outcome, as_shown, attack_picture, first_plan
from mjp.web.models import Models
from mjp.web.pictures import SAMPLES, Store, jigsaw_pictures, new_id, png, read_picture, sample

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
    pictures: Store[Image.Image]
    jobs: Jobs
    uploads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UPLOADS))

    def picture(self, name: str) -> Image.Image:
        """A sample or an upload; a refusal where there is none of this name."""
        return sample(name) if name in SAMPLES else self.pictures.get(name)


def create_app(options: ServeOptions, models: Models) -> FastAPI:
    """The application; its jobs run while it is up."""
    jobs = Jobs(options, partial(attack_picture, models))
    missing = "There is no such picture; it may have been forgotten. Upload it again."
    app = FastAPI(
        title="mjp serve",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # FastAPI's own pages fetch scripts from elsewhere.
        redoc_url=None,
        lifespan=_living,
    )
    app.state.server = Server(options, models, Store(options, missing), jobs)
    app.include_router(router)
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
        server.pictures.forget_idle()
        server.jobs.ended.forget_idle()


# Pages and refusals.


def _static(name: str, _: Request) -> Response:
    return FileResponse(str(FOLDER / "static" / name))


def _reference(request: Request) -> Response:
    """The page that documents the API for people, made from its description for machines."""
    template = Environment(autoescape=True).from_string(FOLDER.joinpath("api.html").read_text())
    return HTMLResponse(template.render(request.app.openapi()))


async def _refused(_: Request, error: Any) -> Response:
    """Refusals of ours are sentences already; those of the libraries are not."""
    said = {
        "Not Found": "There is no such page.",
        "Method Not Allowed": "This address does not take that method.",
        "There was an error parsing the body": "The request cannot be understood.",
    }
    error.detail = said.get(error.detail, error.detail)
    return refusal(error)


async def _not_valid(_: Request, error: Any) -> Response:
    """Says where and why, without repeating what was sent."""
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
Side = Annotated[int | None, Query(ge=SHORTEST_SIDE, le=LONGEST_SIDE)]
FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}}
router = APIRouter(
    prefix="/api", responses={"4XX": {"model": schema.Refusal, "description": "A refusal."}}
)


@router.get("/options")
def read_options(here: Here) -> dict[str, Any]:
    """What can be chosen: models, attacks, defences, samples; and the limits."""
    return {
        "version": __version__,
        "models": here.models.offers,
        "attacks": schema.attack_offers(),
        "defences": schema.defence_offers(),
        "samples": [{"name": name, "label": label} for name, label in SAMPLES.items()],
        "limits": schema.limits(here.options),
    }


@router.post("/pictures", status_code=201)
async def upload_picture(request: Request, here: Here) -> schema.PictureAnswer:
    """Upload a picture: the body is a PNG, JPEG or WebP file as it is, no form.

    It is held in memory, shrunk and without its metadata, under an id that cannot be guessed, and
    never written anywhere. There is no list of pictures.
    """
    try:
        await asyncio.wait_for(here.uploads.acquire(), WAIT_SECONDS)
    except TimeoutError as error:
        raise busy("Too many pictures are being sent.") from error
    try:
        image = await run_in_threadpool(read_picture, await request.body(), here.options)
    finally:
        here.uploads.release()
    name = new_id()
    here.pictures.add(name, image)
    return schema.PictureAnswer(
        id=name, width=image.width, height=image.height, idle_seconds=here.options.idle_seconds
    )


@router.get("/pictures/{picture}", response_class=Response, responses=FILE)
def read_a_picture(picture: schema.Name, here: Here, side: Side = None) -> Response:
    """See a sample or an uploaded picture, or a square thumbnail with a side of so many pixels."""
    image = here.picture(picture)
    if side is not None:
        side = min(side, *image.size)
        image = ImageOps.fit(image, (side, side), Image.Resampling.LANCZOS)
    return Response(png(image, 1), media_type="image/png")


@router.delete("/pictures/{picture}", status_code=204)
def remove_picture(picture: schema.Name, here: Here) -> None:
    """Forget an uploaded picture at once."""
    if picture in SAMPLES:
        raise HTTPException(403, "A bundled picture cannot be removed.")
    here.pictures.remove(picture)


@router.post("/preview")
def draw_preview(wanted: schema.PreviewRequest, here: Here) -> schema.PreviewAnswer:
    """Draw a jigsaw: masked blocks and what the model is fed, before anything is attacked."""
    public = here.models[wanted.model]
    plan = first_plan(public, wanted)
    image = as_shown(public, here.picture(wanted.picture))
    fed = plan.apply(image[None])[0]
    drawn = jigsaw_pictures(image, fed, plan.masked[0], plan.grid)
    encoded = {name: base64.b64encode(png(image, 1)).decode() for name, image in drawn.items()}
    return schema.PreviewAnswer(
        rows=plan.grid.rows,
        cols=plan.grid.cols,
        masked=plan.masked[0].nonzero()[:, 0].tolist(),
        source=plan.source[0].tolist(),
        pictures={name: f"data:image/png;base64,{text}" for name, text in encoded.items()},
    )


# Jobs: start, watch, cancel, see, download.


def _job(job: schema.Name, here: Here) -> Job:
    return here.jobs.get(job)


def _outcome(job: Annotated[Job, Depends(_job)]) -> Outcome:
    if job.outcome is None:
        raise HTTPException(404, f"This job has no result; it is {job.state}.")
    return job.outcome


AJob = Annotated[Job, Depends(_job)]
AnOutcome = Annotated[Outcome, Depends(_outcome)]


@router.post("/jobs", status_code=202)
def start_job(wanted: schema.JobRequest, here: Here) -> schema.JobAnswer:
    """Start an attack on a picture; it waits for its turn and then runs.

    The same choices and seed give the same result, and the same as `mjp audit` gives.
    """
    first_plan(here.models[wanted.model], wanted)
    return here.jobs.answer(here.jobs.add(here.picture(wanted.picture), wanted))


@router.get("/jobs/{job}")
def read_job(job: AJob, here: Here) -> schema.JobAnswer:
    """See how far a job is, and its result once it is done."""
    return here.jobs.answer(job)


@router.delete("/jobs/{job}")
def cancel_job(job: AJob, here: Here) -> schema.JobAnswer:
    """Cancel a job that waits or runs; forget one that has ended."""
    here.jobs.cancel(job)
    return here.jobs.answer(job)


@router.get("/jobs/{job}/events", response_class=EventSourceResponse)
async def watch_job(job: AJob, here: Here) -> AsyncIterator[ServerSentEvent]:
    """Watch a job: Server-Sent Events named `job`, each with the job as JSON; the last is final."""
    sent: tuple[object, ...] = ()
    while job.state in OPEN and not here.jobs.closing:
        answer = here.jobs.answer(job)
        now = (answer.state, round(answer.progress, 2), answer.ahead)
        if now != sent and answer.state in OPEN:
            sent = now
            yield ServerSentEvent(data=answer, event="job")
        await asyncio.sleep(LOOK_SECONDS)
    yield ServerSentEvent(data=here.jobs.answer(job), event="job")


@router.get("/jobs/{job}/pictures/{shown}.png", response_class=Response, responses=FILE)
def read_job_picture(
    outcome: AnOutcome, shown: Literal["picture", "masked", "shuffled", "recovered"]
) -> Response:
    """See a picture of a result: the original, masked blocks, the shuffle, what was recovered."""
    if shown not in outcome.pictures:
        raise HTTPException(404, "The attack recovered no picture.")
    return Response(outcome.pictures[shown], media_type="image/png")


@router.get("/jobs/{job}/download", response_class=Response)
def download_job(outcome: AnOutcome) -> Response:
    """Download a result: a ZIP of its pictures, and all numbers and conditions as `record.json`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in outcome.pictures.items():
            archive.writestr(f"{name}.png", content)
        archive.writestr("record.json", outcome.record.to_json() + "\n")
    name = f"mjp-{outcome.record.conditions['attack']}.zip"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(file.getvalue(), media_type="application/zip", headers=headers)
