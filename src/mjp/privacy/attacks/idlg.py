"""`idlg`: Improved Deep Leakage (Zhao et al. 2020): DLG with the label read off the classifier."""

from functools import partial

from mjp.privacy.attacks.matching import Settings, search

NAME = "idlg"

SETTINGS = Settings(
    objective="l2",
    optimizer="lbfgs",
    steps=300,
    learning_rate=1.0,
)
run = partial(search, NAME, SETTINGS)
