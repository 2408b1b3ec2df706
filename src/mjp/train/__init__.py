"""Training: the recipe, and the loop that carries it out."""
