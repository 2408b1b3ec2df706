"""`Jobs`: attacks that wait, run in threads, are cancelled, and whose results are kept a while."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from PIL import Image
from starlette.exceptions import HTTPException
from torch import Tensor

from mjp import __version__
from mjp.core.errors import ConfigError, MjpError
from mjp.core.records import Record
from mjp.core.seeds import generator_for
from mjp.data.decoding import View
from mjp.data.feed import available_cores
from mjp.jigsaw import JigsawPlan
from mjp.privacy.audit import audit
from mjp.privacy.defences import parse_defence
from mjp.privacy.public import PublicModel
from mjp.web.config import ServeOptions
from mjp.web.guard import BROKEN, busy, log_failure
from mjp.web.models import Models
from mjp.web.pictures import SAMPLES, Store, jigsaw_pictures, new_id, picture_of, png
from mjp.web.schema import JobAnswer, JobRequest, PreviewRequest, Result, State

OPEN = ("waiting", "running")
LEFT_OUT = ("identified", "gallery", "psnr_low", "psnr_high", "ssim_low", "ssim_high", "top1")
"""Of one picture there is nothing to pick from, no spread and no accuracy."""
Tell = Callable[[float], None]
"""Is told the share of the work that was done since it last was; what it raises ends the attack."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of an attack; its pictures are PNG files."""

    record: Record
    pictures: Mapping[str, bytes]
    notes: tuple[str, ...]


def attack_picture(models: Models, picture: Image.Image, wanted: JobRequest, tell: Tell) -> Outcome:
    """An audit of one picture."""
    tell(0.0)
    public = models.of_thread(wanted.model)
    report = audit(
        public,
        as_shown(public, picture)[None],
        attacks=(wanted.attack,),
        defences=(wanted.defence,),
        label=models.label(wanted.model),
        names=(wanted.picture if wanted.picture in SAMPLES else "upload",),
        show=1,
        tell=tell,
        **wanted.model_dump(include={"rounds", "steps", "restarts", "seed"}),
    )
    summary, accuracy, measured = report.records
    values = dict(measured.values)
    for record in (accuracy, summary):
        values |= {name: value for name, value in record.values.items() if value is not None}
    values = {name: value for name, value in values.items() if not name.startswith(LEFT_OUT)}
    versions = {"mjp": __version__, "torch": torch.__version__}
    images = {what: image for (_, what, _), image in report.images.items()}
    (masked,) = report.masks.values()
    drawn = jigsaw_pictures(images["original"], images["client"], masked, public.grid)
    if wanted.attack in images:
        drawn["recovered"] = picture_of(images[wanted.attack])
    return Outcome(
        Record("trial", {**measured.conditions, **versions}, values),
        {what: png(image) for what, image in drawn.items()},
        report.notes,
    )


def as_shown(public: PublicModel, picture: Image.Image) -> Tensor:
    """The picture as the model is shown it: (3, height, width), in [0, 1]."""
    levels = torch.as_tensor(View(public.size).transform()(picture))
    dtype = next(public.model.parameters()).dtype
    return levels.to(public.device, dtype) / 255


def first_plan(public: PublicModel, wanted: PreviewRequest) -> JigsawPlan:
    """The jigsaw that an attack meets; a refusal where this model cannot have the defence."""
    generator = generator_for(wanted.seed, "audit jigsaw", rank=0, step=0)
    try:
        plan = parse_defence(wanted.defence).draw_plan(public, 1, generator)
    except ConfigError as error:
        raise HTTPException(422, _sentence(error)) from error
    return plan or JigsawPlan.identity(public.grid, 1, public.device)


def _sentence(error: MjpError) -> str:
    return f"{str(error)[:1].upper()}{str(error)[1:]}."


class _Stop(Exception):  # noqa: N818  It is no error.
    """Leaves an attack whose result nobody wants any more."""


@dataclass(eq=False)
class Job:
    """An attack and how far it is; changed by its `Jobs` alone."""

    id: str
    picture: Image.Image
    wanted: JobRequest
    state: State = "waiting"
    progress: float = 0.0
    message: str = ""
    outcome: Outcome | None = None
    started: float = 0.0
    seconds: float = 0.0


def _result(job: str, outcome: Outcome) -> Result:
    facts: dict[str, Any] = {**outcome.record.conditions, **outcome.record.values}
    for name, value in facts.items():
        if isinstance(value, float) and not math.isfinite(value):  # JSON has none.
            facts[name] = None
    described = {
        "psnr_shuffled": facts.get("client_psnr"),
        "psnr_guess": max(facts["baseline_mean_psnr"], facts["baseline_colour_psnr"]),
        "notes": outcome.notes,
        "pictures": {name: f"/api/jobs/{job}/pictures/{name}.png" for name in outcome.pictures},
        "download": f"/api/jobs/{job}/download",
    }
    return Result.model_validate(facts | described)


class Jobs:
    """A bounded queue and the threads that work it off."""

    def __init__(
        self,
        options: ServeOptions,
        run: Callable[[Image.Image, JobRequest, Tell], Outcome],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        missing = "There is no such job; it may have been forgotten. Run it again."
        self.ended: Store[Job] = Store(options, missing, clock)
        self.closing = False
        """Has every attack give up when it next tells its progress."""
        self._options = options
        self._run = run
        self._clock = clock
        self._changed = threading.Condition()
        self._open: list[Job] = []
        work = partial(threading.Thread, target=self._work, name="attack", daemon=True)
        self._threads = [work() for _ in range(options.num_jobs)]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def close(self, seconds: float) -> bool:
        """Cancels everything and waits for the attacks; whether all have ended by then."""
        with self._changed:
            self.closing = True
            for job in list(self._open):
                self._end(job, "cancelled", "The server was stopped.")
            self._changed.notify_all()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def add(self, picture: Image.Image, wanted: JobRequest) -> Job:
        """Puts an attack into the queue; a refusal where too many are waiting."""
        with self._changed:
            if self.closing:
                raise HTTPException(503, "The server is being stopped.")
            if len(self._open) >= self._options.waiting + self._options.num_jobs:
                raise busy(f"{len(self._waiting())} attacks are waiting already.")
            job = Job(new_id(), picture, wanted)
            self._open.append(job)
            self._changed.notify()
            return job

    def get(self, name: str) -> Job:
        """The job of this name; a refusal where there is none."""
        with self._changed:
            return next((job for job in self._open if job.id == name), None) or self.ended.get(name)

    def cancel(self, job: Job) -> None:
        """Cancels an open job, which keeps its name; forgets one that has ended."""
        with self._changed:
            if job in self._open:
                self._end(job, "cancelled", "The attack was cancelled.")
            else:
                self.ended.remove(job.id)

    def answer(self, job: Job) -> JobAnswer:
        """A job as the API tells of it."""
        with self._changed:
            self._end_if_late(job)
            waiting = self._waiting()
            fields = {
                **job.wanted.model_dump(),
                **vars(job),
                "ahead": waiting.index(job) if job in waiting else 0,
                "seconds": round(self._seconds(job), 3),
                "result": None if job.outcome is None else _result(job.id, job.outcome),
            }
            return JobAnswer.model_validate(fields)

    def _waiting(self) -> list[Job]:
        return [job for job in self._open if job.state == "waiting"]

    def _seconds(self, job: Job) -> float:
        return self._clock() - job.started if job.state == "running" else job.seconds

    def _end(
        self, job: Job, state: State, message: str = "", outcome: Outcome | None = None
    ) -> None:
        """The thread that runs it, if any, learns of it when it next tells its progress."""
        if job in self._open:
            job.seconds = self._seconds(job)
            job.state, job.message, job.outcome = state, message, outcome
            if state == "done":
                job.progress = 1.0
            self._open.remove(job)
            self.ended.add(job.id, job)

    def _end_if_late(self, job: Job) -> None:
        most = self._options.seconds
        if job.state == "running" and self._seconds(job) > most:
            text = f"The attack was stopped after {most:g} seconds. Use fewer steps or a smaller "
            self._end(job, "timed out", f"{text}model.")

    def _work(self) -> None:
        # One core is left for answers. Threads that wait for a busy core spin, and take far longer.
        torch.set_num_threads(max(1, (available_cores() - 1) // self._options.num_jobs))
        while not self.closing:
            self._work_off_next()

    def _work_off_next(self) -> None:
        """Runs the job whose turn it is, whatever comes of it."""
        with self._changed:
            self._changed.wait_for(lambda: self.closing or self._waiting())
            if self.closing:
                return
            job = self._waiting()[0]
            job.state, job.started = "running", self._clock()

        def tell(share: float) -> None:
            with self._changed:
                self._end_if_late(job)
                if self.closing or job not in self._open:
                    raise _Stop
                job.progress = min(0.99, job.progress + share)

        message = BROKEN
        try:
            outcome = self._run(job.picture, job.wanted, tell)
            with self._changed:
                self._end(job, "done", outcome=outcome)
            return
        except _Stop:
            return
        except MjpError as error:
            message = _sentence(error)
        except (MemoryError, torch.OutOfMemoryError):
            message = "There is not enough memory for this attack. Use a smaller model."
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            message = "The attack's equations could not be solved for this picture."
        except Exception as error:
            log_failure("an attack", error)
        with self._changed:
            self._end(job, "failed", message)
