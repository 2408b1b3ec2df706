"""The documents say what the records in results/ say, and the records are fit for a repository."""

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from mjp.commands.study_plan import read_study
from mjp.models.checkpoint import pretrained_folder
from mjp.report.runs import RECORDS, find_runs
from mjp.report.study import SECONDS
from mjp.report.study_derived import derive
from mjp.report.study_markdown import fill_document
from mjp.report.study_reading import studies_of
from mjp.report.study_tables import SAME, SAME_LEAST, TOP1

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
STUDY = ROOT / "docs" / "study.md"
ATTACKS = ("patch_solve", "adaptive_solve")
FILES = sorted(RESULTS.rglob(RECORDS))


@pytest.mark.parametrize("kernels", ["Haswell", "Prescott"])
def test_the_study_page_is_what_its_command_writes_on_any_cpu(tmp_path, kernels):
    copy = tmp_path / STUDY.name
    copy.write_text(STUDY.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "mjp", "report", str(RESULTS), "--into", str(copy)]
    subprocess.run(command, check=True, env={**os.environ, "OPENBLAS_CORETYPE": kernels})
    assert copy.read_text(encoding="utf-8") == STUDY.read_text(encoding="utf-8")
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {path.name for path in STUDY.parent.glob("study-*.png")}
    assert drawn == set(re.findall(r"\]\((study-[^)]*\.png)\)", copy.read_text(encoding="utf-8")))


def test_a_changed_number_in_the_page_is_seen(tmp_path):
    copy = tmp_path / STUDY.name
    text = STUDY.read_text(encoding="utf-8")
    number = re.search(r"\| (\d\d\.\d\d)", text)
    assert number is not None
    changed = text[: number.start(1)] + "99.99" + text[number.end(1) :]
    copy.write_text(changed, encoding="utf-8")
    fill_document([RESULTS], copy)
    assert copy.read_text(encoding="utf-8") == text


def test_the_records_are_whole_and_small():
    assert FILES
    assert sum(path.stat().st_size for path in RESULTS.rglob("*")) < 1_000_000
    for run in find_runs([RESULTS]):
        assert run.problems == ()
        assert run.entries


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_the_records_name_no_folder(path):
    for text in re.findall(r'"((?:[^"\\]|\\.)*)"', path.read_text(encoding="utf-8")):
        assert not text.startswith(("/", "~", "..")), text


def test_the_records_are_of_runs_that_the_study_lists():
    tasks = {(task.entry.name, task.seed): task for task in read_study("paper", "/data").tasks}
    for run in find_runs([RESULTS]):
        for record in run.of("study run"):
            told = record.conditions
            task = tasks[str(told["run"]), int(str(told["seed"]))]
            assert told["tables"] == " ".join(task.entry.tables)
            if task.recipe is not None:
                assert told["ratio"] == task.recipe.mjp.ratio
                assert told["epochs"] == task.recipe.run.epochs


@pytest.mark.parametrize(
    ("name", "run", "leaks"),
    [
        ("mini-imagenet-plain", "A", {"patch_solve": "none"}),
        ("mini-imagenet-mjp", "gamma-0.27", dict.fromkeys(ATTACKS, "mjp=0.27")),
    ],
)
def test_model_cards_tell_what_the_records_say(name, run, leaks):
    card = (pretrained_folder(name) / "README.md").read_text(encoding="utf-8")
    found = [
        record
        for one in find_runs([RESULTS])
        for record in one.of("study accuracy", "study jigsaw", "study leak")
        if record.conditions["run"] == run and record.conditions["seed"] == 0
    ]
    expected = []
    for record in found:
        told, values = record.conditions, record.values
        if record.kind == "study accuracy":
            expected.append(f"| {values['top1']:.2f} %")
        elif record.kind == "study jigsaw" and told["ratio"] in (0.27, 0.5):
            expected.append(f"{values['consistency']:.1f} %")
        elif record.kind == "study leak" and leaks.get(told["attack"]) == told["defence"]:
            expected += [f"{values['psnr']:.1f} dB", f"{values['baseline_mean_psnr']:.1f} dB"]
    assert len(expected) == 3 + 2 * len(leaks)
    assert [one for one in expected if one not in card] == []


def test_the_readme_tells_what_the_records_say():
    records = [one.record for run in find_runs([RESULTS]) for one in run.entries]
    view = derive(studies_of(records)[0])
    runs = view.study.runs
    expected = []
    for quantity, digits in ((TOP1, 2), (SAME, 1)):
        plain, ours = (view.sum(runs[name], quantity).spread.mean for name in "AJ")
        expected.append(f"{plain:.{digits}f} → {ours:.{digits}f}")
        most = view.sum(runs["gamma-0.27"], quantity).spread.mean
        expected.append(f"{most:.{digits}f} at γ = .27")
    for name, quantity in product(("J", "gamma-0.27"), (TOP1, SAME, SAME_LEAST)):
        found = view.pair(runs[name], runs["A"], quantity).comparison
        assert found.over == "seeds"
        expected.append(f"{found.difference:+.1f} [{found.low:+.1f}…{found.high:+.1f}]")
    cost = view.pair(runs["cost-J"], runs["cost-A"], SECONDS).comparison
    expected.append(f"{cost.difference:+.1f} % [{cost.low:+.1f}…{cost.high:+.1f}] an epoch")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [one for one in expected if one not in readme] == []
