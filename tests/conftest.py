"""Shared by all tests: run-time shape checks where they are switched on, and quiet determinism."""

import os
import random

import numpy as np
import pytest

from tests.browsing import browser, open_page  # noqa: F401  Fixtures for tests anywhere.

SHAPE_CHECKS = os.environ.get("MJP_SHAPE_CHECKS") == "1"

if SHAPE_CHECKS:
    from jaxtyping import install_import_hook

    rooms = ["mjp.jigsaw", "mjp.models", "mjp.data", "mjp.evaluate", "mjp.privacy"]
    loop = ["mjp.train.loop", "mjp.train.task", "mjp.tasks"]
    install_import_hook([*rooms, *loop], "beartype.beartype")


def pytest_collection_modifyitems(config, items):
    import torch

    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if "unchecked" in item.keywords and SHAPE_CHECKS:
            item.add_marker(pytest.mark.skip(reason="runs without run-time shape checks"))


@pytest.fixture(autouse=True)
def _seeded():
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
