"""`Jobs`: attacks that wait, run in threads, are cancelled, and whose results are kept a while."""

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
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
from mjp.jigsaw import JigsawPlan
from mjp.models.facts import model_facts
from mjp.privacy.attacks import ATTACKS
from mjp.privacy.audit import audit
from mjp.privacy.defences import Defence, parse_defence
from mjp.privacy.public import PublicModel
from mjp.web.config import ServeOptions, cores
from mjp.web.pictures import Store, masked_blocks, new_id, picture_of, png
from mjp.web.schema import JobAnswer, JobRequest, Result, State

OPEN = ("waiting", "running")
LEFT_OUT = ("identified", "gallery", "psnr_low", "psnr_high", "ssim_low", "ssim_high")
"""Of one picture there is nothing to pick from and no spread."""
Tell = Callable[[float], None]
"""Is told the share of the work that was done since it last was; what it raises ends the attack."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of an attack.

    Args:
        pictures: PNG files: `picture`, `masked`, `shuffled` and, where there is one, `recovered`.
    """

    record: Record
    pictures: Mapping[str, bytes]
    notes: tuple[str, ...]


def attack_picture(
    picture: Image.Image, name: str, label: str, public: PublicModel, wanted: JobRequest, tell: Tell
) -> Outcome:
    """Client, defence, attack and numbers for one picture.

    Args:
        name: what the picture is called in the record; never a file of the visitor's.
        label: what people call the model.
    """
    started = time.perf_counter()
    defence = parse_defence(wanted.defence)
    settings = {name: getattr(wanted, name) for name in ("rounds", "steps", "restarts", "seed")}
    report = audit(
        public,
        as_shown(public, picture)[None],
        attacks=(wanted.attack,),
        defences=(defence,),
        label=label,
        names=(name,),
        show=1,
        tell=tell,
        **settings,
    )
    summary, _, measured = report.records
    conditions = {
        **model_facts(label, public.model),
        "image": name,
        "image_size": "x".join(map(str, public.size)),
        "patches": public.grid.num_patches,
        "defence": str(defence),
        "defence_title": defence.title,
        "epsilon": defence.epsilon(),
        "attack": wanted.attack,
        "attack_kind": ATTACKS[wanted.attack].kind,
        "knows_defence": ATTACKS[wanted.attack].knows_defence,
        **settings,
        "mjp": __version__,
        "torch": torch.__version__,
    }
    values = {**measured.values}
    values |= {name: value for name, value in summary.values.items() if value is not None}
    values["seconds"] = time.perf_counter() - started
    values = {name: value for name, value in values.items() if not name.startswith(LEFT_OUT)}
    image = report.images[str(defence), "original", 0]
    drawn = {
        "picture": png(picture_of(image)),
        "masked": png(masked_blocks(image, report.masks[str(defence), 0], public.grid)),
        "shuffled": png(picture_of(report.images[str(defence), "client", 0])),
    }
    if (recovered := report.images.get((str(defence), wanted.attack, 0))) is not None:
        drawn["recovered"] = png(picture_of(recovered))
    return Outcome(Record("trial", conditions, values), drawn, report.notes)


def as_shown(public: PublicModel, picture: Image.Image) -> Tensor:
    """The picture as the model is shown it: (3, height, width), in [0, 1]."""
    levels = torch.as_tensor(View(public.size).transform()(picture))
    dtype = next(public.model.parameters()).dtype
    return levels.to(public.device, dtype) / 255


def first_plan(public: PublicModel, defence: Defence, seed: int) -> JigsawPlan:
    """The jigsaw that an attack with this seed meets; without one, it moves nothing."""
    generator = generator_for(seed, "audit jigsaw", rank=0, step=0)
    try:
        plan = defence.draw_plan(public, 1, generator)
    except ConfigError as error:
        raise HTTPException(422, sentence(error)) from error
    return plan or JigsawPlan.identity(public.grid, 1, public.device)


def sentence(error: MjpError) -> str:
    """An error of the package as the page says it."""
    return f"{str(error)[:1].upper()}{str(error)[1:]}."


class _Stop(Exception):  # noqa: N818  It is no error.
    """Leaves an attack whose result nobody wants any more."""


@dataclass(eq=False)
class Job:
    """An attack and how far it is. Changed under the lock of its `Jobs`, which gives copies away.

    Args:
        progress: share that is done, from 0 to 1.
        message: a sentence on how it ended, where that was not well.
        ahead: jobs that will start before it.
        seconds: that it has run.
    """

    id: str
    picture: Image.Image
    wanted: JobRequest
    state: State = "waiting"
    progress: float = 0.0
    message: str = ""
    outcome: Outcome | None = None
    started: float | None = None
    seconds: float = 0.0
    ahead: int = 0

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


def answer(job: Job) -> JobAnswer:
    """A job as the API tells of it."""
    wanted = job.wanted
    return JobAnswer(
        id=job.id,
        state=job.state,
        progress=job.progress,
        ahead=job.ahead,
        seconds=round(job.seconds, 3),
        message=job.message,
        model=wanted.model,
        defence=wanted.defence,
        attack=wanted.attack,
        seed=wanted.seed,
        result=None if job.outcome is None else _result(job.id, job.outcome),
    )


def _result(job: str, outcome: Outcome) -> Result:
    facts: dict[str, Any] = {**outcome.record.conditions, **outcome.record.values}
    for name, value in facts.items():
        if isinstance(value, float) and not math.isfinite(value):  # JSON has none.
            facts[name] = None
    pictures = {name: f"/api/jobs/{job}/pictures/{name}.png" for name in outcome.pictures}
    return Result.model_validate(
        {
            **facts,
            "reason": facts.get("reason") or "",
            "psnr_shuffled": facts.get("client_psnr"),
            "psnr_guess": max(facts["baseline_mean_psnr"], facts["baseline_colour_psnr"]),
            "notes": outcome.notes,
            "pictures": pictures,
            "download": f"/api/jobs/{job}/download",
        }
    )


class Jobs:
    """A bounded queue and the threads that work it off.

    Args:
        run: attacks a picture, in one of the threads.
        warm_up: is called in each thread first.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        options: ServeOptions,
        run: Callable[[Image.Image, JobRequest, Tell], Outcome],
        warm_up: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store: Store[Job] = Store(
            options.kept, options.idle_seconds, keep=lambda job: job.is_open, clock=clock
        )
        self.closing = False
        """Has every attack give up when it next tells its progress."""
        self._options = options
        self._run = run
        self._warm_up = warm_up
        self._clock = clock
        self._lock = threading.RLock()
        self._open: list[Job] = []
        self._called = 0
        self._futures: set[Future[None]] = set()
        self._threads = ThreadPoolExecutor(options.num_jobs, "attack", self._prepare)

    def start(self) -> None:
        """Starts the threads."""
        for _ in range(self._options.num_jobs):
            self._threads.submit(lambda: None)

    def _prepare(self) -> None:
        # One core is left for answers. Threads that wait for a busy core spin, and take far longer.
        torch.set_num_threads(max(1, (cores() - 1) // self._options.num_jobs))
        self._warm_up()

    def close(self, seconds: float) -> bool:
        """Cancels everything and waits for the attacks; whether all have ended by then."""
        self.closing = True
        with self._lock:
            for job in list(self._open):
                self._end(job, "cancelled", "The server was stopped.")
        self._threads.shutdown(wait=False, cancel_futures=True)
        return not wait(list(self._futures), seconds).not_done

    def add(self, picture: Image.Image, wanted: JobRequest) -> Job:
        """Puts an attack into the queue; a refusal where too many are waiting."""
        with self._lock:
            if self.closing:
                raise HTTPException(503, "The server is being stopped.")
            waiting = sum(job.state == "waiting" for job in self._open)
            free = max(0, self._options.num_jobs - (len(self._open) - waiting))
            if waiting >= self._options.waiting + free:
                raise HTTPException(
                    429,
                    f"{waiting} attacks are waiting already. Try again in a few seconds.",
                    {"Retry-After": "5"},
                )
            job = Job(new_id(), picture, wanted)
            self._open.append(job)
            self.store.add(job.id, job)
            if self._called <= waiting:  # No more, so that cancelled jobs leave nothing behind.
                self._called += 1
                future = self._threads.submit(self._work)
                self._futures.add(future)
                future.add_done_callback(self._futures.discard)
            return self._copy(job)

    def look(self, name: str) -> Job | None:
        """How a job is; None where there is none of this name."""
        job = self.store.get(name)
        if job is None:
            return None
        with self._lock:
            self._end_if_late(job)
            return self._copy(job)

    def cancel(self, name: str) -> Job | None:
        """Cancels an open job, which keeps its name; forgets one that has ended."""
        job = self.store.get(name)
        if job is None:
            return None
        with self._lock:
            if job.is_open:
                self._end(job, "cancelled", "The attack was cancelled.")
            else:
                self.store.remove(name)
            return self._copy(job)

    def _copy(self, job: Job) -> Job:
        waiting = [other for other in self._open if other.state == "waiting"]
        return replace(
            job,
            ahead=waiting.index(job) if job in waiting else 0,
            seconds=self._seconds(job) if job.is_open else job.seconds,
        )

    def _seconds(self, job: Job) -> float:
        return 0.0 if job.started is None else self._clock() - job.started

    def _end(self, job: Job, state: State, message: str = "") -> None:
        """The thread that runs it, if any, learns of it when it next tells its progress."""
        if job.is_open:
            job.state, job.message, job.seconds = state, message, self._seconds(job)
            self._open.remove(job)

    def _end_if_late(self, job: Job) -> None:
        most = self._options.seconds
        if job.state == "running" and self._seconds(job) > most:
            text = f"The attack was stopped after {most:g} seconds. Use fewer steps or a smaller "
            self._end(job, "timed out", f"{text}model.")

    def _work(self) -> None:
        """Runs the job whose turn it is, whatever comes of it."""
        with self._lock:
            self._called -= 1
            job = next((job for job in self._open if job.state == "waiting"), None)
            if job is None:
                return
            job.state, job.started = "running", self._clock()

        def tell(share: float) -> None:
            with self._lock:
                self._end_if_late(job)
                if self.closing:
                    self._end(job, "cancelled", "The server was stopped.")
                if not job.is_open:
                    raise _Stop
                job.progress = min(0.99, job.progress + share)

        outcome: Outcome | None = None
        message = "Something went wrong in the server; this is not your fault."
        try:
            outcome = self._run(job.picture, job.wanted, tell)
        except _Stop:
            return
        except MjpError as error:
            message = sentence(error)
        except (MemoryError, torch.OutOfMemoryError):
            message = "There is not enough memory for this attack. Use a smaller model."
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            message = "The attack's equations could not be solved for this picture."
        except Exception as error:
            print(f"mjp: an attack failed: {type(error).__name__}: {error}", file=sys.stderr)
            traceback.print_exc()
        with self._lock:
            if not job.is_open:
                return
            job.outcome = outcome
            if outcome is None:
                self._end(job, "failed", message)
            else:
                job.progress = 1.0
                self._end(job, "done")
