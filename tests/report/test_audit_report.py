"""The page and the figures of an audit, from made-up records: whole, with gaps, and hostile."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from mjp.core.errors import ConfigError
from mjp.core.records import Record
from mjp.report import paper
from mjp.report.audit import (
    GridRow,
    Panel,
    draw_defences,
    draw_grid,
    draw_ratio_curve,
    draw_tradeoff,
)
from mjp.report.audit_page import write_page
from mjp.report.leaks import Audit, mjp_ratio

MODEL = "DeiT-S"
VOID = {"meta", "img", "input", "br", "link", "hr"}
NOT_MEASURED = "accuracy of the model as it is; training under this defence was not measured"


def record(defence, attack, psnr, /, level="traces", model=MODEL, informed=False, **more):
    """A record of an attack; without a PSNR it does not apply."""
    conditions = {
        "model": model,
        "architecture": "deit_small_patch16_224",
        "defence": defence,
        "defence_title": f"defence {defence}",
        "attack": attack,
        "attack_about": "what it does",
        "attack_kind": "closed",
        "knows_defence": informed,
        "seed": 0,
        "torch": "2.11",
    }
    values = {"images": 4, "applied": 0, "reason": "no mask to read", "level": "does not apply"}
    if psnr is not None:
        ends = {"low": -1, "high": 1, "lowest": -3, "highest": 3}
        values = {
            "images": 4,
            "applied": 4,
            "psnr": psnr,
            **{f"psnr_{end}": psnr + step for end, step in ends.items()},
            "ssim": 0.5,
            "mse": 10 ** (-psnr / 10),
            "fft2d": 0.02,
            "lpips": None,
            "client_psnr": psnr,
            "identified_pixels": 0.75,
            "gallery": 50,
            "rank": 196,
            "rank_needed": 196,
            "condition": 3.2e5,
            "seconds": 0.1,
            "verdict": f"{level}, they say",
            "level": level,
        }
    guesses = {"baseline_mean_psnr": 11.0, "baseline_colour_psnr": 13.0}
    return Record("audit", conditions, {**guesses, **values, **more})


def accuracy(defence, top1, /, model=MODEL, **more):
    values = {"top1": top1, "top1_low": top1 - 1, "top1_high": top1 + 1, "images": 100, **more}
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


class Page(HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.ids, self.words, self.open = text, [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append((tag, found))
        self.ids += [found["id"]] if "id" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script", "pre"):  # pre: raw records.
            self.words.append(data)

    def all(self, tag):
        return [found for name, found in self.tags if name == tag]

    @property
    def said(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def rows_of(page):
    """Each row of the main table as (classes, text)."""
    section = page.text.split('id="numbers"')[1].split("</section>")[0]
    return re.findall(r'<tr class="([^"]*)">(.*?)</tr>', section, re.DOTALL)


def page_of(tmp_path, records, figures=None, command="mjp audit"):
    path = write_page(records, figures or {}, tmp_path, command=command)
    assert path.name == "report.html"
    page = Page(path.read_text(encoding="utf-8"))
    assert not page.open
    return page


def check_page(page):
    """What holds of every page: complete by itself, sound links, pictures with words."""
    links = [found.get("href", "") for _, found in page.tags if "href" in found]
    assert all(link.startswith("#") and link[1:] in page.ids for link in links)
    assert len(page.ids) == len(set(page.ids))
    assert all(found["alt"] and found["src"].startswith("data:") for found in page.all("img"))
    assert len(page.all("script")) == 1
    script = page.text.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.text.replace("&#39;", "'")
    assert not page.all("link")
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?\s*(?:https?:)?//", page.text)
    assert "url(" not in page.text
    assert "@import" not in page.text
    for wanted in ("viewport", "prefers-color-scheme", "@media print"):
        assert wanted in page.text


def figures_of(tmp_path):
    records = whole()
    return [
        *draw_tradeoff(records, tmp_path),
        *draw_ratio_curve(records, tmp_path),
        *draw_defences(records, tmp_path),
    ]


def test_the_whole_page_stands_by_itself(tmp_path):
    paths = figures_of(tmp_path)
    figures = {path.stem: path for path in paths if path.suffix == ".svg"}
    panels = [Panel(np.full((16, 8, 3), 0.5), "36.3 dB", heading="patch solve")]
    figures["DeiT-S under MJP"] = draw_grid([GridRow("cat", panels)], tmp_path, "grid")[0]
    page = page_of(tmp_path, whole(), figures, command="mjp audit --seed 3")
    check_page(page)
    assert len(page.all("img")) == 4
    assert {"verdict", "pictures", "numbers", "split", "cost", "paper", "glossary"} <= {*page.ids}
    for wanted in (
        "An attacker who knows the defence recovers the picture: 36.3 dB.",
        "Without a defence, an attacker recovers the picture: 85.0 dB.",
        "18.9 dB on the patches left alone",
        "85.0 dB against the picture as the model was fed it",
        "no mask to read",
        "mjp audit --seed 3",
        "2.11",
        "Rows (b)-MJP and (3)",
        "11.5 dB is what the data set’s mean image scores",
        "first block’s LayerNorm and residuals removed",
    ):
        assert wanted in page.said


def test_marks_stand_exactly_where_they_belong(tmp_path):
    page = page_of(tmp_path, whole())
    failed, unproven, aside = set(), set(), set()
    for classes, text in rows_of(page):
        number = re.search(r'<td class="n">([0-9.]+)', text)
        if number is None:
            continue
        failed |= {float(number[1])} if "solver failed, not proof of privacy" in text else set()
        aside |= {float(number[1])} if "but 18.9 dB" in text or "but 85.0 dB" in text else set()
        assert ("does not count" in text) == ("unproven" in classes.split())
        unproven |= {float(number[1])} if "unproven" in classes.split() else set()
    assert failed == {12.0, 12.5, 9.8, 11.0}
    assert aside == {12.4, 10.0}
    assert unproven == {11.0, 14.0}  # Undefended, `invert` has 12 dB where a guess has 13.


def test_a_number_without_its_undefended_attack_does_not_count(tmp_path):
    page = page_of(tmp_path, [record("bf16", "patch_solve", 17.0)])
    assert page.said.count("this attack was not tried without a defence") == 1


def test_an_attack_that_needs_the_defence_counts_only_where_it_succeeds():
    records = [
        record("none", "adaptive_solve", None),
        record("mjp=0.1", "adaptive_solve", 30.0),
        record("mjp=0.2", "adaptive_solve", 10.0),
    ]
    cells = {cell.defence: cell for cell in Audit.of(records).cells}
    assert not cells["mjp=0.1"].unproven
    assert cells["mjp=0.2"].unproven
    assert cells["mjp=0.2"].mark == "failed"


def test_patches_left_alone_that_are_recovered_are_no_failure(tmp_path):
    found = {"psnr_unmasked": 18.9, "psnr_masked": 8.0, "verdict": "The solver failed"}
    records = [
        record("none", "adaptive_solve", 85.0, "recovered"),
        record("mjp=0.27", "adaptive_solve", 12.4, "failed", informed=True, **found),
    ]
    cell = Audit.of(records).cells[1]
    assert (cell.level, cell.mark, cell.unproven) == ("traces", "elsewhere", "")
    page = page_of(tmp_path, records)
    assert "The solver failed" not in page.said
    wanted = "An attacker who knows the defence gets traces of the picture: 18.9 dB on the patches"
    assert wanted in page.said


def test_another_models_undefended_attack_does_not_count():
    records = [record("none", "dlg", 50.0, model="other"), record("bf16", "dlg", 12.0)]
    assert Audit.of(records).cells[1].unproven


GAPS = {
    "nothing": [],
    "one attack that applies to nothing": [record("none", "april", None)],
    "no numbers": [Record("audit", {"model": "m", "defence": "none", "attack": "a"}, {})],
    "no baseline": [
        record("bf16", "dlg", 9.0, baseline_mean_psnr=None, baseline_colour_psnr=None),
    ],
    "no level": [record("none", "dlg", 20.0, level=None, verdict=None)],
    "no interval": [record("none", "dlg", 20.0, psnr_low=None, psnr_high=None, gallery=None)],
    "applies to some": [record("none", "dlg", 20.0, applied=2)],
    "applies without a number": [record("none", "dlg", 20.0, psnr=None)],
    "not a number": [record("none", "dlg", 20.0, psnr=float("nan"), ssim=float("inf"))],
    "accuracy without attacks": [accuracy("none", 70.0)],
    "accuracy without a number": [record("none", "dlg", 20.0), accuracy("none", 1.0, top1=None)],
}


@pytest.mark.parametrize("gap", GAPS)
def test_gaps_give_a_page_and_figures_or_none(gap, tmp_path):
    page = page_of(tmp_path, GAPS[gap])
    check_page(page)
    assert "None" not in page.said.replace("None of the attacks", "")
    assert "nan" not in page.said.split()
    draw_tradeoff(GAPS[gap], tmp_path)
    draw_ratio_curve(GAPS[gap], tmp_path)
    draw_defences(GAPS[gap], tmp_path)


def test_missing_pieces_are_said(tmp_path):
    page = page_of(tmp_path, [record("none", "patch_solve", 85.0, "recovered")])
    assert "was not part of this audit" in page.said
    assert "Accuracy and gradient fidelity were not measured" in page.said
    assert "split" not in page.ids
    assert "pictures" not in page.ids


def test_hostile_labels_stay_text(tmp_path):
    evil = "<script>alert(1)</script>\"'><img src=https://x.test/a.png>"
    records = [
        record(evil, evil, 20.0, model=evil, reason=evil, verdict=evil, attack_about=evil),
        record("none", evil, None, model=evil, reason=evil),
        accuracy(evil, 50.0, model=evil, accuracy_note=evil),
    ]
    figures = {evil: draw_defences(records, tmp_path)[0]}
    page = page_of(tmp_path, records, figures, command=evil)
    assert len(page.all("script")) == 1  # Ours.
    assert [found["src"][:5] for found in page.all("img")] == ["data:"]
    assert "<script>alert(1)</script>" in page.said
    assert not any(name.startswith("on") for _, found in page.tags for name in found)


def test_settings_of_the_paper_read_the_right_picture(tmp_path):
    records = [
        record("none", "patch_solve", 85.0),
        record("mjp=0.27", "patch_solve", 9.0, client_psnr=44.44),
        record("mjp=0.1", "patch_solve", 33.33),
        accuracy("mjp=0.27", 61.2, accuracy_note=NOT_MEASURED),
    ]
    page = page_of(tmp_path, records)
    section = page.text.split('id="paper"')[1].split("</section>")[0]
    ours = section.split("The paper’s, as printed")[0]
    settings = re.findall(r"<td>([abc])</td>.*?class=\"n\">([^<]*)<.*?([0-9.]+)</td>", ours)
    assert [(setting, top1) for setting, top1, _ in settings] == [
        ("a", "–"),
        ("b", "61.2*"),
        ("c", "61.2*"),
    ]
    assert "44.44" in ours
    assert "9.00" in ours
    assert "33.33" not in ours


def test_figures_are_written_and_show_something(tmp_path):
    paths = figures_of(tmp_path)
    assert [path.name for path in paths] == [
        f"{name}.{kind}" for name in ("tradeoff", "ratio", "defences") for kind in ("png", "svg")
    ]
    for path in paths[::2]:
        pixels = np.asarray(Image.open(path).convert("RGB"))
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    tradeoff, ratio, defences = (path.read_text(encoding="utf-8") for path in paths[1::2])
    assert "hollow: accuracy under this defence not measured" in tradeoff
    assert "below this line nothing was recovered" in tradeoff
    assert "adaptive solve, patches left alone" in ratio
    assert "does not apply: adaptive solve" in defences


def test_no_curve_without_two_ratios_and_no_tradeoff_without_accuracy(tmp_path):
    records = [record("none", "dlg", 20.0), record("mjp=0.27", "dlg", 10.0)]
    assert draw_ratio_curve(records, tmp_path) == []
    assert draw_tradeoff(records, tmp_path) == []
    assert draw_grid([], tmp_path, "grid") == []
    assert not list(tmp_path.iterdir())


def test_a_grid_keeps_every_pixel(tmp_path):
    pixels = np.random.default_rng(0).random((32, 16, 3))
    rows = [
        GridRow("cat", [Panel(pixels, "original", heading="original"), Panel(None, "", "no mask")]),
        GridRow("dog", [Panel(pixels * 2 - 0.5, "clipped")]),
    ]
    (path,) = draw_grid(rows, tmp_path, "grid")
    drawn = np.asarray(Image.open(path).convert("RGB")).astype(float) / 255
    times = round(224 / 32)
    wanted = np.repeat(np.repeat(pixels, times, axis=0), times, axis=1)
    height, width = wanted.shape[:2]
    assert any(
        np.abs(drawn[top : top + height, left : left + width] - wanted).max() < 0.01
        for top in range(60)
        for left in range(60)
    )


def test_ratio_of_a_defence():
    assert mjp_ratio("none") == 0
    assert mjp_ratio("mjp=0.27") == 0.27
    assert mjp_ratio("mjp=0.27+bf16") is None
    assert mjp_ratio("shuffle=0.27") is None


def test_a_figure_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="neither PNG nor SVG"):
        write_page([], {"tradeoff": tmp_path / "a.pdf"}, tmp_path, command="")


def test_the_papers_privacy_rows():
    assert len(paper.PRIVACY) == 10
    by = {(row.model, row.setting): row for row in paper.PRIVACY}
    assert len(by) == 10
    assert by["DeiT-S", "a"].psnr == 18.94
    assert by["DeiT-S + MJP", "c"] == paper.Leak(
        "DeiT-S + MJP", "c", 62.9, 0.1706, 0.0338, 8.07, 0.0875, 0.8945
    )
    assert by["DeiT-S without PEs", "b"].ssim == 0.6655
    third, twin = by["DeiT-S + MJP without E_unk", "a"], by["DeiT-S + MJP", "b"]
    assert (third.mse, third.psnr, third.lpips) == (twin.mse, twin.psnr, twin.lpips)
