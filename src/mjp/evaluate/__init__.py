"""Measures models: accuracy, consistency, robustness, what positions learned, attention."""
