"""`mjp demo` end to end, with smaller models and fewer images than a person gets."""

import json
import re
from dataclasses import replace

import pytest
from PIL import Image

from mjp.catalog import read_recipe
from mjp.cli import main
from mjp.commands import demo
from mjp.core.errors import ConfigError
from mjp.core.records import RECORDS
from tests.browsing import snapshot
from tests.report.tracing import untraced

STAGES = 12
TIMES = {"seconds", "images_per_second", "peak_memory"}


def _smaller(name):
    """The recipe with a model and a set that train in a second or two: 6x4 patches, width 32."""
    recipe = read_recipe(name)
    tiny = {"patch_size": 16, "embed_dim": 32, "depth": 1, "num_heads": 2}
    size, width = ((96, 64), tiny) if name == "positions" else ((16, 16), {**tiny, "patch_size": 4})
    return replace(
        recipe,
        model=replace(recipe.model, image_size=size, arguments=width),
        data=replace(recipe.data, size=60),
        run=replace(recipe.run, epochs=2, warmup_epochs=1, batch=max(recipe.run.batch, 60)),
    )


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "read_recipe", _smaller)
        patch.setattr(demo, "EPOCHS", {"positions": 2, "digits": 2})
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


def measured(out):
    """All records of a demonstration but the times, by file."""
    found = {}
    for file in sorted(out.rglob(RECORDS)):
        rows = []
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] != "train timing":
                kept = {k: v for k, v in record["values"].items() if k not in TIMES}
                rows.append((record["kind"], record["conditions"], kept))
        found[file.relative_to(out).as_posix()] = rows
    return found


def test_the_page_is_named_last_and_every_number_in_it_is_of_a_record(ran):
    page = (ran / "report.html").read_text()
    wrong, seen = untraced(page)
    assert wrong == []
    assert seen > 500
    for section in ("panels", "scale", "glance", "training", "evaluation-1", "evaluation-2"):
        assert f'<section id="{section}">' in page
    for section in ("positions", "verdict", "pictures", "numbers", "split"):
        assert f'<section id="{section}">' in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert page.count('src="data:image/svg+xml') >= 6
    for file in ("panels.png", "method.png", "log.txt"):
        assert (ran / file).stat().st_size > 1000


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_stands_in_a_browser(ran, open_page, width):
    page = open_page((ran / "report.html").as_uri(), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#panels img").evaluate("one => one.naturalWidth") > 800
    assert page.locator("h1").inner_text() == "Masked Jigsaw Puzzle, on your machine"
    assert "It does not show" in page.locator("#scale").inner_text()
    snapshot(page, f"demo-{width}")


def text_of(ran):
    """The page without its figures, whose lines may move by a last digit."""
    return re.sub(r'base64,[^"]+', "", (ran / "report.html").read_text())


def test_what_is_done_is_not_done_again(ran, small, capsys):
    before = text_of(ran)
    assert run(ran) == 0
    out, err = capsys.readouterr()
    assert err.count("(done before)") == STAGES
    assert out.splitlines()[-1] == f"report: {ran / 'report.html'}"
    assert ", no defence: recovered, " in out
    assert text_of(ran) == before


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
    def interrupted(*_):
        raise KeyboardInterrupt

    (ran / "stages.json").write_text(
        json.dumps(
            (body := json.loads((ran / "stages.json").read_text()))
            | {"stages": {k: v for k, v in body["stages"].items() if k != "panels"}}
        )
    )
    page = text_of(ran)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "show_panels", interrupted)
        assert run(ran) == 130
    assert capsys.readouterr().err.strip().endswith("mjp: interrupted")
    assert run(ran) == 0
    assert capsys.readouterr().err.count("(done before)") == STAGES - 1
    assert text_of(ran) == page


def test_other_options_are_refused_and_a_broken_note_of_stages_does_not_matter(tmp_path):
    options = demo.DemoOptions(out=tmp_path)
    progress = demo.Progress(options)
    progress.add("method", None)
    assert list(demo.Progress(options).records) == ["method"]
    (tmp_path / "log.txt").write_text("of the run before")
    (tmp_path / "audit" / "J").mkdir(parents=True)
    (tmp_path / "audit" / "mine").mkdir()
    with pytest.raises(ConfigError, match="holds a demonstration with seed 0; start over with"):
        demo.Progress(replace(options, seed=1))
    assert list(demo.Progress(replace(options, out=tmp_path / ".")).records) == ["method"]
    demo.clear(tmp_path)
    assert not (tmp_path / "log.txt").exists()
    assert not (tmp_path / "audit" / "J").exists()
    assert (tmp_path / "audit" / "mine").exists()
    for broken in ('{"key": ', "[]", '{"stages": {"method": 3}}'):
        (tmp_path / "stages.json").write_text(broken)
        assert not demo.Progress(options).records


def test_starting_over_where_no_demonstration_was_removes_nothing(tmp_path):
    (tmp_path / "audit" / "J").mkdir(parents=True)
    (tmp_path / "report.html").write_text("somebody's")
    demo.clear(tmp_path)
    assert (tmp_path / "audit" / "J").exists()
    assert (tmp_path / "report.html").read_text() == "somebody's"


def test_a_finished_stage_whose_files_are_gone_is_done_again(ran, small, capsys):
    (ran / "method.png").unlink()
    page = text_of(ran)
    assert run(ran) == 0
    assert capsys.readouterr().err.count("(done before)") == STAGES - 1
    assert text_of(ran) == page


def test_the_method_on_a_photograph_has_exact_zeros(ran):
    lines = [json.loads(line) for line in (ran / RECORDS).read_text().splitlines()]
    (record,) = [one for one in lines if one["kind"] == "demo"]
    assert record["conditions"]["ratio"] == 0.27
    assert record["values"]["patches_masked"] == 53
    assert record["values"]["difference_from_timm_without_a_plan"] == 0
    assert record["values"]["difference_between_inverse_and_photograph"] == 0
    assert record["values"]["masked_positions_with_a_gradient"] == 0
    assert record["values"]["unmasked_positions_with_a_gradient"] == 143


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_method_takes_a_picture_of_ones_own_and_extreme_ratios(tmp_path, ratio):
    Image.new("L", (90, 40), 128).save(tmp_path / "mine.png")
    record = demo.show_method(tmp_path, tmp_path / "mine.png", ratio, 0)
    assert record.values["patches_masked"] == ratio * 196
    assert (tmp_path / "method.png").stat().st_size > 10_000
