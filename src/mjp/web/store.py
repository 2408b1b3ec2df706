"""`Store`: things held in memory for a while under names that nobody can guess."""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


def new_id() -> str:
    """A name of 192 random bits."""
    return secrets.token_urlsafe(24)


class Store(Generic[Thing]):
    """Things by their names. Full, it forgets what was longest not asked for; there is no list.

    Args:
        most: things that it holds.
        idle_seconds: after which a thing is forgotten unless somebody asks for it.
        keep: whether a thing has to stay whatever happens, such as a job that runs.
    """

    def __init__(
        self,
        most: int,
        idle_seconds: float,
        *,
        keep: Callable[[Thing], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._keep = keep
        self._clock = clock
        self._lock = threading.Lock()
        self._things: OrderedDict[str, tuple[float, Thing]] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            self._forget_idle()
            return len(self._things)

    def add(self, name: str, thing: Thing) -> None:
        """Holds a thing, making room if need be."""
        with self._lock:
            self._forget_idle()
            self._things[name] = (self._clock(), thing)
            for other in list(self._things):
                if len(self._things) <= self._most:
                    break
                if other != name and not self._keep(self._things[other][1]):
                    del self._things[other]

    def get(self, name: str) -> Thing | None:
        """The thing, which counts as asked for; None where there is none of this name."""
        with self._lock:
            self._forget_idle()
            if name not in self._things:
                return None
            thing = self._things[name][1]
            self._things[name] = (self._clock(), thing)
            self._things.move_to_end(name)
            return thing

    def remove(self, name: str) -> Thing | None:
        """Forgets a thing; what it was."""
        with self._lock:
            found = self._things.pop(name, None)
            return None if found is None else found[1]

    def forget_idle(self) -> None:
        """Forgets what nobody asked for; done at every other call, too."""
        with self._lock:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Asked-for things go to the end, so the idle ones are in front."""
        limit = self._clock() - self._idle_seconds
        for name, (used, thing) in list(self._things.items()):
            if used > limit:
                break
            if not self._keep(thing):
                del self._things[name]
