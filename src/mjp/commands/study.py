"""`mjp study`: many runs, trained and evaluated several at a time; one table and one page on them.

A run's folder tells what of it is done, so a study is gone on with by the same command, on any
machine that the folder was copied to.
"""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from mjp.commands import study_state
from mjp.commands.evaluating import claim
from mjp.commands.study_known import Known, read_known
from mjp.commands.study_options import StudyOptions
from mjp.commands.study_plan import Study, Task, read_study
from mjp.commands.study_pool import Pool
from mjp.commands.study_records import collect
from mjp.commands.study_watching import watching
from mjp.commands.terminal import choose_device, results
from mjp.core.errors import ConfigError, MjpError
from mjp.core.interruption import StoppedError, stop_requests
from mjp.core.ranges import check_count
from mjp.core.records import Record
from mjp.data.feed import available_cores
from mjp.report.leaks import number
from mjp.report.page import DataTable
from mjp.report.runs import RECORDS
from mjp.report.study_page import derived_records, summary_table
from mjp.report.whole import write_report

fcntl: Any = None
with suppress(ImportError):  # Windows has none.
    import fcntl

LOCK = ".lock"
DERIVED = "derived.jsonl"
"""Means and differences of the records, which pages work out anew where they are not there."""
ON_A_GPU = 3
"""Runs at a time on a GPU: while one compiles or reads, the others compute."""
ON_A_CPU = 4
"""At most so many on a CPU, where small models gain little from a second core."""


def run(options: StudyOptions) -> None:
    """Does what is not done yet, then writes the table and the page."""
    if options.parallel is not None:
        check_count("parallel", options.parallel)
    whole = read_study(options.name, options.root)
    study = whole.chosen(options.only, options.without)
    out = options.out or Path("runs") / f"study-{whole.name}"
    if options.list and options.fresh:
        raise ConfigError("--list only looks, and --fresh removes; leave one out")
    known = read_known(options.known, whole)
    if not options.fresh:
        for task in study.tasks:
            study_state.check_same(out, task)
    if options.list:
        _show_list(study, out, known)
        return
    if options.root is not None and not Path(options.root).expanduser().is_dir():
        raise ConfigError(f"--root {options.root}: there is no such folder; name that of the data")
    device = choose_device(options.device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a study starts processes of its own; run it without torchrun")
    claim(out)
    with _held(out):
        if options.fresh:
            chosen = {task.name for task in study.tasks}
            for task in whole.tasks:  # With all evaluations: none is of the model to come.
                if task.name in chosen:
                    study_state.clear(out, task)
            known = known.without(study.tasks)
        pool = _pool(options, device, out)
        _carry_out(study, whole, pool, known)
        _tell(whole, pool, known)


def _pool(options: StudyOptions, device: torch.device, out: Path) -> Pool:
    usual = ON_A_GPU if device.type == "cuda" else min(ON_A_CPU, available_cores())
    parallel = options.parallel or usual
    shared = device.type == "cpu" and parallel > 1
    threads = max(1, available_cores() // parallel) if shared else None
    return Pool(out, options.device, parallel, threads)


def _tell(whole: Study, pool: Pool, known: Known) -> None:
    """The table and the page on all runs; an error where some failed."""
    records = _write(whole, pool.out, known, compared=True)
    if records:
        _present(records, whole, pool.out)
    if pool.failures:
        reasons: dict[str, list[str]] = {}
        for task in whole.tasks:  # In their order, whichever failed first.
            if task.name in pool.failures:
                reasons.setdefault(pool.failures[task.name], []).append(task.name)
        told = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        noun = "run" if len(pool.failures) == 1 else "runs"
        raise MjpError(f"{len(pool.failures)} {noun} failed. {told}")


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Keeps other studies out of the folder, where the system can; they would mix their runs."""
    if fcntl is None:
        yield
        return
    with (out / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another study works in {out}; wait, or choose another --out") from (
                error
            )
        yield


def _carry_out(study: Study, whole: Study, pool: Pool, known: Known) -> None:
    todo = [task for task in study.tasks if any(_left(pool.out, task, known))]
    done = len(study.tasks) - len(todo)
    print(
        f"mjp: {whole.name}: {done} of {len(study.tasks)} runs are done, {pool.parallel} at a time",
        file=sys.stderr,
        flush=True,
    )

    def told(task: Task) -> str:
        # After every run: what the others measured is in the file, however this goes on.
        return _outcome(_write(whole, pool.out, known, compared=False), task)

    try:
        with stop_requests() as request, watching(len(todo), told) as watcher:
            pool.run(todo, watcher, request)
    except StoppedError as error:
        raise StoppedError(
            f"stopped; what is finished is kept in {pool.out}: go on with the same command",
            error.number,
        ) from error


def _left(out: Path, task: Task, known: Known) -> Iterable[str]:
    """What is still to be done of a run, by name."""
    return () if known.holds(task, out) else study_state.missing(out, task)


def _write(study: Study, out: Path, known: Known, *, compared: bool) -> list[Record]:
    """All records anew, and apart from them what is worked out of them."""
    records = collect(study, out, known, compared=compared)
    derived = derived_records(records)
    for file, own in ((out / RECORDS, records), (out / DERIVED, derived)):
        part = file.with_suffix(".part")
        part.write_text("".join(record.to_json() + "\n" for record in own), encoding="utf-8")
        part.replace(file)
    return records + derived


def _outcome(records: list[Record], task: Task) -> str:
    """A finished run in a few words."""
    own = [
        one
        for one in records
        if one.conditions.get("run") == task.entry.name and one.conditions.get("seed") == task.seed
    ]
    words = []
    for one in own:
        if one.kind == "study accuracy":
            words.append(f"top-1 {number(one.values, 'top1'):.2f} %")
        if one.kind == "study jigsaw" and one.conditions.get("ratio") == 0.5:
            words.append(f"consistency at .5 {number(one.values, 'consistency'):.2f} %")
    if not words:
        words = [
            f"top-1 {number(one.values, 'top1'):.2f} %"
            for one in own
            if one.kind == "study run" and number(one.values, "top1") is not None
        ]
    return ", ".join(words)


def _show_list(study: Study, out: Path, known: Known) -> None:
    table = Table(title=f"{escape(study.title)}: {out}")
    for name in ("run", "label", "still to be done"):
        table.add_column(name)
    for task in study.tasks:
        left = ", ".join(_left(out, task, known))
        done = "nothing"
        if known.holds(task, out):
            lacking = ", ".join(known.lacks(task))
            done += ": it is known" + (f", but not its {lacking}" if lacking else "")
        table.add_row(escape(task.name), escape(task.entry.label), escape(left or done))
    results().print(table)


def _present(records: list[Record], study: Study, out: Path) -> None:
    results().print(_printed(summary_table(records)))
    command = shlex.join(["mjp", *sys.argv[1:]])
    files = [out / RECORDS, out / DERIVED]
    page = write_report(files, out / "report.html", command=command, title=study.title)
    print(f"records: {out / RECORDS}")
    print(f"report: {page.path}")


def _printed(table: DataTable) -> Table:
    """A table of the page, for the terminal."""
    shown = Table(title=escape(table.caption))
    for column in table.columns:
        shown.add_column(escape(column.title), justify="right" if column.numeric else "left")
    for row in table.rows:
        shown.add_row(*(escape(cell) for cell in row.cells))
    return shown
