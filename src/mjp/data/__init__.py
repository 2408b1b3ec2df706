"""Data: where images come from, in which order, and how they are fed to a model."""
