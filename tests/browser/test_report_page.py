"""Reports in a real browser: a page of every kind of run, on a desk, on a phone, in the dark."""

from itertools import pairwise

import pytest

from mjp.catalog import sections
from mjp.report.page import write_report
from tests.browsing import snapshot
from tests.report import made_runs as made

PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    made.everything(folder / "runs")
    report = write_report([folder / "runs"], folder / "report.html", sections(), command="mjp")
    return report.path.as_uri()


@pytest.mark.parametrize(("width", "dark"), [(DESK, False), (DESK, True), (PHONE, False)])
def test_the_page_fits_and_shows_every_picture(open_page, address, width, dark):
    page = open_page(address, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    broken = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
    assert page.evaluate(broken) == 0
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    levels = [int(one) for one in ground.removeprefix("rgb(").rstrip(")").split(",")]
    assert (max(levels) < 60) if dark else (min(levels) > 200)
    snapshot(page, f"report-{width}{'-dark' if dark else ''}")


def test_contents_are_open_on_a_desk_and_folded_on_a_phone(open_page, address):
    desk, phone = open_page(address, width=DESK), open_page(address, width=PHONE)
    link = "nav a[href='#training']"
    assert desk.locator(link).is_visible()
    assert not phone.locator(link).is_visible()
    phone.locator("nav summary").click()
    phone.locator(link).click()
    assert phone.evaluate("location.hash") == "#training"
    assert phone.locator("#training h2").is_visible()


def test_tables_are_sorted_by_mouse_and_by_keyboard(open_page, address):
    page = open_page(address)
    table = page.locator("#evaluation-1 table", has_text="Under a jigsaw")
    column = "td:nth-child(5)"

    def values():
        return [float(one.split()[0]) for one in table.locator(column).all_inner_texts()]

    head = table.locator("thead th").nth(4)
    head.get_by_role("button").click()
    assert values() == sorted(values())
    assert head.get_attribute("aria-sort") == "ascending"
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert values() == sorted(values(), reverse=True)
    assert len(set(values())) > 1
    assert head.get_attribute("aria-sort") == "descending"


def test_a_picture_grows_by_key_or_click_and_escape_makes_it_small_again(open_page, address):
    page = open_page(address)
    figure = page.locator("#pictures figure").first
    picture = figure.locator("img")
    small = picture.bounding_box()["width"]
    figure.locator("input").focus()
    page.keyboard.press("Space")
    assert picture.bounding_box()["width"] > small
    page.keyboard.press("Escape")
    assert picture.bounding_box()["width"] == small
    picture.click()
    assert picture.bounding_box()["width"] > small


def test_the_record_behind_a_number_opens_at_its_place(open_page, address):
    page = open_page(address)
    link = page.locator("#evaluation-1 td.source a").first
    number = link.inner_text()
    assert not page.locator(f"#r{number}").is_visible()
    link.click()
    record = page.locator(f"#r{number}")
    record.wait_for(state="visible")
    assert '"kind": "eval accuracy"' in record.inner_text()


def test_the_page_can_be_printed(open_page, address):
    page = open_page(address)
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert not page.locator("#records").is_visible()
    assert page.locator("#glance").is_visible()
    assert page.pdf()[:4] == b"%PDF"


def test_every_control_has_a_name_and_headings_go_down_step_by_step(open_page, address):
    page = open_page(address)
    unnamed = """[...document.querySelectorAll("button, a, input")].filter(
        (one) => !(one.innerText || one.textContent || "").trim() && !one.ariaLabel).length"""
    assert page.evaluate(unnamed) == 0
    levels = page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4')].map(one => Number(one.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en"
