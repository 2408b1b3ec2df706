"""Measures models: accuracy, consistency, robustness, what positions learned, attention."""

from mjp.evaluate.tables import SECTIONS as SECTIONS
