"""The routes of choices, pictures and previews."""

import asyncio
import base64
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from mjp import __version__
from mjp.privacy.attacking import ATTACKS
from mjp.web.choices import ABOUT_ATTACKS, DEFENCES, SAMPLES, checked_defence
from mjp.web.decoding import FORMATS, read_picture
from mjp.web.desk import AtDesk, Desk
from mjp.web.drawing import png, thumbnail
from mjp.web.limits import LONGEST_SIDE, MOST_RESTARTS, MOST_ROUNDS, MOST_STEPS, SHORTEST_SIDE
from mjp.web.receiving import received
from mjp.web.refusing import RefusedError
from mjp.web.schema import (
    NAME,
    AttackOffer,
    DefenceOffer,
    LimitsOffer,
    ModelOffer,
    NumberOffer,
    Options,
    PictureAnswer,
    PreviewAnswer,
    PreviewRequest,
    SampleOffer,
    Trouble,
)
from mjp.web.trial import preview

WAIT_SECONDS = 10.0
"""How long an upload waits for others to be through."""
_REASONS = {
    400: "The request cannot be understood.",
    403: "It comes from a page of another site, or is not allowed.",
    404: "There is nothing of this name; it may have been forgotten.",
    408: "The body took too long to arrive.",
    413: "The file is too large, or the picture has too many pixels.",
    415: "The file is no PNG, JPEG or WebP picture.",
    421: "The server is not called by this name.",
    422: "A value cannot be used, or the picture is damaged.",
    429: "Too much is going on; try again after the seconds in `Retry-After`.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What else a route may answer, for its documentation."""
    wanted = sorted({421, *statuses})
    return {one: {"model": Trouble, "description": _REASONS[one]} for one in wanted}


PNG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {}}, "description": "A PNG file."}
}
Picture = Annotated[str, Path(pattern=NAME, description="A sample, or the id of an upload.")]
router = APIRouter(prefix="/api", tags=["pictures"])


@router.get("/options", summary="List what can be chosen", tags=["choices"], responses=errors())
async def read_options(desk: AtDesk) -> Options:
    """What can be chosen: models, attacks, defences, samples; and the limits."""
    limits = desk.limits
    return Options(
        version=__version__,
        models=[ModelOffer(**asdict(offer)) for offer in desk.shelf.offers()],
        attacks=[_attack(name) for name in ATTACKS],
        defences=[_defence(name) for name in DEFENCES],
        samples=[SampleOffer(name=name, label=label) for name, label in SAMPLES.items()],
        limits=LimitsOffer(
            upload_bytes=limits.upload_bytes,
            pixels=limits.pixels,
            formats=list(FORMATS),
            jobs=limits.jobs,
            waiting=limits.waiting,
            seconds=limits.seconds,
            kept=limits.kept,
            idle_seconds=limits.idle_seconds,
            steps=MOST_STEPS,
            restarts=MOST_RESTARTS,
            rounds=MOST_ROUNDS,
        ),
    )


def _attack(name: str) -> AttackOffer:
    entry = ATTACKS[name]
    return AttackOffer(
        name=name,
        about=ABOUT_ATTACKS.get(name, entry.about),
        kind="search" if entry.kind == "search" else "closed",
        knows_defence=entry.knows_defence,
    )


def _defence(name: str) -> DefenceOffer:
    entry = DEFENCES[name]
    number = None if entry.number is None else NumberOffer(**asdict(entry.number))
    return DefenceOffer(name=name, label=entry.label, about=entry.about, number=number)


_FILE = {"schema": {"type": "string", "format": "binary"}}
_BODY = {
    "requestBody": {
        "required": True,
        "description": "The file itself; no form. What it is, is told from its first bytes.",
        "content": dict.fromkeys((*FORMATS, "application/octet-stream"), _FILE),
    }
}


@router.post(
    "/pictures",
    summary="Upload a picture",
    status_code=201,
    openapi_extra=_BODY,
    responses=errors(400, 403, 408, 413, 415, 422, 429),
)
async def upload_picture(request: Request, desk: AtDesk) -> PictureAnswer:
    """Upload a picture: the bytes of a PNG, JPEG or WebP file.

    It is held in memory, shrunk and without its metadata, under an id that cannot be guessed, and
    never written anywhere. There is no list of pictures.
    """
    async with _Turn(desk.uploads):
        content = await received(
            request.stream(),
            request.headers.get("content-length"),
            desk.limits.upload_bytes,
            desk.limits.upload_seconds,
        )
        image = await desk.by_hand(lambda: read_picture(content, desk.limits))
    return PictureAnswer(
        id=desk.album.add(image),
        width=image.width,
        height=image.height,
        idle_seconds=desk.limits.idle_seconds,
    )


class _Turn:
    """A place among those whose uploads are held in memory."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places

    async def __aenter__(self) -> None:
        try:
            await asyncio.wait_for(self._places.acquire(), WAIT_SECONDS)
        except TimeoutError as error:
            raise RefusedError(
                429, "Too many pictures are being sent. Try again in a few seconds.", retry_after=5
            ) from error

    async def __aexit__(self, *_: object) -> None:
        self._places.release()


@router.get(
    "/pictures/{picture}",
    summary="See a picture",
    response_class=Response,
    responses=PNG | errors(404, 422),
)
async def read_a_picture(
    picture: Picture,
    desk: AtDesk,
    side: Annotated[
        int | None,
        Query(
            ge=SHORTEST_SIDE,
            le=LONGEST_SIDE,
            description="For a square thumbnail: pixels across, at most.",
        ),
    ] = None,
) -> Response:
    """See a sample or an uploaded picture."""
    image = desk.album.get(picture).image

    def drawn() -> bytes:
        return png(image if side is None else thumbnail(image, side), 1)

    return Response(await desk.by_hand(drawn), media_type="image/png")


@router.delete(
    "/pictures/{picture}",
    summary="Forget a picture",
    status_code=204,
    responses=errors(403, 404, 422),
)
async def remove_picture(picture: Picture, desk: AtDesk) -> Response:
    """Forget an uploaded picture at once."""
    desk.album.remove(picture)
    return Response(status_code=204)


@router.post("/preview", summary="Draw a jigsaw", responses=errors(400, 403, 404, 413, 422))
async def draw_preview(wanted: PreviewRequest, desk: AtDesk) -> PreviewAnswer:
    """Draw a jigsaw: masked blocks and what the model is fed, before anything is attacked."""
    return await desk.by_hand(lambda: _preview(wanted, desk))


def _preview(wanted: PreviewRequest, desk: Desk) -> PreviewAnswer:
    defence = checked_defence(wanted.defence)
    public = desk.shelf.public(wanted.model)
    found = preview(public, desk.album.get(wanted.picture).image, defence, wanted.seed)
    return PreviewAnswer(
        rows=found.plan.grid.rows,
        cols=found.plan.grid.cols,
        masked=found.plan.masked[0].nonzero()[:, 0].tolist(),
        source=found.plan.source[0].tolist(),
        pictures={name: _data_url(content) for name, content in found.pictures.items()},
    )


def _data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
