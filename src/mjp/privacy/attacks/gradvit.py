"""`gradvit`: GradViT (Hatamizadeh et al. 2022) without its pretrained prior.

Gradients, borders of patches as smooth as their insides, total variation, and several seeds that
are held together. The paper also holds the images to the statistics of a pretrained network, which
the attacker here is not given.
"""

from functools import partial

from mjp.privacy.attacks.matching import Settings, search

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
run = partial(search, NAME, SETTINGS)
