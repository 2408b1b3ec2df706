"""The API's description, the page made of it, the page itself, and docs/web.md."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mjp.web.config import ServeOptions

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "web.md").read_text()
STATIC = {path.name: path.read_text() for path in (ROOT / "src/mjp/web/static").iterdir()}
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
TEXTS = ("ink", "soft", "accent", "recovered", "recognisable", "traces", "failed")


class Addresses(HTMLParser):
    """What a page links to or loads, and its ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href")]
        self.ids += [value for name, value in attrs if name == "id"]
        assert not {"style", "onclick", "onload"} & {name for name, _ in attrs}, "no inline code"


def test_every_route_is_described_and_named_on_the_page_of_the_api(client):
    openapi = client.get("/openapi.json").json()
    text = client.get("/api").text
    operations = [
        (path, one) for path, methods in openapi["paths"].items() for one in methods.values()
    ]
    assert len(operations) == 11
    for path, operation in operations:
        assert path in text
        assert operation["description"].endswith("."), path
        (refused,) = operation["responses"]["4XX"]["content"].values()
        assert refused["schema"]["$ref"].endswith("/Refusal"), path
    assert set(openapi["components"]["schemas"]) <= set(re.findall(r"<h2>(\w+)", text))
    assert all(one.startswith("/") and not one.startswith("//") for one in Addresses(text).found)
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_the_page_loads_only_what_is_here(client):
    page = Addresses(client.get("/").text)
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
    assert client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"
    script = "".join(text for name, text in STATIC.items() if name.endswith(".js"))
    assert "innerHTML" not in script
    assert set(re.findall(r'byId\("([^"]+)"\)', script)) <= set(page.ids)


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


def test_the_blocks_of_the_documentation_run(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given: dict = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL):
        here = block.replace("http://127.0.0.1:8000", server.url)
        exec(compile(here, "web.md", "exec"), given)
    assert given["job"]["state"] == "done"
    assert (tmp_path / "recovered.png").read_bytes().startswith(b"\x89PNG")


def test_the_flags_of_the_documentation_are_all_the_flags():
    named = set(re.findall(r"`--([a-z-]+)`", DOCUMENT))
    assert named == {name.replace("_", "-") for name in ServeOptions.__dataclass_fields__}
