"""`invert`: Inverting Gradients (Geiping et al. 2020): the gradient's direction, and smoothness.

The paper compares the direction of all gradients in one. In a transformer a few large ones then
hide the small ones that tell patches apart, so each parameter's direction counts equally here.
"""

from functools import partial

from mjp.privacy.attacks.matching import Settings, search

NAME = "invert"

SETTINGS = Settings(
    objective="cosine",
    optimizer="adam_signed",
    steps=2000,
    learning_rate=0.1,
    milestones=(3 / 8, 5 / 8, 7 / 8),
    total_variation=0.003,
)
run = partial(search, NAME, SETTINGS)
