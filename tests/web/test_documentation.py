"""The API's description, the page made of it, the page itself, and docs/web.md."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mjp.web.config import ServeOptions

ROOT = Path(__file__).parents[2]
STATIC = {path.name: path.read_text() for path in (ROOT / "src/mjp/web/static").iterdir()}
KINDS = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
TEXTS = ("ink", "soft", "accent", "recovered", "recognisable", "traces", "failed")


def routes(openapi: dict):
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield pytest.param(method, path, operation, id=f"{method} {path}")


class Addresses(HTMLParser):
    """What a page links to or loads, and its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href")]
        self.ids += [value for name, value in attrs if name == "id"]
        assert not {"style", "onclick", "onload"} & {name for name, _ in attrs}, "no inline code"


def test_every_route_is_described_with_what_it_may_refuse(client):
    openapi = client.get("/openapi.json").json()
    found = [one.values for one in routes(openapi)]
    assert len(found) == 11
    for method, path, operation in found:
        assert operation["summary"], path
        assert operation["description"].endswith((".", "`", ")")), path
        statuses = set(operation["responses"])
        assert "421" in statuses, path
        if "{" in path:
            assert {"404", "422"} <= statuses, path
        if method == "post":
            assert {"403", "413", "422"} <= statuses, path
        for status, answer in operation["responses"].items():
            assert answer["description"], path
            if int(status) >= 400:
                schema = answer["content"]["application/json"]["schema"]
                assert schema["$ref"].endswith("/Trouble"), path
    upload = openapi["paths"]["/api/pictures"]["post"]
    assert {"image/png", "image/jpeg", "image/webp"} <= set(upload["requestBody"]["content"])
    assert "HTTPValidationError" not in openapi["components"]["schemas"]


def test_the_page_of_the_api_names_every_route_and_loads_nothing_from_elsewhere(client):
    text = client.get("/api").text
    openapi = client.get("/openapi.json").json()
    for path in openapi["paths"]:
        assert path in text
    for name in openapi["components"]["schemas"]:
        assert f'id="{name}"' in text
    page = Addresses()
    page.feed(text)
    assert all(one.startswith(("/", "#")) and not one.startswith("//") for one in page.found)
    assert len(page.ids) == len(set(page.ids))
    for target in (one[1:] for one in page.found if one.startswith("#")):
        assert target in page.ids
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_the_page_loads_only_what_is_here(client):
    page = Addresses()
    page.feed(client.get("/").text)
    assert len(page.ids) == len(set(page.ids))
    for address in page.found:
        if address.startswith("/"):
            assert client.get(address).status_code == 200, address
    for name, text in STATIC.items():
        answer = client.get(f"/static/{name}")
        assert answer.headers["content-type"].split(";")[0] == KINDS[name.split(".")[1]]
        assert answer.text == text
        outside = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
        assert not outside, f"{name} names {outside}"
        assert "url(" not in text
        assert len(text.splitlines()) <= 400
    assert client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"
    script = "".join(text for name, text in STATIC.items() if name.endswith(".js"))
    assert "innerHTML" not in script
    ids = set(re.findall(r'byId\("([^"]+)"\)', script))
    assert ids <= set(page.ids), ids - set(page.ids)


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_stands_out_from_its_ground(theme):
    blocks = re.findall(r":root \{(.*?)\}", STATIC["app.css"], flags=re.DOTALL)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", blocks[theme]))
    pairs = [(text, ground) for ground in ("paper", "card", "shade") for text in TEXTS]
    pairs += [("on-accent", "accent"), ("alarm", "alarm-shade")]
    for text, ground in pairs:
        dark, light = sorted(luminance(colours[one]) for one in (text, ground))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{text} on {ground}"


def test_the_options_tell_all_there_is_to_choose(client):
    options = client.get("/api/options").json()
    keys = [model["key"] for model in options["models"]]
    assert keys == ["trained-mjp", "trained-plain", "small", "deit-small"]
    for model in options["models"]:
        what = "trained with" if model["key"].startswith("trained") else "random weights"
        assert what in model["label"]
    assert {one["kind"] for one in options["attacks"]} == {"closed", "search"}
    assert options["limits"]["upload_bytes"] == 300_000
    for sample in options["samples"][:3]:
        assert client.get(f"/api/pictures/{sample['name']}?side=32").status_code == 200


def test_the_blocks_of_the_documentation_run(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "web.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    given: dict = {}
    for block in blocks:
        here = block.replace("http://127.0.0.1:8000", server.url)
        exec(compile(here, "web.md", "exec"), given)
    assert given["job"]["state"] == "done"
    assert (tmp_path / "recovered.png").read_bytes().startswith(b"\x89PNG")


def test_the_flags_of_the_documentation_are_all_the_flags():
    text = (ROOT / "docs" / "web.md").read_text()
    named = set(re.findall(r"`--([a-z-]+)`", text))
    assert named == {name.replace("_", "-") for name in ServeOptions.__dataclass_fields__}
