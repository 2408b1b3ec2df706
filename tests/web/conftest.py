"""A server for the tests of a file, with limits that are quick to meet."""

from collections.abc import Iterator

import pytest

from tests.web.running import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    limits = {"upload_megabytes": 0.3, "megapixels": 1, "jobs": 1, "waiting": 2, "kept": 40}
    with running(**limits) as started:
        yield started


@pytest.fixture
def client(server):
    return server.client
