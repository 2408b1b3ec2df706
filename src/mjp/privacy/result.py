"""`AttackResult`: what an attack got out of an update; and how much it may try."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.ranges import check_count
from mjp.core.records import Scalar


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What an attack got out of an update.

    Args:
        applies: False where the attack's preconditions do not hold; then there are no images.
        reason: why it does not apply; where it does, a warning or nothing.
        facts: what the preflight found: rank, condition number, zero rows, …
        images: the recovered pictures, pixels in [0, 1].
        masked: the mask that the attacker read off; None where there was none to read.
        labels: the classes that the attacker inferred; None where it needed none.
    """

    attack: str
    applies: bool
    reason: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    images: Float[Tensor, "batch 3 height width"] | None = None
    masked: Bool[Tensor, " patches"] | None = None
    labels: Int64[Tensor, " batch"] | None = None


def refused(attack: str, reason: str, facts: Mapping[str, Scalar]) -> AttackResult:
    """The result of an attack that does not apply."""
    return AttackResult(attack, applies=False, reason=reason, facts=facts)


@dataclass(frozen=True)
class Effort:
    """How much an attack may try, and whom it tells how far it is.

    Args:
        steps: of an optimisation; None for the attack's own number.
        restarts: starts of an optimisation from different noise; None for the attack's own number.
        seed: of what an attack draws.
        tell: is told the share of the work that was done since it was last told.
    """

    steps: int | None = None
    restarts: int | None = None
    seed: int = 0
    tell: Callable[[float], None] = lambda _: None

    def __post_init__(self) -> None:
        for name in ("steps", "restarts"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
