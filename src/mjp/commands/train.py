"""`mjp train`: carries out a recipe and shows how it goes."""

import os
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.table import Table

from mjp.commands.options import TrainOptions
from mjp.commands.terminal import choose_device, results
from mjp.commands.watching import Silent, watching
from mjp.core.errors import ConfigError
from mjp.data.opening import open_both
from mjp.train import runs
from mjp.train.journal import Watcher
from mjp.train.loop import Outcome, Trainer
from mjp.train.setup import make_feed, make_model
from mjp.train.team import Team, joined


def run(options: TrainOptions) -> None:
    """Trains, or goes on training."""
    recipe = options.recipe
    out = options.out or default_out(options)
    if options.resume and options.fresh:
        raise ConfigError("--resume and --fresh contradict each other")
    device = choose_device(recipe.run.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    with joined(device) as team, ExitStack() as stack:
        watcher: Watcher = stack.enter_context(watching()) if team.leads else Silent()
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
    table = Table(title=f"trained in {outcome.seconds:.0f} s", show_header=False)
    table.add_column()
    table.add_column()
    table.add_row("best top-1", f"{outcome.best:.2f} % after epoch {outcome.best_epoch}")
    table.add_row("last top-1", f"{outcome.last:.2f} %")
    table.add_row("best model", str(out / "best"))
    table.add_row("last model", str(out / "final"))
    table.add_row("records", str(out / "records.jsonl"))
    table.add_row("curves", f"tensorboard --logdir {out / 'tensorboard'}")
    results().print(table)
    if problems:
        listed = out / "unreadable.txt"
        listed.write_text("\n".join(problems) + "\n", encoding="utf-8")
        results().print(f"{len(problems)} images could not be read and were left out: {listed}")
    results().print(f"report: {os.fspath(out / 'records.jsonl')}", highlight=False)
