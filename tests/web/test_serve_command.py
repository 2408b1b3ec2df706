"""`mjp serve` itself: it starts, says where it is, warns, and ends when it is told to."""

import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from mjp.cli import main


def run(capsys, *arguments: str):
    with pytest.raises(SystemExit) as stop:
        main(["serve", *arguments])
    return stop.value.code, capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted():
    """With an attack under way, an open stream of events, and a model of one's own."""
    model = "mine=vit_tiny_patch16_224@random"
    command = [sys.executable, "-m", "mjp", "serve", "--port", "0", "--model", model]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=url, timeout=10) as client:
            models = client.get("/api/options").json()["models"]
            keys = [one["key"] for one in models]
            assert keys == ["mine", "trained-mjp", "trained-plain", "small", "deit-small"]
            # It takes minutes, where somebody waits for it.
            attack = {"picture": "cat", "attack": "invert", "steps": 4000}
            job = client.post("/api/jobs", json=attack).json()
            with client.stream("GET", f"/api/jobs/{job['id']}/events") as stream:
                next(stream.iter_lines())
                process.send_signal(signal.SIGINT)
                code = process.wait(40)
    finally:
        process.kill()
    out, err = process.communicate()
    assert code == 0, err
    assert out == ""
    assert err.splitlines() == ["mjp: serving; stop it with Ctrl-C", "mjp: stopped"]


def test_a_taken_port_is_told(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, err = run(capsys, "--port", port)
    assert code == 2
    assert f"cannot listen on port {port} of 127.0.0.1" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "no.such.host.invalid"), "cannot listen on port 8000 of no.such.host.invalid"),
        (("--port", "70000"), "port must be between 0 and 65535"),
        (("--jobs", "0"), "jobs must be a whole number of at least 1"),
        (("--megapixels", "0"), "megapixels must be a number above 0"),
        (("--seconds", "nan"), "seconds must be a number above 0"),
        (("--device", "warp"), "no device of torch"),
        (("--model", "no_such_model", "--port", "0"), "neither a folder nor a model"),
        (("--model", "none", "--host", "0.0.0.0", "--port", "0"), "there is no log-in"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_served(capsys, arguments, words):
    code, err = run(capsys, *arguments)
    assert code == 2
    assert words in err
