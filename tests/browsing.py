"""A real browser for tests: pages at any width that fail the test on errors or foreign requests."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

SCREENSHOTS = Path(__file__).parents[1] / ".artifacts" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
INSIDE = ("data", "blob", "about")  # Addresses that no machine is asked for.


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """Chromium of this machine, without a window; skips where it cannot be had."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="tests in a browser need playwright: pip install 'mjp[dev]'"
    )
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip(f"tests in a browser need one of {', '.join(NAMES)} (apt install chromium)")
    with playwright.sync_playwright() as driver:
        try:
            started = driver.chromium.launch(executable_path=executable, args=FLAGS)
        except playwright.Error as error:
            pytest.skip(f"{executable} does not start: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture
def open_page(browser) -> Iterator[Callable]:
    """Opens pages: open_page(url, width=1280, dark=False) gives Playwright's Page.

    The test fails when a page wrote an error or a warning to its console, threw an exception or
    asked another host for anything. `allow` lists parts of console messages that are expected,
    such as "status of 413" where a test provokes a refusal.
    """
    contexts: list = []
    problems: list[str] = []

    def opened(url: str, width: int = 1280, dark: bool = False, allow: tuple[str, ...] = ()):
        def said(message) -> None:
            expected = any(part in message.text for part in allow)
            if message.type in ("error", "warning") and not expected:
                problems.append(f"{message.type} on the console: {message.text}")

        def asked(request) -> None:
            wanted = urlsplit(request.url)
            if wanted.scheme not in INSIDE and wanted[:2] != urlsplit(url)[:2]:
                problems.append(f"a request to another host: {request.url}")

        context = browser.new_context(
            viewport={"width": width, "height": 844 if width < 600 else 900},
            color_scheme="dark" if dark else "light",
            has_touch=width < 600,
            reduced_motion="reduce",
            locale="en-GB",
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", said)
        page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
        page.on("request", asked)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def snapshot(page, name: str) -> None:
    """Keeps a picture of the whole page as a test artefact."""
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
