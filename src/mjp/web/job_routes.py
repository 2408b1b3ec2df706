"""The routes of jobs: start, watch, cancel, see, download."""

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse

from mjp.core.records import Scalar
from mjp.privacy.audit import AuditSettings
from mjp.web.choices import checked_attack, checked_defence
from mjp.web.desk import AtDesk, Desk
from mjp.web.jobs import JobView
from mjp.web.picture_routes import PNG, errors
from mjp.web.refusing import RefusedError
from mjp.web.schema import NAME, JobAnswer, JobRequest, Result
from mjp.web.trial import PICTURES, Finding, Trial, plan_of

LOOK_SECONDS = 0.1
"""How often a stream looks whether something has changed."""
BEAT_SECONDS = 10.0
"""How often it says that it is still there."""
ZIP: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/zip": {}}, "description": "Pictures and `record.json`."}
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "Events named `job`, each with a job as JSON; the last one is final.",
    }
}
Shown = Literal["picture", "masked", "shuffled", "recovered"]
JobId = Annotated[str, Path(pattern=NAME, description="The id that a job was given.")]
router = APIRouter(prefix="/api/jobs", tags=["jobs"])


@router.post(
    "", summary="Start an attack", status_code=202, responses=errors(400, 403, 404, 413, 422, 429)
)
async def start_job(wanted: JobRequest, desk: AtDesk) -> JobAnswer:
    """Start an attack on a picture; it waits for its turn and then runs.

    The same choices and seed give the same result, and the same as `mjp audit` gives.
    """
    trial = await desk.by_hand(lambda: _trial(wanted, desk))
    return answer(desk.jobs.add(trial))


def _trial(wanted: JobRequest, desk: Desk) -> Trial:
    defence, attack = checked_defence(wanted.defence), checked_attack(wanted.attack)
    label = desk.shelf.label(wanted.model)
    plan_of(desk.shelf.public(wanted.model), defence, wanted.seed)
    held = desk.album.get(wanted.picture)
    settings = AuditSettings(
        rounds=wanted.rounds, steps=wanted.steps, restarts=wanted.restarts, seed=wanted.seed
    )
    return Trial(held.image, held.name, wanted.model, label, defence, attack, settings)


@router.get("/{job}", summary="See how far a job is", responses=errors(404, 422))
async def read_job(job: JobId, desk: AtDesk) -> JobAnswer:
    """See how far a job is, and its result once it is done."""
    return answer(_seen(job, desk))


@router.delete("/{job}", summary="Cancel or forget a job", responses=errors(403, 404, 422))
async def cancel_job(job: JobId, desk: AtDesk) -> JobAnswer:
    """Cancel a job that waits or runs; forget one that has ended."""
    view = desk.jobs.cancel(job)
    if view is None:
        raise _unknown()
    return answer(view)


@router.get(
    "/{job}/events",
    summary="Watch a job",
    response_class=StreamingResponse,
    responses=EVENTS | errors(404, 422),
)
async def watch_job(job: JobId, desk: AtDesk) -> StreamingResponse:
    """Watch a job: its state and progress as they change (Server-Sent Events)."""
    _seen(job, desk)
    return StreamingResponse(_events(job, desk), media_type="text/event-stream")


async def _events(job: str, desk: Desk) -> AsyncIterator[str]:
    told: tuple[object, ...] = ()
    quiet = 0.0
    while not desk.jobs.closing:
        view = desk.jobs.look(job)
        if view is None:
            return
        now = (view.state, round(view.progress, 2), view.ahead)
        if now != told:
            told, quiet = now, 0.0
            yield f"event: job\ndata: {answer(view).model_dump_json()}\n\n"
        elif quiet >= BEAT_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        if not view.is_open:
            return
        await asyncio.sleep(LOOK_SECONDS)
        quiet += LOOK_SECONDS


@router.get(
    "/{job}/pictures/{shown}.png",
    summary="See a picture of a result",
    response_class=Response,
    responses=PNG | errors(404, 422),
)
async def read_job_picture(job: JobId, shown: Shown, desk: AtDesk) -> Response:
    """See a picture of a result: the original, masked blocks, the shuffle, what was recovered."""
    finding = _finding(job, desk)
    if shown not in finding.pictures:
        raise RefusedError(404, "The attack recovered no picture.")
    return Response(finding.pictures[shown], media_type="image/png")


@router.get(
    "/{job}/download",
    summary="Download a result",
    response_class=Response,
    responses=ZIP | errors(404, 422),
)
async def download_job(job: JobId, desk: AtDesk) -> Response:
    """Download a result: its pictures as PNG, and all numbers and conditions as JSON."""
    finding = _finding(job, desk)
    name = f"mjp-{finding.record.conditions['attack']}.zip"
    return Response(
        await desk.by_hand(lambda: _packed(finding)),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _packed(finding: Finding) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in PICTURES:
            if name in finding.pictures:
                archive.writestr(f"{name}.png", finding.pictures[name])
        archive.writestr("record.json", finding.record.to_json() + "\n")
    return file.getvalue()


def _seen(job: str, desk: Desk) -> JobView:
    view = desk.jobs.look(job)
    if view is None:
        raise _unknown()
    return view


def _unknown() -> RefusedError:
    return RefusedError(404, "There is no such job; it may have been forgotten. Run it again.")


def _finding(job: str, desk: Desk) -> Finding:
    view = _seen(job, desk)
    if view.finding is None:
        raise RefusedError(404, f"This job has no result; it is {view.state}.")
    return view.finding


def answer(view: JobView) -> JobAnswer:
    """A job as the API tells of it."""
    trial = view.trial
    return JobAnswer(
        id=view.id,
        state=view.state,
        progress=view.progress,
        ahead=view.ahead,
        seconds=round(view.seconds, 3),
        message=view.message,
        model=trial.model,
        defence=str(trial.defence),
        attack=trial.attack,
        seed=trial.settings.seed,
        result=None if view.finding is None else _result(view.id, view.finding),
    )


def _result(job: str, finding: Finding) -> Result:
    conditions, values = finding.record.conditions, finding.record.values
    guesses = [values.get("baseline_mean_psnr"), values.get("baseline_colour_psnr")]
    recovered = values.get("mask_recovered")
    return Result(
        level=str(values["level"]),
        verdict=str(values["verdict"]),
        reason=str(values.get("reason") or ""),
        psnr=_number(values.get("psnr")),
        ssim=_number(values.get("ssim")),
        psnr_unmasked=_number(values.get("psnr_unmasked")),
        psnr_masked=_number(values.get("psnr_masked")),
        psnr_shuffled=_number(values.get("client_psnr")),
        psnr_guess=max(found for found in map(_number, guesses) if found is not None),
        masked_patches=int(_number(values["masked_patches"]) or 0),
        patches=int(_number(conditions["patches"]) or 0),
        mask_recovered=None if recovered is None else bool(recovered),
        fidelity=_number(values["fidelity"]) or 0.0,
        epsilon=_number(conditions["epsilon"]),
        notes=list(finding.notes),
        pictures={name: f"/api/jobs/{job}/pictures/{name}.png" for name in finding.pictures},
        download=f"/api/jobs/{job}/download",
    )


def _number(value: Scalar) -> float | None:
    """A finite number, or nothing."""
    if not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < float("inf") else None
