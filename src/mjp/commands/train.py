"""`mjp train`: carries out a recipe and shows how it goes."""

from contextlib import ExitStack
from pathlib import Path

import torch

from mjp.commands.options import TrainOptions
from mjp.commands.terminal import choose_device
from mjp.commands.watching import Silent, clock, watching
from mjp.core.errors import ConfigError
from mjp.core.team import Team, joined
from mjp.data.opening import open_both
from mjp.train import runs
from mjp.train.journal import Watcher
from mjp.train.loop import Outcome, Trainer
from mjp.train.setup import make_feed, make_model


def run(options: TrainOptions) -> None:
    """Trains, or goes on training."""
    carry_out(options)


def carry_out(options: TrainOptions, watcher: Watcher | None = None) -> None:
    """Trains, or goes on training.

    Args:
        watcher: who looks on, if not a person at a terminal.
    """
    recipe = options.recipe
    out = options.out or default_out(options)
    if options.resume and options.fresh:
        raise ConfigError("--resume and --fresh contradict each other")
    device = choose_device(recipe.run.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    with joined(device) as team, ExitStack() as stack:
        if watcher is None:
            watcher = stack.enter_context(watching()) if team.leads else Silent()
        train, val = open_both(recipe.data)
        model = make_model(recipe, train.classes)
        feed = make_feed(recipe, model, train, val, team)
        _claim(out, options, team)
        feed.prepare(watcher.prepare)
        trainer = Trainer(recipe, model, feed, team, out, watcher)
        outcome = trainer.run(resume=options.resume)
        problems = list(feed.problems)
    if team.leads:
        _report(out, outcome, problems)


def default_out(options: TrainOptions) -> Path:
    """A folder of its own for each recipe and variant."""
    name = Path(options.name).stem
    return Path("runs") / (name if options.variant is None else f"{name}-{options.variant}")


def _claim(out: Path, options: TrainOptions, team: Team) -> None:
    """Makes sure that the folder is free, or holds the run to be resumed."""
    if options.resume:
        if (out / runs.RECIPE).exists():
            runs.check_same(out, options.recipe)
    elif not options.fresh:
        runs.check_free(out)
    team.wait()
    if not team.leads:
        return
    if options.fresh:
        runs.clear(out)
    if not (out / runs.RECIPE).exists():
        runs.write_recipe(out, options.recipe)


def _report(out: Path, outcome: Outcome, problems: list[str]) -> None:
    lines = [
        f"best top-1  {outcome.best:.2f} % after epoch {outcome.best_epoch}",
        f"last top-1  {outcome.last:.2f} %",
        f"time        {clock(outcome.seconds)}",
        f"best model  {out / 'best'}",
        f"last model  {out / 'final'}",
        f"curves      tensorboard --logdir {out / 'tensorboard'}",
    ]
    if problems:
        listed = out / "unreadable.txt"
        listed.write_text("\n".join(problems) + "\n", encoding="utf-8")
        lines.append(f"{len(problems)} images could not be read and were left out: {listed}")
    lines.append(f"records: {out / 'records.jsonl'}")
    print("\n".join(["", *lines]))
