"""The folder of a run: whether it may be written to, which recipe it is of, what lies there."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjp.core.configuration import from_mapping, read_toml
from mjp.core.display import clock
from mjp.core.errors import ConfigError
from mjp.core.run import Run
from mjp.core.verbs import DEFAULT_TASK, RECIPE
from mjp.data.feed import Feed
from mjp.train.config import TaskConfig, TrainOptions
from mjp.train.task import Task

OWN = ("checkpoints", "best", "final", "tensorboard", "unreadable.txt", RECIPE)
"""What a run writes into its folder, beside records."""


def default_out(options: TrainOptions[Any]) -> Path:
    """A folder for each recipe and variant."""
    name = Path(options.name).stem
    return Path("runs") / (name if options.variant is None else f"{name}-{options.variant}")


def claim(run: Run, options: TrainOptions[Any]) -> None:
    """Makes sure that the folder is free, or holds the run to be resumed, and notes the recipe."""
    if options.resume and options.fresh:
        raise ConfigError("--resume and --fresh contradict each other")
    begun = (run.out / RECIPE).exists()
    if begun and options.resume:
        check_same(run.out, options.recipe)
    elif (begun or (run.out / "checkpoints").exists()) and not (options.fresh or options.resume):
        raise ConfigError(
            f"{run.out} holds a run already; go on with it with --resume, start over with --fresh, "
            "or choose another --out"
        )
    run.team.wait()
    if options.fresh:
        run.cut(0)
    if run.leads:
        if options.fresh:
            clear(run.out)
        if options.fresh or not begun:
            (run.out / RECIPE).write_text(options.recipe.to_toml(), encoding="utf-8")


def clear(out: Path) -> None:
    """Removes what a run wrote, beside records, and nothing else."""
    for name in OWN:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def check_same(out: Path, config: TaskConfig) -> None:
    """Raises where a run is to be resumed with values that would change what it comes to."""
    path = out / RECIPE
    values = read_toml(path)
    before = {"task": values.pop("task", DEFAULT_TASK)}
    if before["task"] == config.task:
        before |= from_mapping(type(config), values, where=str(path)).decisive()
    now = {"task": config.task, **config.decisive()}
    changed = [
        f"{name} was {before.get(name)!r} and is now {now[name]!r}"
        for name in now
        if before.get(name) != now[name]
    ]
    if changed:
        changes = "; ".join(changed[:5])
        raise ConfigError(
            f"the run in {out} was started with another recipe: {changes}. Resume it "
            f"with its own (mjp train --resume --out {out}), or choose another --out"
        )


def report(run: Run, task: Task[Any], end: Mapping[str, Any], data: Feed) -> None:
    """Says what came out, and where it lies."""
    first = task.metric_names[0]
    lines = [
        f"best {first:<7}{end[f'best_{first}']:.2f} after epoch {end['best_epoch']}",
        f"last {first:<7}{end[f'last_{first}']:.2f}",
        f"time        {clock(end['seconds'])}",
        f"best model  {run.out / 'best'}",
        f"last model  {run.out / 'final'}",
        f"curves      tensorboard --logdir {run.out / 'tensorboard'}",
    ]
    if data.problems:
        listed = run.out / "unreadable.txt"
        listed.write_text("\n".join(data.problems) + "\n", encoding="utf-8")
        lines.append(f"{len(data.problems)} images could not be read and were left out: {listed}")
    lines.append(f"records: {run.records_file}")
    print("\n".join(["", *lines]))
