"""`idlg`: Improved Deep Leakage (Zhao et al. 2020): DLG with the label read off the classifier."""

from mjp.privacy.attacks.matching import Settings, search
from mjp.privacy.public import PublicModel
from mjp.privacy.update import AttackResult, Effort, Observation

NAME = "idlg"

SETTINGS = Settings(
    objective="l2",
    optimizer="lbfgs",
    steps=300,
    learning_rate=1.0,
)


def run(public: PublicModel, observations: list[Observation], effort: Effort) -> list[AttackResult]:
    """Searches for the images of every update."""
    return search(NAME, SETTINGS, public, observations, effort)
