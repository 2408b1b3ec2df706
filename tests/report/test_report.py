"""`mjp report`: one page from whatever runs there are, and never a crash over what is broken."""

import json
import os
import random
import re
from pathlib import Path

import pytest

from mjp.catalog import sections as all_sections
from mjp.cli import main
from mjp.core.records import Record, read_records
from mjp.privacy.pictures import draw_grids
from mjp.report.folders import find_folders
from mjp.report.page import write_report
from tests.report import made_runs as made
from tests.report.tracing import check_page, tree, untraced, words

EVIL = "<script>alert(1)</script>\"'><img src=https://x.test/a.png>"


def page_of(tmp_path, *folders):
    report = write_report(
        folders, tmp_path / "page.html", all_sections(), command="mjp report runs"
    )
    return report.path.read_text(encoding="utf-8")


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["report", *map(str, arguments)])
    return caught.value.code, *capsys.readouterr()


def sections(page):
    return [one.get("id") for one in tree(page).iter("section")]


def problems(page):
    found = re.search(r'<div class="warn".*?</div>', page, re.DOTALL)
    return "" if found is None else found[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    made.everything(folder / "runs")
    return page_of(folder, folder / "runs")


def test_every_kind_of_run_has_its_section_and_the_contents_lead_there(whole):
    found = sections(whole)
    wanted = {"glance", "training", "evaluation-1", "corruptions", "eval-imagenet-a"}
    wanted |= {"eval-imagenet-o", "positions", "attention", "verdict", "pictures", "runs"}
    assert wanted <= set(found)
    links = tree(whole).find(".//nav").iter("a")
    assert [link.get("href")[1:] for link in links] == found
    assert problems(whole) == ""


def test_every_number_stands_in_the_record_it_links_to(whole):
    wrong, seen = untraced(whole)
    assert wrong == []
    assert seen > 150


def test_a_number_that_is_not_its_records_is_found(whole):
    row = re.search(r'<td class="n">90\.50 ', whole)
    assert row
    wrong, _ = untraced(whole.replace(row[0], '<td class="n">91.23 ', 1))
    assert [token for token, _ in wrong] == ["91.23"]


def test_the_page_needs_nothing_else_and_holds_figures_as_vectors(whole):
    check_page(whole)
    # Training, jigsaws, corruptions, positions, and the audit's.
    assert whole.count('src="data:image/svg+xml') >= 5


def test_the_same_runs_give_the_same_page(tmp_path):
    folder = made.everything(tmp_path / "runs")
    # But for figures, whose lines may move by a last digit.
    first, second = (re.sub(r'base64,[^"]+', "", page_of(tmp_path, folder)) for _ in range(2))
    assert first == second


def test_unfinished_training_a_cut_line_and_a_missing_folder_are_said(tmp_path):
    made.training(tmp_path / "half", epochs=1, asked=3)
    whole = made.evaluation(tmp_path / "eval")
    with (whole / "records.jsonl").open("a") as file:
        file.write('{"kind": "eval accuracy", "condi')
    page = page_of(tmp_path, tmp_path / "half", whole, tmp_path / "nowhere")
    said = problems(page)
    assert "training is not finished, 1 of 3 epochs" in said
    assert f"--resume --out {tmp_path / 'half'}" in said
    assert "1 line is no record, perhaps cut off: 12" in said
    assert "nowhere does not exist" in said
    assert "evaluation-1" in sections(page)


def test_a_folder_without_results_and_an_empty_folder_are_said(tmp_path):
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "records.jsonl").touch()
    (tmp_path / "empty").mkdir()
    said = problems(page_of(tmp_path, tmp_path / "audit", tmp_path / "empty"))
    assert "audit holds no result yet" in said
    assert "empty holds no records" in said


def test_a_picture_that_is_gone_or_broken_leaves_a_hole_and_no_crash(tmp_path):
    folder = made.audit(tmp_path / "audit")
    first, second, *_ = sorted((folder / "pictures").glob("*patch_solve*"))
    first.unlink()
    second.write_bytes(b"no picture")
    assert len(draw_grids(read_records(folder), folder)) == 2
    page = page_of(tmp_path, folder)
    assert "pictures" in sections(page)
    assert problems(page) == ""


@pytest.mark.parametrize("seed", range(6))
def test_records_with_anything_in_them_never_end_it(tmp_path, seed):
    """Values are dropped and replaced at random; what cannot be shown is said."""
    folder = made.everything(tmp_path / "runs")
    draw = random.Random(seed)
    odd = [None, "words", -1e308, 1e308, True, "", "NaN", 10**30, EVIL]
    for file in folder.rglob("records.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            for part in ("conditions", "values"):
                for name in list(row[part]):
                    if draw.random() < 0.25:
                        row[part][name] = draw.choice(odd)
                    elif draw.random() < 0.2:
                        del row[part][name]
        file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    page = page_of(tmp_path, folder)
    root = tree(page)
    assert len(list(root.iter("script"))) == 1
    assert all(one.get("src").startswith("data:") for one in root.iter("img"))
    assert {"glance", "runs"} <= set(sections(page))


def test_of_two_measurements_of_the_same_the_later_counts(tmp_path):
    folder = made.evaluation(tmp_path / "eval")
    made.evaluation(folder)
    (found,) = find_folders([folder])
    assert len(found.entries) == found.replaced == len(read_records(folder)) // 2
    assert min(entry.line for entry in found.entries) > len(found.entries)
    page = page_of(tmp_path, folder)
    assert f"{found.replaced} replaced by later ones" in page


@pytest.mark.parametrize(
    ("name", "value"),
    [("image_size", "288x288"), ("crop", 0.9), ("direction", "as in the reference code")],
)
def test_evaluations_that_differ_in_size_crop_or_direction_are_both_shown(tmp_path, name, value):
    folder = made.evaluation(tmp_path / "eval", models=("A",))
    made.evaluation(folder, models=("A",), **{name: value})
    (found,) = find_folders([folder])
    assert found.replaced == 0
    page = page_of(tmp_path, folder)
    tables = {table.findtext("caption").split(";")[0]: table for table in tree(page).iter("table")}
    _, first, second = map(words, tables["Accuracy on untouched images of digits (val)"].iter("tr"))
    assert str(value) in second
    assert str(value) not in first


def test_two_models_of_one_name_are_told_apart_and_others_keep_theirs(tmp_path):
    made.evaluation(tmp_path / "runs" / "one", weights="first")
    made.evaluation(tmp_path / "runs" / "two", weights="second")
    made.evaluation(tmp_path / "runs" / "other", data="positions (val)", weights="third")
    labels = {
        record.conditions["model"]
        for folder in find_folders([tmp_path / "runs"])
        for record in folder.records
        if record.kind == "eval accuracy"
    }
    assert labels == {"A", "J", *(f"{m} (runs/{r})" for m in "AJ" for r in ("one", "two"))}


def test_other_records_are_shown_as_they_are(tmp_path):
    folder = made.write(
        tmp_path / "bench", [Record("odd", {"batch": 512}, {"milliseconds": 0.125})]
    )
    page = page_of(tmp_path, folder)
    assert "other" in sections(page)
    assert "milliseconds 0.125" in page


def test_the_command_names_the_page_and_says_what_is_missing(tmp_path, capsys):
    folders = (made.evaluation(tmp_path / "eval"), tmp_path / "nowhere")
    more = ("--out", tmp_path / "a.html", "--title", EVIL)
    code, out, err = command(capsys, *folders, *more)
    assert code == 0
    assert out == f"report: {tmp_path / 'a.html'}\n"
    assert "nowhere does not exist" in err
    page = (tmp_path / "a.html").read_text()
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("make", "words"),
    [(Path.mkdir, "is a folder; name a file"), (os.mkfifo, "is no ordinary file")],
)
def test_a_page_cannot_take_the_place_of_what_is_no_file(tmp_path, make, words, capsys):
    make(tmp_path / "out")
    code, _, err = command(capsys, made.evaluation(tmp_path / "eval"), "--out", tmp_path / "out")
    assert code == 2
    assert words in err
    assert not (tmp_path / "out").is_file()


def test_a_page_without_a_single_record_is_written_and_fails(tmp_path, capsys):
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "records.jsonl").write_bytes(bytes(range(256)) * 20)
    more = ("--out", tmp_path / "page.html")
    code, out, err = command(capsys, tmp_path / "junk", *more)
    assert code == 1
    assert out == f"report: {tmp_path / 'page.html'}\n"
    assert "no record, perhaps cut off" in err
    assert "not one record" in err
