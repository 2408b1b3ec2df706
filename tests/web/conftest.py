"""A server for the tests of a file, with limits that are quick to meet."""

from collections.abc import Iterator

import pytest

from mjp.web.limits import Limits
from tests.web.running import Running, running

LIMITS = Limits(upload_bytes=300_000, pixels=1_000_000, jobs=1, waiting=2, kept=40)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(LIMITS) as found:
        yield found


@pytest.fixture
def client(server):
    return server.client
