"""`gradvit`: GradViT (Hatamizadeh et al. 2022) without its pretrained prior.

Gradients, borders of patches as smooth as their insides, total variation, and several seeds that
are held together. The paper also holds the images to the statistics of a pretrained network, which
the attacker here is not given.
"""

from mjp.privacy.attacks.matching import Settings, search
from mjp.privacy.public import PublicModel
from mjp.privacy.update import AttackResult, Effort, Observation

NAME = "gradvit"

SETTINGS = Settings(
    objective="l2",
    optimizer="adam_signed",
    steps=2000,
    restarts=3,
    learning_rate=0.1,
    milestones=(3 / 8, 5 / 8, 7 / 8),
    total_variation=0.003,
    patch_borders=0.003,
    consistency=0.01,
)


def run(public: PublicModel, observations: list[Observation], effort: Effort) -> list[AttackResult]:
    """Searches for the images of every update."""
    return search(NAME, SETTINGS, public, observations, effort)
