"""The attacks, a class each; their table, and the one call that runs any of them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import nn

from mjp.core.configuration import suggestion
from mjp.core.errors import ConfigError
from mjp.privacy.attacks.adaptive_solve import AdaptiveSolve
from mjp.privacy.attacks.april import April
from mjp.privacy.attacks.patch_solve import PatchSolve
from mjp.privacy.attacks.search import SEARCHES, Search
from mjp.privacy.public import PublicModel, as_public
from mjp.privacy.reading import Attack, Reading
from mjp.privacy.update import AttackResult, Effort, Observation, SharedUpdate

ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        "april": April(),
        "patch_solve": PatchSolve(),
        "adaptive_solve": AdaptiveSolve(),
        **{name: Search(name, settings) for name, settings in SEARCHES.items()},
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
    chosen, public, effort = ATTACKS[name], as_public(model), effort or Effort()
    cases = [
        tuple(Reading(public, update.to(public.device)) for update in one) for one in observations
    ]
    reasons = [chosen.missing(public, first) for first, *_ in cases]
    open_ones = [case for case, reason in zip(cases, reasons, strict=True) if reason is None]
    if not open_ones:
        effort.tell(1.0)
    recovered = iter(chosen.run(public, open_ones, effort) if open_ones else ())
    results = []
    for (first, *_), reason in zip(cases, reasons, strict=True):
        if reason is not None:
            results.append(AttackResult(name, applies=False, reason=reason, facts=first.facts))
            continue
        images, labels, facts = next(recovered)
        results.append(
            AttackResult(
                name,
                applies=True,
                reason="; ".join(chosen.doubts(public, first)),
                facts={**first.facts, **facts},
                images=images.clamp(0, 1).float(),
                masked=first.masked,
                labels=labels,
            )
        )
    return results
