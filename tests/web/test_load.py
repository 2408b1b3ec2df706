"""Fifty clients at once: no crash, no leak of memory or of anybody's picture, clear refusals."""

import signal
import subprocess
import sys

import httpx
import pytest

from mjp.web.limits import Limits
from tests.web.load import press, resident
from tests.web.running import running

CLIENTS = 50


def check(tally, least: int) -> None:
    """No mistakes, among enough pictures for that to mean something."""
    assert tally.mistakes == []
    assert tally.statuses[201] >= least
    for status in (413, 415, 422):
        assert tally.statuses[status] > 0
    assert not any(status >= 500 for status in tally.statuses)
    assert tally.jobs > 0


def test_fifty_clients_for_some_seconds():
    with running(Limits(upload_bytes=300_000, pixels=1_000_000, kept=100)) as server:
        server.ended(server.start()["id"])
        check(press(server.url, CLIENTS, 2), CLIENTS // 2)
        assert len(server.desk.album.uploads) <= 100
        assert server.client.get("/api/options").status_code == 200


@pytest.mark.slow
def test_fifty_clients_for_a_minute(capsys):
    command = [sys.executable, "-m", "mjp", "serve", "--port", "0", "--upload-megabytes", "0.3"]
    process = subprocess.Popen([*command, "--megapixels", "1"], stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        check(press(url, CLIENTS, 15), CLIENTS)
        before = resident(process.pid)
        tally = press(url, CLIENTS, 60)
        after = resident(process.pid)
        check(tally, 10 * CLIENTS)
        assert httpx.get(f"{url}api/options").status_code == 200
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    with capsys.disabled():
        print(
            f"\n{CLIENTS} clients, 60 s: {sum(tally.statuses.values())} answers "
            f"{dict(sorted(tally.statuses.items()))}, {tally.jobs} attacks, slowest answer "
            f"{tally.slowest:.1f} s, memory {before:.0f} -> {after:.0f} MB"
        )
    assert after - before < 100
