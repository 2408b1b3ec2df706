"""`mjp demo` end to end, with smaller models and fewer images than a person gets."""

import re

import pytest
from PIL import Image

from mjp import demo
from mjp.cli import main
from mjp.core.records import RECORDS, read_records
from mjp.demo import pictures
from tests.browsing import snapshot
from tests.report.tracing import untraced

STAGES = 12
TIMES = {"seconds", "images_per_second", "peak_memory"}
TINY = ("--run.epochs", "2", "--run.warmup-epochs", "1", "--run.batch", "60", "--data.size", "60")
SMALL = ("--model.arguments.embed-dim", "32", "--model.arguments.depth", "1")


@pytest.fixture(scope="module")
def small():
    training = {
        "positions": (*TINY, *SMALL, "--model.image-size", "96", "64"),
        "digits": (*TINY, *SMALL),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "TRAINING", training)
        patch.setattr(demo, "IMAGES", 20)
        patch.setattr(demo, "PHOTOGRAPHS", 2)
        yield patch


@pytest.fixture(scope="module")
def ran(small, tmp_path_factory):
    """A demonstration that was run once."""
    out = tmp_path_factory.mktemp("demo") / "here"
    run(out)
    return out


def run(out, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--out", str(out), *arguments])
    return caught.value.code


def page_of(out):
    """The page without its figures: names inside an SVG may differ from one drawing to another."""
    return re.sub(r'base64,[^"]+', "", (out / "report.html").read_text())


def measured(out):
    """All records of a demonstration but the times, by file."""
    return {
        file.relative_to(out): [
            (r.kind, r.conditions, {k: v for k, v in r.values.items() if k not in TIMES})
            for r in read_records(file)
            if r.kind != "train timing"
        ]
        for file in sorted(out.rglob(RECORDS))
    }


def test_the_page_is_named_last_and_every_number_in_it_is_of_a_record(ran):
    page = (ran / "report.html").read_text()
    wrong, seen = untraced(page)
    assert wrong == []
    assert seen > 500
    sections = {"panels", "scale", "glance", "training", "evaluation-1", "evaluation-2"}
    sections |= {"positions", "verdict", "pictures", "numbers", "split"}
    assert sections <= set(re.findall('<section id="([^"]+)">', page))
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert page.count('src="data:image/svg+xml') >= 6
    for file in ("panels.png", "method.png", "log.txt"):
        assert (ran / file).stat().st_size > 1000


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_stands_in_a_browser(ran, open_page, width):
    page = open_page((ran / "report.html").as_uri(), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#panels img").evaluate("one => one.naturalWidth") > 500
    assert page.locator("h1").inner_text() == "Masked Jigsaw Puzzle, on your machine"
    assert "It does not show" in page.locator("#scale").inner_text()
    snapshot(page, f"demo-{width}")


def test_what_is_done_is_not_done_again(ran, small, capsys):
    before = page_of(ran)
    assert run(ran) == 0
    out, err = capsys.readouterr()
    assert err.count("(done before)") == STAGES
    assert out.splitlines()[-1] == f"report: {ran / 'report.html'}"
    assert ", no defence: An attacker recovers the picture: " in out
    assert page_of(ran) == before


def test_starting_over_comes_to_the_same_numbers(ran, small, tmp_path, capsys):
    out = tmp_path / "here"
    out.mkdir()
    (out / "mine.txt").write_text("not the demonstration's")
    (out / "report.html").write_text("an old page")
    assert run(out, "--fresh") == 0
    assert "(done before)" not in capsys.readouterr().err
    assert measured(out) == measured(ran)
    assert (out / "mine.txt").exists()


def test_a_demonstration_that_was_interrupted_goes_on(ran, small, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    page = page_of(ran)
    (ran / "panels.png").unlink()  # A stage whose file is gone is done again.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "show_panels", interrupt)
        assert run(ran) == 130
    assert capsys.readouterr().err.strip().endswith("mjp: interrupted")
    assert run(ran) == 0
    assert capsys.readouterr().err.count("(done before)") == STAGES - 1
    assert page_of(ran) == page


def test_other_options_are_refused(ran, small, capsys):
    assert run(ran, "--seed", "1") == 2
    assert "holds a demonstration with seed 0; start over with" in capsys.readouterr().err


def test_starting_over_removes_what_a_demonstration_wrote_and_nothing_else(tmp_path):
    (tmp_path / RECORDS).write_text(demo.Record(demo.STAGE, {}, {}).to_json())
    (tmp_path / "log.txt").write_text("of the run before")
    (tmp_path / "audit" / "J").mkdir(parents=True)
    (tmp_path / "audit" / "mine").mkdir()
    demo.clear(tmp_path)
    assert not (tmp_path / "log.txt").exists()
    assert not (tmp_path / "audit" / "J").exists()
    assert (tmp_path / "audit" / "mine").exists()


def test_starting_over_where_no_demonstration_was_removes_nothing(tmp_path):
    (tmp_path / "audit" / "J").mkdir(parents=True)
    (tmp_path / "report.html").write_text("somebody's")
    demo.clear(tmp_path)
    assert (tmp_path / "audit" / "J").exists()
    assert (tmp_path / "report.html").read_text() == "somebody's"


def test_the_method_on_a_photograph_has_exact_zeros(ran):
    (record,) = [record for record in read_records(ran) if record.kind == "demo"]
    assert record.conditions["ratio"] == 0.27
    assert record.values["patches_masked"] == 53
    assert record.values["difference_from_timm_without_a_plan"] == 0
    assert record.values["difference_between_inverse_and_photograph"] == 0
    assert record.values["masked_positions_with_a_gradient"] == 0
    assert record.values["unmasked_positions_with_a_gradient"] == 143


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_method_takes_a_picture_of_ones_own_and_extreme_ratios(tmp_path, ratio):
    Image.new("L", (90, 40), 128).save(tmp_path / "mine.png")
    record = pictures.show_method(tmp_path, tmp_path / "mine.png", ratio, 0)
    assert record.values["patches_masked"] == ratio * 196
    assert (tmp_path / "method.png").stat().st_size > 10_000
