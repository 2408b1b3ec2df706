"""What every request passes: names, origins, sizes, headers, and no way to the file system."""

import re
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from mjp.privacy.attacks import ATTACKS
from mjp.privacy.defence_parts import PARTS, number
from mjp.privacy.defence_updates import GradientPart
from mjp.web.config import ServeOptions
from mjp.web.guard import HEADERS, POLICY, Guard
from mjp.web.schema import checked_defence
from tests.web.running import OPENED

TRICKS = (
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "/etc/passwd",
    "....//etc/passwd",
    "astronaut/../../x",
    "import:os:getcwd",
    "deit_small_patch16_224@/etc/passwd",
    "a\0b",
    "~root",
    "x" * 300,
)


def sentence(answer: httpx.Response) -> str:
    """The error of an answer, which says nothing of this machine."""
    text = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert not re.search(r"site-packages|Traceback|\.py\b|/home|/usr|passwd", text), text
    return text


@pytest.mark.parametrize("trick", TRICKS)
def test_no_name_of_a_request_reaches_the_file_system(client, trick):
    OPENED.clear()
    for field in ("picture", "model", "attack", "defence"):
        answer = client.post("/api/jobs", json={"picture": "astronaut", field: trick})
        assert answer.status_code in (404, 422), answer.text
        if field != "defence":  # Which may repeat what was written.
            sentence(answer)
    if "\0" not in trick:
        for path in ("/static/", "/api/pictures/", "/api/jobs/"):
            answer = client.get(path + trick)
            assert answer.status_code in (404, 405, 422)
            sentence(answer)
    assert not [path for path, _ in OPENED if trick in path or "passwd" in path]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("defence", "batch=100000000", "must be between 1 and 1024"),
        ("defence", "batch=2", "takes several pictures"),
        ("defence", "noise=1e300", "must be between"),
        ("defence", "clip=inf", "norm"),
        ("defence", "noise=nan", "noise"),
        ("defence", "mjp=2", "between 0 and 1"),
        ("defence", "mjp=0.0001", "changes nothing"),
        ("defence", "mjpp=0.1", "there is no defence"),
        ("defence", "clip=1+" * 12 + "noise=1", "80 characters"),
        ("defence", "mjp=0.1\n", "should match pattern"),
        ("defence", "прятки=1", "should match pattern"),
        *(("seed", value, "seed") for value in (-1, 2**40, "a")),
        *(("steps", value, "steps") for value in (0, 10**9)),
        *(("rounds", 1000, "rounds"), ("restarts", 99, "restarts"), ("unknown", 1, "unknown")),
    ],
)
def test_values_out_of_bounds_are_refused(client, name, value, words):
    answer = client.post("/api/jobs", json={"picture": "cat", name: value})
    assert answer.status_code == 422
    assert words in sentence(answer)


def test_bodies_that_are_no_json_or_too_large_are_refused(client):
    assert client.post("/api/jobs", content=b"{").status_code == 422
    nested = {"content": b"[" * 15_000, "headers": {"Content-Type": "application/json"}}
    assert client.post("/api/jobs", **nested).status_code == 400
    assert client.post("/api/jobs", json=[1, 2]).status_code == 422
    large = client.post("/api/jobs", content=b" " * 17_000)
    assert large.status_code == 413
    assert "at most 16 kB" in sentence(large)
    assert client.post("/api/preview", content=iter([b" " * 9_000] * 3)).status_code == 413


NAMES = {
    "127.0.0.1": {
        "127.0.0.1:8000 localhost [::1]:80 demo.example:80": 404,
        "evil.example 127.0.0.1.evil.example localhost.evil.example:8000 192.168.0.7 [bad": 421,
    },
    "0.0.0.0": {
        "192.168.0.7:8000 [2001:db8::1]:8000 localhost demo.example": 404,
        "evil.example 192.168.0.7.evil.example": 421,
    },
    "192.168.0.7": {"192.168.0.7:80 127.0.0.1": 404, "192.168.0.8": 421},
    "2001:db8::1": {"[2001:db8::1]:8000": 404, "[2001:db8::2]": 421},
}


@pytest.mark.parametrize("bound", NAMES)
def test_only_names_of_its_own_are_answered_and_everywhere_addresses_too(bound):
    app = FastAPI()
    app.add_middleware(Guard, options=ServeOptions(host=bound, allow_host=("Demo.Example",)))
    for hosts, status in NAMES[bound].items():
        for host in hosts.split(" "):
            assert TestClient(app).get("/", headers={"Host": host}).status_code == status, host
    assert TestClient(app).get("/", headers={"Host": ""}).status_code == 421


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Origin": "{url}"}, True),
        ({"Origin": "{url}", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://127.0.0.1:1"}, False),
        ({"Origin": "{url}.evil.example"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
    ],
)
def test_pages_of_other_sites_cannot_change_anything(server, headers, allowed):
    named = {name: value.format(url=server.url) for name, value in headers.items()}
    client, allowed_or = server.client, lambda status: status if allowed else 403
    body = {"picture": "cat", "defence": "nothing"}
    for path in ("/api/preview", "/api/jobs"):
        assert client.post(path, json=body, headers=named).status_code == allowed_or(422)
    answer = client.delete("/api/pictures/none-such", headers=named)
    assert answer.status_code == allowed_or(404)
    answer = client.post("/api/pictures", content=b"x", headers=named)
    assert answer.status_code == allowed_or(415)


def test_every_answer_has_the_headers(client):
    assert "unsafe" not in POLICY
    for path in ("/", "/static/app.js", "/api", "/api/options", "/api/pictures/cat", "/none"):
        headers = client.get(path).headers
        assert set(HEADERS.items()) <= {(name, headers[name]) for name in HEADERS}
        assert headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")
        assert "access-control-allow-origin" not in headers


def test_an_unexpected_error_is_told_to_the_operator_and_not_to_the_visitor(capsys):
    app = FastAPI()

    @app.get("/")
    def broken() -> None:
        raise RuntimeError("a secret of the server")

    app.add_middleware(Guard, options=ServeOptions())
    answer = TestClient(app, base_url="http://127.0.0.1").get("/")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert sentence(answer) == "Something went wrong in the server; this is not your fault."
    assert "RuntimeError: a secret of the server" in capsys.readouterr().err


@dataclass(frozen=True)
class Half(GradientPart):
    """Gradients are multiplied by a number."""

    label = "Smaller"
    kind = "half"
    title = "made smaller"
    about = "multiplies its gradient by a number"

    factor: float = number("Factor", least=0.1, most=0.9, example=0.5, control=(0.2, 0.8))

    def process(self, gradients, public, generator):
        return {name: self.factor * gradient for name, gradient in gradients.items()}


def test_a_defence_that_nobody_told_the_page_of_is_offered_checked_and_attacked(
    server, monkeypatch
):
    monkeypatch.setattr(Half, "name", "half", raising=False)
    monkeypatch.setitem(PARTS, "half", Half)
    offers = server.client.get("/api/options").json()["defences"]
    (offer,) = [offer for offer in offers if offer["name"] == "half"]
    assert (offer["label"], offer["about"]) == ("Smaller", "Gradients are multiplied by a number.")
    slider = {"label": "Factor", "least": 0.2, "most": 0.8, "start": 0.5, "scale": "linear"}
    assert offer["number"] == slider
    job = server.ended(server.start(defence="half=0.5+bf16")["id"])
    assert job["state"] == "done", job["message"]
    assert job["defence"] == "half=0.5+bf16"
    refused = server.client.post("/api/jobs", json={"picture": "cat", "defence": "half=0.95"})
    assert refused.status_code == 422
    assert "the factor of half must be between 0.1 and 0.9, got 0.95" in sentence(refused)


def test_the_choices_are_those_of_the_library(client):
    options = client.get("/api/options").json()
    keys = [model["key"] for model in options["models"]]
    assert keys == ["trained-mjp", "trained-plain", "small", "deit-small"]
    assert options["limits"]["upload_bytes"] == 300_000
    attacks = {attack["name"]: attack["kind"] for attack in options["attacks"]}
    assert attacks == {name: attack.kind for name, attack in ATTACKS.items()}
    offered = {offer["name"] for offer in options["defences"]}
    assert offered == {"none", *PARTS} - {"batch", "steps"}
    for offer in options["defences"]:
        number = offer["number"]
        text = offer["name"] if number is None else f"{offer['name']}={number['start']:g}"
        assert checked_defence(text) == text
    for text in ("steps=2,0.1", "dp=1,2", "clip=1+noise=0.0001"):
        assert checked_defence(text) == text
