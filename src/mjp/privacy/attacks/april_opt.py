"""`april_opt`: APRIL's search (Lu et al. 2022): all gradients, and the direction of the positions'.

The paper takes one cosine of the whole position table; here it is the mean over its rows, since the
row of the class token, in which no patch is seen, would otherwise make up nearly all of it.
"""

from functools import partial

from mjp.privacy.attacks.matching import Settings, search

NAME = "april_opt"

SETTINGS = Settings(
    objective="l2",
    optimizer="lbfgs",
    steps=600,
    learning_rate=1.0,
    position_cosine=5.0,
    total_variation=1e-5,
)
run = partial(search, NAME, SETTINGS)
