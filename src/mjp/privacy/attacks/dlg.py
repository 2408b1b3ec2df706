"""`dlg`: Deep Leakage from Gradients (Zhu et al. 2019): images and labels so that gradients agree.

As in the paper: squared differences, L-BFGS, soft labels searched together with the images, no
prior; it needs no classifier's gradient. Unlike there each parameter's difference is relative to
its size, and the first images are nearly grey: both bring a transformer's picture out sooner.
"""

from functools import partial

from mjp.privacy.attacks.matching import Settings, search

NAME = "dlg"

SETTINGS = Settings(
    objective="l2",
    optimizer="lbfgs",
    steps=300,
    learning_rate=1.0,
    labels="searched",
)
run = partial(search, NAME, SETTINGS)
