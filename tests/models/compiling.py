"""What tests of torch.compile share."""

import pytest
import torch

ONE_BLOCK = {"depth": 1}
"""A second would be traced for a second time."""


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def total_loss(model):
    def loss(images, plan):
        return model(images, plan=plan).square().mean() + model.localization_loss(plan)

    return loss
