"""`mjp study` end to end, and every number of our study's documents against its records."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mjp.cli import main
from mjp.core.errors import ConfigError
from mjp.core.records import read_records
from mjp.models.checkpoint import pretrained_folder
from mjp.report import paper
from mjp.study import STUDIES, jobs_of, read_study

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "studies" / "paper"
sys.path.insert(0, str(PAPER))

from tables import Study, filled  # noqa: E402

SMALL = """
name = "small"
recipe = "digits"
set = { run = { epochs = 2, warmup_epochs = 1 }, model = { arguments = \
{ patch_size = 4, embed_dim = 32, depth = 1, num_heads = 2 } } }

[evaluations.jigsaws]
verb = "eval accuracy"
data = "digits"
ratios = [0.27, 0.5]
draws = 1
crop = 1.0
workers = 0

[[runs]]
name = "A"
variant = "A"

[[runs]]
name = "J"
variant = "J"
evaluations = ["jigsaws"]

[[runs]]
name = "pair"
models = ["A", "J"]
evaluations = ["jigsaws"]
"""
KERNELS = ("Haswell", "Prescott")
"""Kinds of BLAS kernels that every x86-64 processor of today has, and whose last digits differ."""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(small):
    """A study that was carried out, two processes at a time."""
    assert run(small, small.parent / "out", "--parallel", "2") == 0
    return small.parent / "out"


def run(file, out, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["study", str(file), "--out", str(out), "--device", "cpu", *arguments])
    return caught.value.code


def begin(file, out):
    command = [sys.executable, "-m", "mjp", "study", str(file), "--out", str(out)]
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, "--device", "cpu"], stdout=pipe, stderr=pipe, text=True)


def until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def written(*names):
    """What these jobs wrote, and when."""
    return {
        file: file.stat().st_mtime_ns
        for name in names
        for file in name.rglob("*")
        if file.is_file()
    }


def test_every_run_is_trained_and_evaluated(finished):
    kinds = [record.kind for record in read_records(finished / "J-0" / "train")]
    assert kinds.count("train epoch") == 2
    assert kinds.count("train end") == 1
    kinds = [record.kind for record in read_records(finished / "pair-0" / "jigsaws")]
    assert kinds.count("eval accuracy") == 2
    assert "eval difference" in kinds
    assert not (finished / "J-0" / "train" / "checkpoints").exists()


def test_what_is_done_is_not_done_again_and_may_be_moved(finished, small, tmp_path, capfd):
    moved = tmp_path / "elsewhere"
    shutil.copytree(finished, moved)
    before = written(moved)
    assert run(small, moved) == 0
    assert written(moved) == before
    out, err = capfd.readouterr()
    assert "0 jobs are to be done" in err
    assert out.count(" done ") == 3


def test_only_an_evaluation_whose_settings_changed_is_made_again(finished, small, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other.toml"
    shutil.copytree(finished, out)
    other.write_text(SMALL.replace("draws = 1", "draws = 2"), encoding="utf-8")
    trained, jigsaws = written(out / "J-0" / "train"), written(out / "J-0" / "jigsaws")
    assert run(other, out, "--only", "J-0") == 0
    assert written(out / "J-0" / "train") == trained
    assert written(out / "J-0" / "jigsaws") != jigsaws


def test_a_run_of_another_recipe_is_refused(finished, tmp_path, capfd):
    other = tmp_path / "other.toml"
    other.write_text(SMALL.replace("epochs = 2", "epochs = 3"), encoding="utf-8")
    before = written(finished)
    assert run(other, finished) == 2
    assert "was trained with another recipe" in capfd.readouterr().err
    assert written(finished) == before


def test_the_list_only_looks(small, tmp_path, capfd):
    assert run(small, tmp_path / "new", "--list", "--only", "J-0", "A-*") == 0
    out = capfd.readouterr().out
    assert "to do: train, jigsaws" in out
    assert "pair-0" not in out
    assert not (tmp_path / "new").exists()


def test_a_job_that_fails_keeps_no_other_from_being_done(finished, tmp_path, capfd):
    out, file = tmp_path / "out", tmp_path / "broken.toml"
    shutil.copytree(finished / "J-0", out / "J-0")
    text = SMALL.replace('variant = "A"', 'variant = "A"\nset = { init = "nowhere.safetensors" }')
    file.write_text(text.replace("draws = 1", "draws = 2"), encoding="utf-8")
    assert run(file, out) == 1
    err = capfd.readouterr().err
    assert "2 of 4 jobs failed. A-0/train: status 1: mjp: init 'nowhere.safetensors'" in err
    assert "pair-0/jigsaws: needs A-0/train, J-0/train" in err
    assert (out / "J-0" / "jigsaws" / "done.json").is_file()


def test_a_stopped_study_goes_on_and_comes_to_the_same(finished, tmp_path):
    out, file = tmp_path / "out", tmp_path / "longer.toml"
    longer = (
        SMALL.replace("epochs = 2", "epochs = 40").partition('name = "J"')[0].rstrip("[]runs\n")
    )
    file.write_text(longer, encoding="utf-8")
    process = begin(file, out)
    records = out / "A-0" / "train" / "records.jsonl"
    until(lambda: records.is_file() and "train epoch" in records.read_text())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "go on with the same command" in err
    assert not (out / "A-0" / "train" / "done.json").exists()
    assert "stopped at step" in (out / "A-0" / "train.log").read_text()
    assert run(file, out) == 0
    assert run(file, tmp_path / "whole") == 0
    curves = [
        [one.values["val_top1"] for one in read_records(folder / "A-0" / "train")
         if one.kind == "train epoch"]
        for folder in (out, tmp_path / "whole")
    ]  # fmt: skip
    assert len(curves[0]) == 40
    assert curves[0] == pytest.approx(curves[1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("ratios = ", "ration = "), "evaluation jigsaws: ration is unknown; did you mean ratios?"),
        (("draws = 1", 'draws = "one"'), "draws must be a whole number"),
        (('"eval accuracy"', '"train"'), "verb must be one of "),
        (('variant = "J"', 'variant = "K"'), "there is no variant 'K'"),
        (('name = "J"', 'name = "A"'), "must have different names"),
        (('["A", "J"]', '["A", "K"]'), "pair: no run 'K' with these seeds"),
        (('["A", "J"]', '["A", "J"]\nseeds = [1]'), "pair: no run 'A' with these seeds"),
        (('evaluations = ["jigsaws"]', 'evaluations = ["jigs"]'), "did you mean jigsaws?"),
        (('name = "pair"', 'name = "../pair"'), "'../pair' is no name"),
        (("epochs = 2", "epoch = 2"), "run.epoch is unknown; did you mean epochs?"),
        (("crop = 1.0", 'data = "{root}/x"'), "no TOML file"),
    ],
)
def test_mistakes_in_a_file_are_named_before_anything_is_begun(change, reason, tmp_path):
    (tmp_path / "wrong.toml").write_text(SMALL.replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(reason)):
        jobs_of(read_study(str(tmp_path / "wrong.toml")))


def test_a_run_that_is_timed_shares_the_machine_with_no_other(tmp_path, monkeypatch):
    from mjp.study import Pool, StudyOptions

    jobs = jobs_of(read_study(str(PAPER / "runs.toml")))
    first, alone = jobs[0], next(job for job in jobs if job.alone)
    pool = Pool(StudyOptions(device="cpu", parallel=2), tmp_path)
    assert pool._may_begin(alone)
    for running, job, may in ((first, jobs[5], True), (first, alone, False), (alone, first, False)):
        monkeypatch.setattr(pool, "_running", {running: None})
        assert pool._may_begin(job) == may


@pytest.mark.parametrize("path", [*STUDIES.glob("*.toml"), PAPER / "runs.toml"], ids=str)
def test_studies_can_be_read(path):
    assert jobs_of(read_study(str(path)))


def test_records_of_a_study_are_collected_without_its_folder(finished, small, tmp_path):
    into = tmp_path / "records.jsonl"
    command = [sys.executable, str(PAPER / "collect.py"), str(finished), "--file", str(small)]
    subprocess.run([*command, "--into", str(into)], check=True)
    text = into.read_text(encoding="utf-8")
    assert str(finished.parent) not in text
    study = Study(into)
    assert list(study.runs.run) == ["A", "J"]
    assert study.facts("J")["ratio"] > 0
    assert study.difference("J", "A", "consistency 0.5") is None  # A was not evaluated alone.
    kinds = [json.loads(line)["kind"] for line in text.splitlines()]
    assert [kinds.count(f"study {one}") for one in ("epoch", "accuracy", "jigsaw")] == [4, 1, 2]
    assert kinds.count("study difference") == 1 + 3 * 2


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_tables_of_the_documents_are_those_of_the_records_on_any_cpu(tmp_path, kernels):
    paths = [ROOT / "docs" / "study.md", PAPER / "README.md"]
    copies = [Path(shutil.copy(path, tmp_path)) for path in paths]
    command = [sys.executable, str(PAPER / "tables.py"), "--into", *map(str, copies)]
    subprocess.run(command, check=True, env={**os.environ, "OPENBLAS_CORETYPE": kernels})
    for copy, path in zip(copies, paths, strict=True):
        assert copy.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def study():
    return Study()


def test_a_changed_number_in_a_table_is_seen(study):
    text = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    number = re.search(r"\| (\d\d\.\d\d)", text)
    changed = text[: number.start(1)] + "99.99" + text[number.end(1) :]
    assert filled(changed, study) == text


NUMBER = re.compile(r"(?<![\w.^-])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+\.\d+|\.\d+|\d+)(?![\w]|\.\d)")
SETTINGS = {
    *("25", "18", "7", "9", "3", "4", "8", "1", "2"),  # Claims that were counted, and "1 point".
    *(".5", ".03", ".09", ".15", ".21", ".27", ".9", "0", "1.3", "300", "50,000", "100", "20"),
    *("500", "64", "192", "14", "16", "48", "144", "39", "768", "256", "200", "224", "95"),
    *("21", "32"),  # Levels of accuracy are in the heads of the table.
}
"""What the text says of how things were run."""
ELSEWHERE = {
    *(".951", "5.562", ".694", ".836", ".211", ".257", "3.5"),  # `mjp probe`, as the text says.
    *("0.3", "58", "43.2", "3"),  # docs/method.md; the paper's errors, as printed.
}


def papers_numbers():
    """What the paper prints, and its differences from row to row."""
    rows = [*paper.ABLATION.values(), *paper.PLAIN.values(), *paper.WITH_MJP.values()]
    rows += paper.RATIOS.values()
    for name in ("top1", "consistency", "diff_norm"):
        values = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        yield from values
        yield from (one - other for one in values for other in values)
    for row in paper.REGRESSION.values():
        yield from (row.one[0], row.two[0])
    for row in paper.ROBUSTNESS.values():
        yield from (row.mce, row.printed_mean)


def test_every_number_of_the_text_is_in_the_tables_or_the_paper(study):
    text = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\([^)]*\)|`[^`]*`|<!--.*?-->", " ", text, flags=re.DOTALL)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    measured = {
        round(abs(float(one.replace(",", ""))), 9) for one in NUMBER.findall("\n".join(rows))
    }
    twice = (study.values("gamma-0.27", of)["1"] for of in ("top1", "consistency 0.5"))
    measured |= {round(value, 2) for value in twice}
    known = {round(abs(one), digits) for one in papers_numbers() for digits in (1, 2, 3)} | measured
    unknown = [
        one
        for one in NUMBER.findall(prose)
        if one not in SETTINGS | ELSEWHERE and abs(float(one.replace(",", ""))) not in known
    ]
    assert unknown == []


def test_the_readme_tells_what_the_records_say(study):
    expected = []
    for of, digits in (("top1", 2), ("consistency 0.5", 1)):
        plain, ours, most = (
            f"{study.values(run, of).mean():.{digits}f}" for run in ("A", "J", "gamma-0.27")
        )
        expected += [f"{plain} → {ours}", f"{most} at γ = .27"]
    for run in ("J", "gamma-0.27"):
        for of in ("top1", "consistency 0.5", "consistency 0.03"):
            expected.append(study.difference(run, "A", of).text(1))
    cost = study.difference("cost-J", "cost-A", "epoch_seconds").text(1)
    expected.append(cost.replace(" [", " % [") + " an epoch")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [one for one in expected if one not in readme] == []


@pytest.mark.parametrize(
    ("name", "run", "attacks"),
    [
        ("mini-imagenet-plain", "A", ["patch_solve"]),
        ("mini-imagenet-mjp", "gamma-0.27", ["patch_solve", "adaptive_solve"]),
    ],
)
def test_model_cards_tell_what_the_records_say(study, name, run, attacks):
    first = {
        of: study.values(run, of)["0"] for of in ("top1", "consistency 0.27", "consistency 0.5")
    }
    expected = [f"| {first['top1']:.2f} %"]
    expected += [f"{first[f'consistency {ratio}']:.1f} %" for ratio in (0.27, 0.5)]
    for of in (*(f"psnr {attack}" for attack in attacks), "psnr guess"):
        expected.append(f"{study.values(run, of)['0']:.1f} dB")
    card = (pretrained_folder(name) / "README.md").read_text(encoding="utf-8")
    assert [one for one in expected if one not in card] == []


def test_the_records_are_of_runs_that_the_study_lists_and_name_no_folder(study):
    jobs = jobs_of(read_study(str(PAPER / "runs.toml")))
    listed = {job.run for job in jobs}
    assert {f"{one.run}-{one.seed}" for one in study.runs.itertuples()} <= listed
    content = (PAPER / "records.jsonl").read_text(encoding="utf-8")
    assert len(content) < 1_000_000
    for text in re.findall(r'"((?:[^"\\]|\\.)*)"', content):
        assert not text.startswith(("/", "~", "..")), text
