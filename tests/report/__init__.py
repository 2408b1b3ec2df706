"""Tests of what a person sees of results."""
