"""The page of a study: every number traced, and no crash over what is missing or broken."""

import json
import random
from dataclasses import replace

import pytest

from mjp.core.records import Record
from mjp.report.runs import find_runs
from mjp.report.study import TABLES, Quantity
from mjp.report.study_derived import derive
from mjp.report.study_figures import Point, draw_curves, draw_gamma, without_far
from mjp.report.study_page import derived_records, summary_table, trained_table
from mjp.report.study_reading import studies_of
from mjp.report.study_tables import tables_of
from mjp.report.study_words import HEADS, by_level
from mjp.report.whole import write_report
from tests.report import made_study as made
from tests.report.made_runs import write
from tests.report.test_whole_report import EVIL, page_of, problems, sections
from tests.report.tracing import tree, untraced


def whole_study(folder, runs=made.ALL, name="paper"):
    """A folder as `mjp study` leaves it."""
    records = made.records(runs, name)
    return write(folder, [*records, *derived_records(records)])


def table_of(runs, table, place=0):
    (study,) = studies_of(made.records(runs))
    return tables_of(derive(study), table)[place]


def cells_of(table, label):
    """The cells of a row by the titles of their columns."""
    (row,) = (one for one in table.rows if one.cells[0] == label)
    return dict(zip((column.title for column in table.columns), row.cells, strict=True))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return page_of(folder, whole_study(folder / "study"))


def test_every_table_has_its_section_and_other_records_show_none(page):
    found = sections(page)
    names = ("runs", *TABLES, "table-9")
    assert found[: 1 + len(names)] == ["glance", *(f"study-{name}" for name in names)]
    assert "something-else" in page
    assert "other" not in found
    assert problems(page) == ""


def test_every_number_stands_in_the_record_it_links_to(page):
    wrong, seen = untraced(page)
    assert wrong == []
    assert seen > 1500


def test_the_glance_counts_what_holds(page):
    assert "Of the claims that the study “paper” looks at (18 of the paper, 5 of ours):" in page


def test_the_first_section_names_every_claim_by_what_became_of_it(page):
    (study,) = studies_of(made.records(made.ALL))
    levels = by_level(derive(study))
    assert sum(map(len, levels.values())) == 23
    listed = [item.words() for item in tree(page).all("li")]
    for level, verdicts in levels.items():
        assert HEADS[level] in [head.words() for head in tree(page).all("h4")]
        for one in verdicts:
            assert sum(one.claim.text in item for item in listed) == 1
    assert any(item.endswith("(over images of one seed)") for item in listed)  # Swin, ResNet.


def test_without_derived_records_rows_lead_to_the_measured_ones(tmp_path):
    folder = write(tmp_path / "study", made.records(made.BACKBONES))
    page = page_of(tmp_path, folder)
    rows = [row for table in tree(page).all("table") for row in table.all("tr")]
    linked = [row for row in rows if any("source" in a.classes() for a in row.all("a"))]
    assert len(linked) > 10
    assert "study summary" not in page


def test_old_derived_records_do_not_count_once_a_seed_is_new(tmp_path):
    few = [replace(run, seeds=run.seeds[:2]) for run in made.ABLATION]
    old = derived_records(made.records(few))
    folder = write(tmp_path / "study", [*made.records(made.ABLATION), *old])
    (run,) = find_runs([folder])
    (study,) = studies_of(run.of(*run.kinds))
    view = derive(study)
    assert view.sum(study.runs["A"], Quantity("top1")).spread.count == 3
    kinds = {one.kind for one in view.sum(study.runs["A"], Quantity("top1")).records}
    assert kinds == {"study accuracy"}
    kinds = {one.kind for one in view.sum(study.runs["B"], Quantity("top1")).records}
    assert kinds == {"study summary"}


def test_the_ablation_shows_ours_and_the_papers():
    told = cells_of(table_of(made.ALL, "ablation"), "J")
    assert told["Paper: top-1, %"] == "80.5"
    assert told["Paper: Diff. Norm."] == "8.96"
    assert told["Seeds"] == "3"
    assert told["Top-1, %"].startswith("61.")
    assert "±" in told["Top-1, %"]
    assert told["Top-1 − A: plain"].startswith("+1.")
    assert told["Top-1 − A: plain"].endswith("]")
    alone = cells_of(table_of(made.ALL, "ablation"), "B")
    assert alone["Top-1 − A: plain"].endswith("]")  # Seeds of the others tell of the noise.
    assert "±" not in alone["Top-1, %"]


def test_runs_tell_how_long_they_were_trained_from_the_quickest_seed_to_the_slowest():
    own = [one for one in made.records(made.ALL) if one.kind == "study run"]
    times = {0: 272.4, 1: 61.0, 2: 4000.0}
    for one in own:
        if one.conditions["run"] == "A":
            one.values["seconds"] = times[one.conditions["seed"]]
    (study,) = studies_of(own)
    table = trained_table(derive(study))
    assert cells_of(table, "A: plain")["Time"] == "1:01 to 1:06:40"
    assert cells_of(table, "pretrained")["Time"] == "–"


def test_where_seeds_tell_nothing_differences_are_marked():
    told = cells_of(table_of(made.BACKBONES, "backbones"), "swin-mjp")
    assert told["Top-1, difference"].endswith("] †")
    single = [replace(run, seeds=(0,)) for run in made.ALL]
    told = cells_of(table_of(single, "robustness"), "J: MJP, γ = 0.27")
    assert told["Mean error, difference"].endswith("] ‡")
    other = [replace(run, seeds=(7,)) if run.name == "B" else run for run in single]
    assert cells_of(table_of(other, "ablation"), "B")["Top-1 − A: plain"].endswith(" §")


def test_the_table_over_gamma_goes_by_gamma_and_compares_with_none_moved():
    table = table_of(made.ALL, "gamma")
    labels = [row.cells[0] for row in table.rows]
    assert labels == ["D", "J", *(f"J: MJP, γ = {ratio:g}" for ratio in (0.09, 0.27, 0.5))]
    assert "Top-1 − D" in [column.title for column in table.columns]
    assert cells_of(table, "J: MJP, γ = 0.27")["Paper: consistency, %"] == "93.1"
    leaks = table_of(made.ALL, "gamma", 1)
    assert cells_of(leaks, "J: MJP, γ = 0.09")["PSNR of a guess, dB"] == "11.5"
    assert cells_of(leaks, "J")["Paper: 1-D MAE"] == "1.301"


def test_a_run_whose_baseline_has_no_row_is_compared_with_the_plain_one_of_its_kind():
    told = cells_of(table_of(made.ALL, "robustness"), "J: MJP, γ = 0.27")
    assert told["Mean error, difference"].startswith("-")
    assert told["Mean error, difference"].endswith("]")
    assert told["Paper: mCE"] == "–"


def test_the_papers_time_stands_beside_ours():
    told = cells_of(table_of(made.COST, "cost"), "cost-J")
    assert told["Paper: more time, %"] == "+2.0"
    assert told["More time, %"].startswith("+0.")
    beside = [replace(run, alone=False) for run in made.COST]
    assert "cannot be compared" in table_of(beside, "cost").note


def test_a_table_that_nobody_knows_has_our_columns_alone():
    table = table_of(made.OTHER, "something-else")
    assert not any(column.title.startswith("Paper") for column in table.columns)
    assert [row.cells[0] for row in table.rows] == ["odd"]


def test_the_summary_has_a_row_for_each_run_and_leaves_empty_columns_out():
    table = summary_table(made.records((*made.BACKBONES, *made.OTHER)))
    assert len(table.rows) == 5
    titles = [column.title for column in table.columns]
    assert "Top-1, %" in titles
    assert "1-D MAE" not in titles
    assert summary_table([]).rows == []


def test_seeds_are_kept_apart_and_of_one_seed_the_later_counts(tmp_path):
    records = made.records(made.COST)
    later = [
        Record(one.kind, one.conditions, {**one.values, "epoch_seconds": 99.0})
        for one in records
        if one.kind == "study run" and one.conditions["seed"] == 1
    ]
    (run,) = find_runs([write(tmp_path / "study", [*records, *later])])
    assert len(run.of("study run")) == 6
    assert run.replaced == 2
    assert sorted(one.conditions["seed"] for one in run.of("study run")) == [0, 0, 1, 1, 2, 2]
    assert sum(one.values["epoch_seconds"] == 99.0 for one in run.of("study run")) == 2


def test_two_studies_have_chapters_of_their_own(tmp_path):
    whole_study(tmp_path / "runs" / "one", made.COST, "one")
    whole_study(tmp_path / "runs" / "two", made.COST, "two")
    page = page_of(tmp_path, tmp_path / "runs")
    assert {"study-cost", "study-2-cost"} <= set(sections(page))
    assert "The study “two”" in page
    assert untraced(page)[0] == []


def test_a_study_that_has_just_begun_shows_what_there_is(tmp_path):
    """Nothing but the first run of each kind of record, one after the other."""
    records = made.records((made.ABLATION[-1], *made.GAMMA[:1]))
    for count in (1, 2, 5, 30, 60):
        folder = write(tmp_path / str(count), records[:count])
        page = page_of(tmp_path, folder)
        assert "study-runs" in sections(page)
        assert problems(page) == ""


@pytest.mark.parametrize("kind", ["run", "epoch", "accuracy", "jigsaw", "difference", "leak"])
def test_a_kind_of_record_that_is_missing_leaves_a_gap_and_no_crash(tmp_path, kind):
    records = [one for one in made.records() if one.kind != f"study {kind}"]
    page = page_of(tmp_path, write(tmp_path / "study", records))
    assert "study-runs" in sections(page)
    assert problems(page) == ""


@pytest.mark.parametrize("seed", range(6))
def test_records_with_anything_in_them_never_end_it(tmp_path, seed):
    folder = whole_study(tmp_path / "study")
    draw = random.Random(seed)
    odd = [None, "words", -1e308, 1e308, True, "", "NaN", 10**30, EVIL, 0, -1]
    file = folder / "records.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        for part in ("conditions", "values"):
            for name in list(row[part]):
                if draw.random() < 0.1:
                    row[part][name] = draw.choice(odd)
                elif draw.random() < 0.05:
                    del row[part][name]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    report = write_report([folder], tmp_path / "page.html", command="mjp report")
    page = report.path.read_text(encoding="utf-8")
    assert len(list(tree(page).all("script"))) == 1
    assert "study-runs" in sections(page)
    assert problems(page) == ""
    assert summary_table([one.record for run in find_runs([folder]) for one in run.entries]).rows


@pytest.mark.parametrize(("psnr", "is_cut"), [(120.0, True), (50.0, False)])
def test_a_leak_far_above_the_others_is_told_in_words(psnr, is_cut, tmp_path):
    runs = [replace(one, psnr=(psnr, psnr)) if one.name == "D" else one for one in made.ALL]
    (study,) = studies_of(made.records(runs))
    drawing = draw_gamma(derive(study), "gamma", tmp_path)
    texts = drawing.paths[1].read_text(encoding="utf-8")
    assert (f"{psnr:.0f} at γ = 0" in texts) == is_cut


def test_curves_of_consistency_stand_beside_what_they_are_more_than_the_baseline(tmp_path):
    (study,) = studies_of(made.records(made.ABLATION))
    drawing = draw_curves(derive(study), "ablation", tmp_path)
    assert "consistency − that of A: plain, points" in drawing.paths[1].read_text(encoding="utf-8")
    assert "intervals over seeds" in drawing.caption
    (study,) = studies_of(made.records(made.ABLATION[:1]))
    alone = draw_curves(derive(study), "ablation", tmp_path / "alone")
    assert "− that of" not in alone.paths[1].read_text(encoding="utf-8")
    assert "Right" not in alone.caption


def test_a_line_far_from_the_others_leaves_them_room():
    def line(*values):
        return [Point(float(place), value, 0.5) for place, value in enumerate(values)]

    near = [line(0.0, -2.0), line(0.0, 3.0), line(0.0, 1.0)]
    low, high = without_far(near)
    assert -2.5 > low > -3.5
    assert 3.5 < high < 4.5
    assert without_far([*near, line(0.0, 31.0)]) == (low, high)
