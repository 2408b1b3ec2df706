"""`mjp report --into`: the places of a Markdown document, filled from a study."""

import re
from pathlib import Path

import pytest

from mjp.cli import main
from mjp.core.errors import ConfigError
from mjp.report.study_derived import derive
from mjp.report.study_markdown import NOTHING, fill, fill_document
from mjp.report.study_reading import studies_of
from tests.report import made_study as made
from tests.report.made_runs import write
from tests.report.test_study_page import whole_study

TEXT = """# Title

Mine. <!-- study: cost -->
old words
<!-- end --> Mine too.

<!-- study: gamma --><!-- end -->
"""


def view_of(runs=made.COST):
    (study,) = studies_of(made.records(runs))
    return derive(study)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("document")
    whole_study(folder / "study")
    names = ("overview", "claims", "runs", "summary", "reading", "ablation", "gamma", "backbones")
    names += ("robustness", "finetune", "cost", "convergence", "something-else")
    document = folder / "docs" / "study.md"
    document.parent.mkdir()
    document.write_text(
        "".join(f"## {one}\n<!-- study: {one} -->\n<!-- end -->\n" for one in names)
    )
    return fill_document([folder / "study"], document)


def test_what_is_around_the_marks_stays_and_what_is_between_is_made_anew():
    found = fill(TEXT, view_of(), {})
    assert found.startswith("# Title\n\nMine. <!-- study: cost -->\n\n- The paper: An epoch")
    assert "old words" not in found
    assert "<!-- end --> Mine too.\n" in found
    assert f"<!-- study: gamma -->\n\n{NOTHING}\n\n<!-- end -->\n" in found
    assert "**Holds here:** cost-J against cost-A" in found


def test_filling_twice_changes_nothing(filled):
    document, *figures = filled
    before = {path: path.read_bytes() for path in filled}
    fill_document([document.parents[1] / "study"], document)
    assert {path: path.read_bytes() for path in (document, *figures)} == before


def test_the_documents_figures_lie_beside_it_and_are_small(filled):
    document, *figures = filled
    linked = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", document.read_text())
    assert sorted(linked) == sorted(path.name for path in figures)
    assert {"study-gamma.png", "study-convergence.png", "study-ablation-curves.png"} <= set(linked)
    assert all(path.stat().st_size < 200_000 for path in figures)
    assert sorted(document.parent.iterdir()) == sorted(filled)


def test_every_row_of_a_table_has_as_many_cells_as_its_head(filled):
    blocks = re.findall(r"(?:^\|.*\|\n)+", filled[0].read_text(), re.MULTILINE)
    assert len(blocks) >= 10
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<!-- study: nonsense --><!-- end -->", "no part 'nonsense'; it has overview, claims"),
        ("<!-- study: cost -->", "has no <!-- end -->"),
        ("<!-- study: cost -->\n<!-- study: gamma --><!-- end -->", "line 2: <!-- study: cost -->"),
        ("a\nb <!-- end -->", "line 2: <!-- end --> without"),
    ],
)
def test_marks_that_do_not_fit_are_told(text, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        fill(text, view_of(), {})


def test_what_labels_hold_is_shown_and_does_nothing():
    evil = "a|b <!-- end --> <script>*x*</script> [y](z)"
    runs = [made.Made("x", "new", None, label=evil)]
    found = fill("<!-- study: new --><!-- end -->", view_of(runs), {})
    assert "| a\\|b &lt;!-- end --> &lt;script>\\*x\\*&lt;/script> [y]\\(z) |" in found
    assert fill(found, view_of(runs), {}) == found


def test_the_command_fills_and_names_what_it_wrote(tmp_path, capsys):
    whole_study(tmp_path / "study", made.FINETUNE)
    document = tmp_path / "study.md"
    document.write_text("<!-- study: finetune -->\n<!-- end -->\n")
    with pytest.raises(SystemExit) as caught:
        main(["report", str(tmp_path / "study"), "--into", str(document)])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert told == f"filled: {document}\nfigure: {tmp_path / 'study-finetune.png'}\n"
    assert not list(tmp_path.glob("*.html"))


def test_no_study_two_studies_and_no_document_are_refused(tmp_path):
    document = tmp_path / "study.md"
    with pytest.raises(ConfigError, match="there is no file"):
        fill_document([tmp_path], document)
    document.write_text("# Nothing to fill")
    with pytest.raises(ConfigError, match="has no marks to fill"):
        fill_document([tmp_path], document)
    document.write_text("<!-- study: overview -->\n<!-- end -->\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="there are 0: none"):
        fill_document([tmp_path / "empty"], document)
    for name in ("one", "two"):
        write(tmp_path / "runs" / name, made.records(made.COST, name))
    with pytest.raises(ConfigError, match="there are 2: one, two"):
        fill_document([tmp_path / "runs"], document)


def test_the_marks_of_our_own_document_fit():
    text = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    assert fill(text, view_of(made.ALL), {}).count("**Holds here:**") > 5
