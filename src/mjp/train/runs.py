"""The folder of a run: what lies where, whether it may be written to, which recipe it is of."""

import shutil
from pathlib import Path
from typing import Any

from mjp.core.configuration import flatten, read_toml, to_toml
from mjp.core.errors import ConfigError
from mjp.train.recipe import Recipe, recipe_from

RECIPE = "recipe.toml"
OWN = ("checkpoints", "best", "final", "tensorboard", "records.jsonl", "unreadable.txt", RECIPE)
"""What a run writes into its folder."""

FREE = frozenset(
    [
        "data.root",
        "data.workers",
        "data.readers",
        "run.device",
        "run.distribution",
        "run.accumulation",
        "run.checkpoint_minutes",
    ]
)
"""Values that do not change what a run comes to, so that a resumed one may have others."""


def recipe_of_run(out: str | Path) -> Recipe:
    """The recipe that a run was started with."""
    path = Path(out) / RECIPE
    if not path.is_file():
        raise ConfigError(f"{out} holds no run to resume: there is no {RECIPE} in it")
    return recipe_from(read_toml(path), str(path))


def check_free(out: Path) -> None:
    """Raises if the folder holds a run already."""
    if (out / RECIPE).exists() or (out / "checkpoints").exists():
        raise ConfigError(
            f"{out} holds a run already; go on with it with --resume, start over with --fresh, or "
            "choose another --out"
        )


def clear(out: Path) -> None:
    """Removes what a run wrote, and nothing else."""
    for name in OWN:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_recipe(out: Path, recipe: Recipe) -> None:
    """Notes the recipe in the folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / RECIPE).write_text(to_toml(recipe), encoding="utf-8")


def check_same(out: Path, recipe: Recipe) -> None:
    """Raises where a run is to be resumed with values that would change what it comes to."""
    before, now = _decisive(recipe_of_run(out)), _decisive(recipe)
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


def _decisive(recipe: Recipe) -> dict[str, Any]:
    """The values that change what a run comes to; of the weights to start from, the file's name."""
    values = {name: value for name, value in flatten(recipe).items() if name not in FREE}
    if recipe.init is not None:
        values["init"] = Path(recipe.init).name
    return values
