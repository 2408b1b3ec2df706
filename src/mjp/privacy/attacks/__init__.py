"""The attacks, one file each; their table, and the one call that runs any of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import nn

from mjp.core.configuration import suggestion
from mjp.core.errors import ConfigError
from mjp.privacy.attacks import (
    adaptive_solve,
    april,
    april_opt,
    dlg,
    gradvit,
    idlg,
    invert,
    patch_solve,
)
from mjp.privacy.public import PublicModel, as_public
from mjp.privacy.update import AttackResult, Effort, Observation, SharedUpdate

Run = Callable[[PublicModel, list[Observation], Effort], list[AttackResult]]


@dataclass(frozen=True)
class Attack:
    """An attack: it gets the public model, updates, and how much it may try; nothing else.

    Args:
        about: what it does, in a line.
        kind: `closed` for linear algebra, `search` for an optimisation of the picture.
        knows_defence: whether it makes use of the defence that is announced.
    """

    run: Run
    about: str
    kind: str = "closed"
    knows_defence: bool = False


ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        "april": Attack(april.run, "the paper's analytic attack, for a first block without norm"),
        "patch_solve": Attack(
            patch_solve.run, "patches from the gradients of positions and patch embedding"
        ),
        "adaptive_solve": Attack(
            adaptive_solve.run,
            "patch_solve by an attacker who knows the defence: mask, span, image prior",
            knows_defence=True,
        ),
        "invert": Attack(
            invert.run, "search: cosine between gradients, total variation", "search", True
        ),
        "dlg": Attack(
            dlg.run, "search: distance between gradients, label included", "search", True
        ),
        "idlg": Attack(
            idlg.run, "search: distance between gradients, label read off", "search", True
        ),
        "april_opt": Attack(
            april_opt.run,
            "search: distance, and direction of the positions' gradient",
            "search",
            True,
        ),
        "gradvit": Attack(
            gradvit.run,
            "search: gradients, patch borders, several starts that agree",
            "search",
            True,
        ),
    }
)


def attacks() -> tuple[str, ...]:
    """The names of all attacks."""
    return tuple(ATTACKS)


def attack(
    name: str,
    model: nn.Module | PublicModel,
    update: SharedUpdate | Sequence[SharedUpdate],
    *,
    effort: Effort | None = None,
) -> AttackResult:
    """Runs an attack on an update, or on several updates of the same images.

    Where the attack's preconditions do not hold, the result has no images and says why.
    """
    observation = (update,) if isinstance(update, SharedUpdate) else tuple(update)
    return attack_each(name, model, [observation], effort=effort)[0]


def attack_each(
    name: str,
    model: nn.Module | PublicModel,
    observations: list[Observation],
    *,
    effort: Effort | None = None,
) -> list[AttackResult]:
    """Runs an attack on what several clients sent, each on its own, computed together."""
    if name not in ATTACKS:
        raise ConfigError(f"there is no attack {name!r}{suggestion(name, list(ATTACKS))}")
    for one in observations:
        if not one or not all(isinstance(update, SharedUpdate) for update in one):
            raise ConfigError("an attack needs at least one SharedUpdate; see mjp.share")
    public = as_public(model)
    moved = [tuple(update.to(public.device) for update in one) for one in observations]
    return ATTACKS[name].run(public, moved, effort or Effort())
