"""Tests of the privacy audit."""
