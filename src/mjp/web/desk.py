"""`Desk`: all that the routes work with, put together once for each server."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from mjp.privacy.audit import AuditSettings
from mjp.privacy.defences import parse_defence
from mjp.web.album import Album, sample
from mjp.web.choices import SAMPLES
from mjp.web.jobs import Jobs
from mjp.web.limits import Limits
from mjp.web.shelf import SMALL, Shelf
from mjp.web.trial import Attempt, Bench, Trial

Answer = TypeVar("Answer")
HANDS = 2
"""Threads that decode, draw and encode."""


@dataclass(frozen=True, eq=False)
class Desk:
    """All that the routes work with."""

    limits: Limits
    shelf: Shelf
    album: Album
    jobs: Jobs
    hands: ThreadPoolExecutor
    uploads: asyncio.Semaphore = field(repr=False)

    @classmethod
    def of(cls, limits: Limits, shelf: Shelf) -> "Desk":
        """A desk with nothing on it yet."""
        return cls(
            limits,
            shelf,
            Album(limits),
            Jobs(limits, lambda: _bench(shelf)),
            ThreadPoolExecutor(HANDS, "hand"),
            asyncio.Semaphore(limits.uploads),
        )

    async def by_hand(self, work: Callable[[], Answer]) -> Answer:
        """Work that would hold up the others, done in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.hands, work)

    def forget_idle(self) -> None:
        """Lets go of what nobody asked for in a while."""
        self.album.uploads.forget_idle()
        self.jobs.store.forget_idle()


def _bench(shelf: Shelf) -> Attempt:
    """A bench on which something was tried already, so that the first visitor does not wait."""
    bench = Bench(shelf)
    defence = parse_defence("mjp=0.09")
    name = next(iter(SAMPLES))
    settings = AuditSettings()
    trial = Trial(sample(name), name, SMALL, "", defence, "patch_solve", settings)
    bench.attempt(trial, lambda _: None)
    return bench.attempt


def desk_of(request: Request) -> Desk:
    """The desk of the application that a request came to."""
    desk: Desk = request.app.state.desk
    return desk


AtDesk = Annotated[Desk, Depends(desk_of)]
