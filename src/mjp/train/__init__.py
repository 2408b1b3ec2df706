"""Training: the recipe, and the loop that carries it out."""

from mjp.train.tables import SECTIONS as SECTIONS
