"""`dlg`: Deep Leakage from Gradients (Zhu et al. 2019): images and labels so that gradients agree.

As in the paper: squared differences, L-BFGS, soft labels searched together with the images, no
prior; it needs no classifier's gradient. Unlike there each parameter's difference is relative to
its size, and the first images are nearly grey: both bring a transformer's picture out sooner.
"""

from mjp.privacy.attacks.matching import Settings, search
from mjp.privacy.public import PublicModel
from mjp.privacy.update import AttackResult, Effort, Observation

NAME = "dlg"

SETTINGS = Settings(
    objective="l2",
    optimizer="lbfgs",
    steps=300,
    learning_rate=1.0,
    labels="searched",
)


def run(public: PublicModel, observations: list[Observation], effort: Effort) -> list[AttackResult]:
    """Searches for the images of every update."""
    return search(NAME, SETTINGS, public, observations, effort)
