"""`Run`: the folder a command writes to, the processes that share its work, and its records."""

import fcntl
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType

import torch

from mjp import __version__
from mjp.core.display import Advance, meter
from mjp.core.errors import ConfigError, MjpError, StoppedError
from mjp.core.records import RECORDS, Record, Scalar, append_records, read_records
from mjp.core.team import Team, choose_device, joined


class StopRequest:
    """Whether the run was asked to stop, and by which signal."""

    number = 0

    def note(self, number: int, _: FrameType | None) -> None:
        """A second Ctrl-C does not wait for a checkpoint."""
        if self.number == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Notes signals while inside; in a thread, where none arrive, nothing is noted."""
    request = StopRequest()
    heard = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if heard else ()
    before = {number: signal.signal(number, request.note) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Run:
    """A piece of work with a folder of records, models and figures; open one with `Run.open`."""

    def __init__(self, out: Path, team: Team, seed: int) -> None:
        self.out = out
        self.team = team
        self.device = team.device
        self.seed = seed
        self.known = {record.key(): record for record in read_records(out)}
        """The records in the folder, by their keys."""
        self._request = StopRequest()

    @classmethod
    @contextmanager
    def open(cls, out: Path, *, device: str | None = None, seed: int = 0) -> Iterator["Run"]:
        """Claims the folder, which is made if need be, and joins the processes of torchrun."""
        out = out.expanduser()
        with joined(choose_device(device)) as team, _claimed(out, team):
            yield cls(out, team, seed)

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes and reports."""
        return self.team.leads

    @property
    def records_file(self) -> Path:
        return self.out / RECORDS

    def environment(self) -> dict[str, Scalar]:
        """Where numbers are measured: the conditions that `Record.key` leaves out."""
        return {
            "processes": self.team.size,
            "hardware": hardware(self.device),
            "mjp": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }

    def done(self, key: str) -> Record | None:
        """The record of an earlier run with this key, if there is one."""
        return self.known.get(key)

    def write(self, *records: Record, environment: bool = True) -> list[Record]:
        """Writes records, with the environment among the conditions; one with the key of an older
        one takes its place. Gives them as written."""
        where = self.environment() if environment else {}
        written = [Record(r.kind, {**r.conditions, **where}, r.values) for r in records]
        fresh = {record.key(): record for record in written}
        replaced = self.known.keys() & fresh.keys()
        self.known |= fresh
        try:
            if self.leads and replaced:
                with self.file(RECORDS) as part:
                    append_records(part, self.known.values())
            elif self.leads:
                append_records(self.records_file, fresh.values())
        except OSError as error:
            raise MjpError(f"{self.records_file} cannot be written: {error.strerror}") from error
        return written

    def size(self) -> int:
        """Bytes of the records, all of them safe on the disk."""
        if not self.leads:
            return 0
        with self.records_file.open("rb") as file:
            os.fsync(file.fileno())
        return self.records_file.stat().st_size

    def cut(self, size: int) -> None:
        """Removes the records after so many bytes, which will be written again."""
        if self.leads:
            if self.records_file.stat().st_size < size:
                raise MjpError(
                    f"{self.records_file} is shorter than the checkpoint says; it was changed "
                    "since. Put it back, or start anew with --fresh"
                )
            os.truncate(self.records_file, size)
        self.team.wait()
        self.known = {record.key(): record for record in read_records(self.out)}

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """A path to write a file of the folder to: it gets its name once it is whole."""
        target = self.out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        try:
            yield part
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def progress(self, what: str, total: int) -> AbstractContextManager[Advance]:
        """Shows how far some work is."""
        return meter(what, total, shown=self.leads)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Inside, Ctrl-C and SIGTERM are noted, for `check_stop`."""
        with stop_requests() as self._request:
            yield

    @property
    def stop_signal(self) -> int:
        """The signal that asked this process to stop; 0 for none."""
        return self._request.number

    def check_stop(self, *, together: bool = False) -> None:
        """Raises if the run was asked to stop; all that was written stays.

        Args:
            together: whether to stop if any process was asked to; then all of them call this.
        """
        number = self._request.number
        if together and self.team.size > 1:
            number = int(self.team.largest(torch.tensor(number)))
        if number:
            raise StoppedError(
                f"stopped; what was done is kept in {self.out}: go on with the same command and "
                "--resume",
                number,
            )


def command_line() -> list[str]:
    """The command that is running, as a person would type it."""
    return ["mjp", *sys.argv[1:]]


def hardware(device: torch.device) -> str:
    """The device in words, for records."""
    on_cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu


@contextmanager
def _claimed(out: Path, team: Team) -> Iterator[None]:
    """Makes sure that the folder can be written to, and that no other command writes to it."""
    if not team.leads:
        team.wait()
        yield
        return
    if out.exists() and not out.is_dir():
        raise ConfigError(f"results cannot be written to {out}: it is a file; name a folder")
    created, records = not out.exists(), out / RECORDS
    try:
        out.mkdir(parents=True, exist_ok=True)
        records.touch()
        handle = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"results cannot be written to {out}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ConfigError(
            f"another command is writing to {out}; wait for it, or choose another --out"
        ) from error
    try:
        team.wait()
        yield
    finally:
        if records.is_file() and not records.stat().st_size:
            records.unlink()
        if created:
            with suppress(OSError):  # Unless something was written to it.
                out.rmdir()
        fcntl.flock(handle, fcntl.LOCK_UN)  # Also for processes that were forked meanwhile.
        os.close(handle)
