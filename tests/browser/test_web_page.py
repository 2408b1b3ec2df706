"""The page of `mjp serve` in a browser, at desktop and phone width."""

import io
import re
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from tests.browsing import snapshot
from tests.web.running import encoded, picture, running

WIDTHS = {"desktop": 1280, "phone": 390}
both = pytest.mark.parametrize("size", WIDTHS)


@pytest.fixture(scope="module")
def server(browser):
    """A server that refuses what is larger than a little, after its first attack."""
    with running(upload_megabytes=0.4, megapixels=0.5, waiting=2) as found:
        found.ended(found.start()["id"])
        yield found


@pytest.fixture
def visit(open_page, server):
    """Opens the page and waits for the attack that runs by itself."""

    def visited(size: str = "desktop", **how):
        page = open_page(server.url, width=WIDTHS[size], **how)
        settled(page)
        return page

    return visited


def settled(page, attack: str | None = None) -> None:
    """Waits until the page shows a result of what is chosen."""
    page.locator("#outcome:not(.stale) #download:not([hidden])").wait_for(timeout=20_000)
    if attack is not None:
        page.locator("#setting", has_text=attack).wait_for(timeout=20_000)


def alert(page) -> str:
    """The sentence that the page shows after something went wrong."""
    page.locator("#alert").wait_for(timeout=10_000)
    return page.inner_text("#alert p")


def pixels(page, name: str) -> list[int]:
    """Width and height of what a panel shows, once it is there."""
    return page.evaluate(
        "(name) => { const image = document.getElementById(name);"
        " return image.decode().then(() => [image.naturalWidth, image.naturalHeight]); }",
        name,
    )


def choose(page, name: str, content: bytes) -> None:
    kind = "image/png" if name.endswith("png") else "image/jpeg"
    page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": content})


@both
def test_a_visitor_sees_a_result_at_once(visit, size):
    page = visit(size)
    assert page.input_value("#defence") == "mjp"
    assert page.inner_text("#level") == "recognisable"
    assert "recovers a recognisable picture" in page.inner_text("#says")
    assert page.inner_text("#live").startswith("recognisable. An attacker")
    for name in ("picture", "shuffled", "recovered"):
        assert pixels(page, name) == [48, 48]
        assert page.get_attribute(f"#{name}", "alt")
    assert pixels(page, "masked") == [384, 384]
    assert re.fullmatch(r"\d+\.\d dB", page.inner_text("#psnr"))
    assert "4 of 144 patches" in page.inner_text("#masked-note")
    assert page.locator("#chart circle").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    snapshot(page, f"serve-{size}")


def test_dark_and_a_defence_that_no_closed_form_meets(visit):
    page = visit(dark=True)
    page.select_option("#defence", "unshared")
    page.locator("#level", has_text="does not apply").wait_for()
    assert page.is_hidden("#amount-field")
    assert page.is_hidden("#recovered")
    assert page.inner_text("#nothing") == "The attack does not apply"
    assert "not shared" in page.inner_text("#reason")
    assert "none are masked" in page.inner_text("#masked-note")
    snapshot(page, "serve-dark-does-not-apply")


@both
def test_an_upload_is_attacked_downloaded_and_forgotten_on_leaving(visit, server, size):
    page = visit(size)
    choose(page, "mine.png", encoded(picture(4, (300, 200))))
    page.locator(".sample.own input:checked").wait_for(state="attached")
    settled(page)
    page.locator("#picture[alt*='your picture']").wait_for()
    with page.expect_download() as download:
        page.click("#download")
    archive = zipfile.ZipFile(Path(download.value.path()))
    own = Image.open(io.BytesIO(archive.read("picture.png")))
    expected = picture(4, (300, 200)).resize((72, 48)).crop((12, 0, 60, 48))
    for place in ((24, 24), (10, 35)):
        one, other = own.getpixel(place), expected.getpixel(place)
        assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) < 40
    snapshot(page, f"serve-upload-{size}")
    name = page.evaluate("document.getElementById('choices').elements.picture.value")
    assert server.client.get(f"/api/pictures/{name}").status_code == 200
    page.goto(f"{server.url}/api")
    for _ in range(50):
        if server.client.get(f"/api/pictures/{name}").status_code == 404:
            break
        page.wait_for_timeout(50)
    assert server.client.get(f"/api/pictures/{name}").status_code == 404


@both
def test_what_cannot_be_used_is_told_in_a_sentence(visit, size):
    page = visit(size, allow=("status of 413", "status of 422"))
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    choose(page, "large.png", bytes(400_001))
    assert alert(page) == "The file has 0.4 MB; at most 0.4 MB are taken."
    choose(page, "notes.txt", b"")
    assert alert(page) == "The file is empty."
    assert not [one for one in asked if one.endswith("/api/pictures")], "told before uploading"
    choose(page, "broken.png", encoded(picture())[:300])
    page.locator("#alert", has_text="damaged or cut off").wait_for()
    choose(page, "wide.png", encoded(Image.new("RGB", (1000, 501))))
    page.locator("#alert", has_text="1000 x 501 pixels").wait_for()
    assert page.locator("#alert[role=alert]").count() == 1
    snapshot(page, f"serve-error-{size}")
    page.click("#alert button")
    assert page.is_hidden("#alert")


def test_the_slider_changes_mask_picture_and_leak(visit):
    page = visit()
    before = page.inner_text("#psnr")
    page.focus("#amount")
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    assert page.input_value("#amount-number") == "0.15"
    page.locator("#masked-note", has_text="22 of 144 patches").wait_for()
    settled(page, "mjp=0.15")
    assert page.inner_text("#psnr") != before
    page.fill("#amount-number", "0")
    settled(page, "no defence")
    assert page.inner_text("#level") == "recovered"
    assert page.locator("#chart circle").count() == 3
    label = page.get_attribute("#chart svg", "aria-label")
    assert "dB at 0.15" in label
    page.select_option("#defence", "noise")
    settled(page, "noise=1e-05")
    page.locator("#amount-label", has_text="Standard deviation").wait_for()
    snapshot(page, "serve-noise")


@both
def test_a_search_runs_on_demand_and_is_cancelled_by_keyboard(visit, server, size):
    page = visit(size)
    page.click(".controls summary")
    page.fill("#steps", "100")
    page.select_option("#attack", "invert")
    page.wait_for_timeout(500)
    assert page.is_hidden("#progress"), "a search does not start by itself"
    assert "press Run" in page.inner_text("#run-about")
    page.focus("#run")
    page.keyboard.press("Enter")
    page.locator("#stage", has_text=re.compile(r"invert: [1-9]")).wait_for(timeout=20_000)
    snapshot(page, f"serve-running-{size}")
    page.focus("#cancel")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "run"
    page.click(".controls summary")
    page.locator("#progress").wait_for(state="hidden")
    assert page.inner_text("#live") == "Cancelled."
    page.select_option("#attack", "patch_solve")
    settled(page, "patch_solve")


@pytest.mark.slow
def test_tracing_the_curve_can_be_stopped_and_done(visit):
    page = visit()
    page.click("#trace")
    page.locator("#trace", has_text=re.compile(r"Stop tracing \(\d+ of 12\)")).wait_for()
    page.click("#trace")
    page.locator("#trace", has_text="Trace the curve").wait_for()
    assert page.inner_text("#live") == "Cancelled."
    page.click("#trace")
    page.locator("#live", has_text="The curve is traced").wait_for(state="attached", timeout=60_000)
    assert page.locator("#chart circle").count() == page.locator("#chart rect").count() == 6
    page.click("#table-holder summary")
    assert page.locator("#table tbody tr").count() == 12
    snapshot(page, "serve-curve")


def test_everything_can_be_reached_and_has_a_name(visit):
    page = visit()
    reached = []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(40):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.id || document.activeElement.name")
        outline = page.evaluate(
            "(() => { const style = getComputedStyle(document.activeElement);"
            " return style.outlineStyle + style.outlineWidth; })()"
        )
        reached.append((name, outline))
        if name == "trace":
            break
    names = [name for name, _ in reached]
    wanted = ["picture", "file", "defence", "amount", "amount-number", "attack", "model", "run"]
    assert [name for name in names if name in wanted] == wanted
    for name, outline in reached:
        if name not in ("picture", "file"):  # Hidden; their labels show the ring.
            assert outline == "solid3px", name
    tree = page.locator("body").aria_snapshot()
    for role in ("combobox", "slider", "spinbutton", "radio", "button", "img"):
        lines = [line for line in tree.splitlines() if re.match(rf"\s*- {role}\b", line)]
        assert lines, f"no {role} in\n{tree}"
        assert all('"' in line for line in lines), f"a {role} without a name in\n{tree}"


@both
def test_the_page_of_the_api(open_page, server, size):
    page = open_page(f"{server.url}/api", width=WIDTHS[size])
    assert page.inner_text("h1") == "API"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    snapshot(page, f"serve-api-{size}")
