"""The page and the figures of an audit, from made-up records: whole, with gaps, and hostile."""

import numpy as np
import pytest
from PIL import Image

from mjp.core.records import Record
from mjp.privacy import tables
from mjp.privacy.assessment import assessed, mjp_ratio
from mjp.privacy.tables import SECTIONS
from mjp.report.grid import Panel, draw_grid
from mjp.report.page import write_report
from tests.report import made_runs as made
from tests.report.tracing import check_page, tree, untraced, words

MODEL = "DeiT-S"
NOT_MEASURED = "of the model as it is, without training under this defence"


def record(defence, attack, psnr, /, level="traces", model=MODEL, informed=False, **more):
    """A record of an attack; without a PSNR it does not apply."""
    conditions = {
        "model": model,
        "defence": defence,
        "defence_title": f"defence {defence}",
        "attack": attack,
        "attack_about": "what it does",
        "attack_kind": "closed",
        "knows_defence": informed,
        "torch": "2.11",
    }
    values = {"images": 4, "applied": 0, "reason": "no mask to read", "level": "does not apply"}
    if psnr is not None:
        ends = {"low": -1, "high": 1, "lowest": -3, "highest": 3}
        values = {f"psnr_{end}": psnr + step for end, step in ends.items()}
        values |= {"images": 4, "applied": 4, "psnr": psnr, "ssim": 0.5, "fft2d": 0.02}
        values |= {"mse": 10 ** (-psnr / 10), "lpips": None, "client_psnr": psnr, "level": level}
        values |= {"identified_pixels": 0.75, "gallery": 50, "seconds": 0.1}
        values |= {"rank": 196, "rank_needed": 196, "condition": 3.2e5}
        values["verdict"] = f"{level}: {psnr:g} dB."
    guesses = {"baseline_mean_psnr": 11.0, "baseline_colour_psnr": 13.0}
    return Record("audit", conditions, {**guesses, **values, **more})


def accuracy(defence, top1, /, model=MODEL, **more):
    values = {"top1": top1, "top1_low": top1 - 1, "top1_high": top1 + 1, **more}
    return Record("audit accuracy", {"model": model, "defence": defence}, values)


def whole():
    split = {"psnr_unmasked": 18.9, "psnr_masked": 8.0, "masked_patches": 53, "mask_recovered": 1.0}
    return [
        record("none", "patch_solve", 85.0, "recovered"),
        record("none", "invert", 12.0, "failed"),
        record("none", "adaptive_solve", None),
        record("mjp=0.03", "patch_solve", 12.5, "failed"),
        record("mjp=0.03", "adaptive_solve", 36.3, "recovered", informed=True),
        record("mjp=0.27", "patch_solve", 9.8, "failed"),
        record("mjp=0.27", "adaptive_solve", 12.4, "recognisable", informed=True, **split),
        record("mjp=0.27", "invert", 11.0, "failed"),
        record("shuffle=0.27", "patch_solve", 10.0, "recognisable", client_psnr=85.0),
        record("bf16", "patch_solve", 17.0),
        record("bf16", "invert", 14.0),
        accuracy("none", 79.8, fidelity=1.0),
        accuracy("mjp=0.27", 62.9, fidelity=0.8),
        accuracy("bf16", 79.8, fidelity=0.999, accuracy_note=NOT_MEASURED),
        accuracy("dp=1,1", 79.8, epsilon=3.2),
    ]


def page_of(tmp_path, records, command="mjp audit"):
    folder = made.write(tmp_path / "audit", records)
    report = write_report([folder], tmp_path / "page.html", SECTIONS, command=command)
    assert report.problems == ()
    return report.path.read_text(encoding="utf-8")


def rows_of(records):
    return {
        (row.conditions["defence"], row.conditions["attack"]): row.values
        for row, _ in assessed(records)
    }


def test_the_whole_page_stands_by_itself(tmp_path):
    page = page_of(tmp_path, whole(), command="mjp audit --seed 3")
    check_page(page)
    ids = {one.get("id") for one in tree(page).iter("section")}
    assert {"verdict", "numbers", "split", "cost", "paper", "preflight", "glossary"} <= ids
    assert len(list(tree(page).iter("img"))) == 3
    for wanted in (
        tables.WORDS["recovered"],
        "defence mjp=0.03: recovered: 36.3 dB. (adaptive solve)",
        "18.9 dB on the patches left alone",
        "85 dB against the picture as the model was fed it",
        "no mask to read",
        "mjp audit --seed 3",
        "Rows (b)-MJP and (3)",
    ):
        assert wanted in page, wanted
    wrong, seen = untraced(page)
    assert wrong == []
    assert seen > 100


def test_what_counts_and_what_is_found_elsewhere_are_fields():
    rows = rows_of(whole())
    masked = {"psnr_unmasked": 18.9, "psnr_masked": 8.0}
    row = rows_of([record("mjp=0.27", "solve", 12.4, "failed", **masked)])["mjp=0.27", "solve"]
    assert (row["level"], row["part"]) == ("traces", "unmasked")
    assert {key for key, row in rows.items() if not row["counts"]} == {
        ("mjp=0.27", "invert"),
        ("bf16", "invert"),
    }  # Undefended, `invert` has 12 dB where a guess has 13.
    assert {key[0]: row["part"] for key, row in rows.items() if row["part"]} == {
        "mjp=0.27": "unmasked",
        "shuffle=0.27": "shuffled",
    }


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([record("bf16", "dlg", 17.0)], "untried"),
        ([record("none", "dlg", 50.0, model="other"), record("bf16", "dlg", 12.0)], "untried"),
        ([record("none", "dlg", None), record("bf16", "dlg", 30.0)], ""),
        ([record("none", "dlg", None), record("bf16", "dlg", 10.0)], "refused"),
        ([record("none", "dlg", 12.0, "failed"), record("bf16", "dlg", 17.0)], "weak"),
        ([record("none", "dlg", 85.0), record("bf16", "dlg", 9.0)], ""),
    ],
)
def test_a_number_counts_where_the_attack_is_known_to_work_undefended(records, why):
    assert rows_of(records)["bf16", "dlg"]["why"] == why


GAPS = {
    "nothing": [],
    "one attack that applies to nothing": [record("none", "april", None)],
    "no numbers": [Record("audit", {"model": "m", "defence": "none", "attack": "a"}, {})],
    "no baseline": [
        record("bf16", "dlg", 9.0, baseline_mean_psnr=None, baseline_colour_psnr=None),
    ],
    "no level": [record("none", "dlg", 20.0, level=None)],
    "no interval": [record("none", "dlg", 20.0, psnr_low=None, psnr_high=None, gallery=None)],
    "applies to some": [record("none", "dlg", 20.0, applied=2)],
    "applies without a number": [record("none", "dlg", 20.0, psnr=None)],
    "not a number": [record("none", "dlg", 20.0, psnr=float("nan"), ssim=float("inf"))],
    "accuracy without attacks": [accuracy("none", 70.0)],
    "accuracy without a number": [record("none", "dlg", 20.0), accuracy("none", 1.0, top1=None)],
}


@pytest.mark.parametrize("gap", GAPS)
def test_gaps_give_a_page_and_figures_or_none(gap, tmp_path):
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "records.jsonl").touch()
    made.write(tmp_path / "audit", GAPS[gap])
    report = write_report([tmp_path / "audit"], tmp_path / "a.html", SECTIONS, command="")
    assert all("holds no result yet" in problem for problem in report.problems)
    page = report.path.read_text(encoding="utf-8")
    check_page(page)
    cells = " ".join(words(cell) for cell in tree(page).iter("td")).split()
    assert not {"None", "nan", "inf"} & set(cells)


def test_hostile_labels_stay_text(tmp_path):
    evil = "<script>alert(1)</script>\"'><img src=https://x.test/a.png>{0.__class__}"
    records = [
        record(evil, evil, 20.0, model=evil, reason=evil, attack_about=evil),
        record("none", evil, None, model=evil, reason=evil),
        accuracy(evil, 50.0, model=evil, accuracy_note=evil),
    ]
    page = page_of(tmp_path, records, command=evil)
    check_page(page)
    assert "&lt;script&gt;alert(1)" in page


def test_settings_of_the_paper_read_the_right_picture():
    records = [
        record("none", "patch_solve", 85.0),
        record("mjp=0.27", "patch_solve", 9.0, client_psnr=44.44),
        record("mjp=0.1", "patch_solve", 33.33),
        accuracy("mjp=0.27", 61.2, accuracy_note=NOT_MEASURED),
    ]
    rows = [row.cells for row in tables.PAPERS.fill(records).rows if row.records]
    assert [(row[1], row[3], row[6]) for row in rows] == [
        ("a", "–", "85.00"),
        ("b", "61.2*", "44.44"),
        ("c", "61.2*", "9.00"),
    ]


def test_figures_are_written_and_show_something(tmp_path):
    paths = [path for draw in tables.FIGURES.values() for path in draw(whole(), tmp_path)]
    names = ("defences", "tradeoff", "ratio")
    assert [path.name for path in paths] == [
        f"{n}.{kind}" for n in names for kind in ("png", "svg")
    ]
    for path in paths[::2]:
        pixels = np.asarray(Image.open(path).convert("RGB"))
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    defences, tradeoff, ratio = (path.read_text(encoding="utf-8") for path in paths[1::2])
    assert "hollow: accuracy under this defence not measured" in tradeoff
    assert "below this line nothing was recovered" in tradeoff
    assert "adaptive solve, patches left alone" in ratio
    assert "does not apply: adaptive solve" in defences


def test_no_curve_without_two_ratios_and_no_tradeoff_without_accuracy(tmp_path):
    records = [record("none", "dlg", 20.0), record("mjp=0.27", "dlg", 10.0)]
    assert tables.FIGURES["ratio"](records, tmp_path) == []
    assert tables.FIGURES["tradeoff"](records, tmp_path) == []
    assert draw_grid([], [], "", tmp_path, "grid") == []
    assert not list(tmp_path.iterdir())


def test_a_grid_keeps_every_pixel(tmp_path):
    pixels = np.random.default_rng(0).random((32, 16, 3))
    rows = [
        [Panel("original", pixels, "original"), Panel("", None, "", "no mask")],
        [Panel("", pixels * 2 - 0.5, "clipped")],
    ]
    (path,) = draw_grid(rows, ["cat", "dog"], "a title", tmp_path, "grid")
    drawn = np.asarray(Image.open(path).convert("RGB")).astype(float) / 255
    times = round(224 / 32)
    wanted = np.repeat(np.repeat(pixels, times, axis=0), times, axis=1)
    height, width = wanted.shape[:2]
    assert any(
        np.abs(drawn[top : top + height, left : left + width] - wanted).max() < 0.01
        for top in range(90)
        for left in range(60)
    )


@pytest.mark.parametrize(
    ("defence", "ratio"),
    [("none", 0), ("mjp=0.27", 0.27), ("mjp=0.27+bf16", None), ("shuffle=0.27", None)],
)
def test_ratio_of_a_defence(defence, ratio):
    assert mjp_ratio(defence) == ratio
