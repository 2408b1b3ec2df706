"""Training: what changes over the course of a run."""
