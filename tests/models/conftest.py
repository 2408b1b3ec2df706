"""Fixtures of the tests of models."""

import pytest
import torch


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()
