"""`mjp study` end to end: small runs on digits, skipped when done, gone on with when stopped."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mjp.cli import main
from mjp.commands import study_pool
from mjp.commands.study_known import read_known
from mjp.commands.study_plan import read_study
from mjp.commands.study_records import collect, read_errors, read_scores
from mjp.commands.study_work import write_scores
from mjp.core.bootstrap import Estimate
from mjp.core.errors import ConfigError
from mjp.evaluate.jigsaw import JigsawSettings, difference
from mjp.report.runs import RECORDS, read_run
from mjp.train import runs
from mjp.train.recipe import read_recipe
from tests.forks import Fork, forking
from tests.report.tracing import untraced

STUDY = """
name = "small"
title = "A small study"
recipe = "digits"
set = { run = { epochs = 3, warmup_epochs = 1 }, mjp = { ratio = 0.27 }, model = { arguments = \
{ patch_size = 4, embed_dim = 32, depth = 1, num_heads = 2 } } }

[evaluations.jigsaws]
verb = "accuracy"
data = "digits"
ratios = [0.27, 0.5]
draws = 2
crop = 1.0
workers = 0

[evaluations.positions]
verb = "positions"
umap = false
repeats = 2

[[runs]]
name = "A"
variant = "A"
seeds = [0, 1]
tables = ["ablation", "convergence"]
evaluations = ["jigsaws", "positions"]

[[runs]]
name = "J"
label = "J: MJP"
variant = "J"
seeds = [0, 1]
tables = ["ablation", "convergence"]
baseline = "A"
evaluations = ["jigsaws"]
"""
TIMES = {"seconds", "epoch_seconds", "images_per_second"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Processes that have everything imported."""
    monkeypatch.setattr(study_pool, "CONTEXT", forking())


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "study.toml"
    path.write_text(STUDY, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def ran(file, tmp_path_factory):
    """A study that was carried out, two runs at a time."""
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_pool, "CONTEXT", forking())
        assert run(file, out, "--parallel", 2) == 0
    return out


def run(file, out, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["study", str(file), "--out", str(out), "--device", "cpu", *map(str, arguments)])
    return caught.value.code


def records(out, *kinds):
    return read_run(out / RECORDS, "out").of(*kinds)


def without_times(found):
    return [
        (
            one.kind,
            dict(one.conditions),
            {name: value for name, value in one.values.items() if name not in TIMES},
        )
        for one in found
    ]


def test_all_runs_are_measured(ran):
    found = records(ran, "study run")
    assert [(one.conditions["run"], one.conditions["seed"]) for one in found] == [
        *(("A", 0), ("A", 1), ("J", 0), ("J", 1))
    ]
    for one in found:
        assert one.conditions["parallel"] == 2
        assert one.values["parameters"] > 0
        assert 0 <= one.values["top1"] <= 100
    assert len(records(ran, "study epoch")) == 4 * 3
    assert len(records(ran, "study jigsaw")) == 4 * 2
    assert len(records(ran, "study positions")) == 2


def test_the_evaluation_finds_the_accuracy_that_training_ended_with(ran):
    last = {
        (one.conditions["run"], one.conditions["seed"]): one.values["top1"]
        for one in records(ran, "study run")
    }
    for one in records(ran, "study accuracy"):
        told = one.conditions["run"], one.conditions["seed"]
        assert one.values["top1"] == pytest.approx(last[told], abs=1e-3)


def test_runs_are_compared_with_their_baseline_image_by_image(ran):
    found = {
        (one.conditions["seed"], one.conditions["value"], one.conditions["ratio"]): one
        for one in records(ran, "study difference")
    }
    jigsaws = {
        (one.conditions["run"], one.conditions["seed"], one.conditions["ratio"]): one.values
        for one in records(ran, "study jigsaw")
    }
    assert len(found) == 2 * (1 + 3 * 2)
    for (seed, value, ratio), one in found.items():
        assert one.conditions["than"] == "A"
        if ratio is not None:
            expected = jigsaws["J", seed, ratio][value] - jigsaws["A", seed, ratio][value]
            assert one.values["difference"] == pytest.approx(expected, abs=2e-3)


def test_no_record_names_a_folder_of_this_machine(ran):
    text = (ran / RECORDS).read_text(encoding="utf-8")
    assert str(ran) not in text
    assert str(ran.parent) not in text


def test_every_number_of_the_page_comes_from_a_record(ran):
    page = (ran / "report.html").read_text(encoding="utf-8")
    assert "A small study" in page
    wrong, checked = untraced(page)
    assert not wrong
    assert checked > 50


def test_what_is_done_is_not_done_again(ran, file, capfd):
    before = {path: path.stat().st_mtime_ns for path in ran.glob("*/*/records.jsonl")}
    assert run(file, ran) == 0
    out, err = capfd.readouterr()
    assert "4 of 4 runs are done" in err
    assert f"report: {ran / 'report.html'}" in out
    assert before == {path: path.stat().st_mtime_ns for path in ran.glob("*/*/records.jsonl")}


def test_a_finished_study_can_be_moved(ran, file, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(ran, moved)
    assert run(file, moved) == 0
    assert (moved / RECORDS).read_text() == (ran / RECORDS).read_text()


def test_only_an_evaluation_whose_settings_changed_is_made_again(ran, file, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other.toml"
    shutil.copytree(ran, out)
    other.write_text(STUDY.replace("repeats = 2", "repeats = 3"), encoding="utf-8")
    trained = (out / "A-0" / "train" / RECORDS).stat().st_mtime_ns
    jigsaws = (out / "A-0" / "jigsaws" / RECORDS).stat().st_mtime_ns
    positions = (out / "A-0" / "positions" / RECORDS).stat().st_mtime_ns
    assert run(other, out, "--only", "A-0") == 0
    assert (out / "A-0" / "train" / RECORDS).stat().st_mtime_ns == trained
    assert (out / "A-0" / "jigsaws" / RECORDS).stat().st_mtime_ns == jigsaws
    assert (out / "A-0" / "positions" / RECORDS).stat().st_mtime_ns != positions


def test_a_run_of_another_recipe_is_refused(ran, file, tmp_path, capfd):
    other = tmp_path / "other.toml"
    other.write_text(STUDY.replace("epochs = 3", "epochs = 4"), encoding="utf-8")
    for more in ((), ("--list",)):
        assert run(other, ran, *more) == 2
        assert "run.epochs was 3 and is now 4" in capfd.readouterr().err


def test_the_list_says_what_is_left(ran, file, tmp_path, capfd):
    assert run(file, tmp_path / "new", "--list") == 0
    out = capfd.readouterr().out
    assert "train, jigsaws, positions" in out
    assert not (tmp_path / "new").exists()


def test_runs_made_elsewhere_count_as_done_and_are_told_of(ran, file, tmp_path, capfd):
    out = tmp_path / "out"
    shutil.copytree(ran, out)
    for name in ("A-0", "J-0"):  # Only their records are left.
        shutil.rmtree(out / name)
    known = tmp_path / "known.jsonl"
    shutil.copy(ran / RECORDS, known)
    assert run(file, out, "--known", known, "--list") == 0
    assert capfd.readouterr().out.count("it is known") == 2
    renamed = tmp_path / "renamed.toml"
    renamed.write_text(STUDY.replace("J: MJP", "J: jigsaw"), encoding="utf-8")
    assert run(renamed, out, "--known", known) == 0
    assert "4 of 4 runs are done" in capfd.readouterr().err
    expected = (ran / RECORDS).read_text().replace("J: MJP", "J: jigsaw")
    assert sorted((out / RECORDS).read_text().splitlines()) == sorted(expected.splitlines())
    assert not (out / "A-0").exists()


def test_a_known_run_is_not_compared_image_by_image_with_one_made_here(ran, file, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(ran, out)
    shutil.rmtree(out / "A-0")
    assert run(file, out, "--known", ran / RECORDS) == 0
    assert {one.conditions["seed"] for one in records(out, "study difference")} == {1}
    assert len(records(out, "study run")) == 4


def test_a_known_run_is_made_again_where_that_is_asked_for(ran, file, tmp_path, capfd):
    out = tmp_path / "out"
    arguments = ("--known", ran / RECORDS, "--only", "A-0")
    assert run(file, out, *arguments, "--fresh") == 0
    assert "0 of 1 runs are done" in capfd.readouterr().err
    assert (out / "A-0" / "train" / RECORDS).is_file()
    assert len(records(out, "study run")) == 4


def test_what_is_known_stays_told_when_a_study_is_stopped(ran, file, tmp_path):
    """Differences of known runs cannot be worked out again: their folders are elsewhere."""
    known = read_known((ran / RECORDS,), read_study(str(file), None))
    found = collect(read_study(str(file), None), tmp_path, known, compared=False)
    assert len([one for one in found if one.kind == "study difference"]) == 2 * (1 + 3 * 2)


def test_the_list_names_what_known_runs_lack(ran, file, tmp_path, capfd):
    known = tmp_path / RECORDS
    lines = (ran / RECORDS).read_text().splitlines(keepends=True)
    known.write_text("".join(one for one in lines if '"study positions"' not in one))
    assert run(file, tmp_path / "out", "--known", known, "--list") == 0
    assert capfd.readouterr().out.count("it is known, but not its positions") == 2


def test_a_known_run_that_shared_the_machine_does_not_become_one_that_was_alone(ran, file):
    study = read_study(str(file), None)
    timed = replace(
        study,
        tasks=tuple(replace(one, entry=replace(one.entry, alone=True)) for one in study.tasks),
    )
    known = read_known((ran / RECORDS,), timed)
    found = collect(timed, ran / "nowhere", known)
    assert {one.conditions["alone"] for one in found if one.kind == "study run"} == {False}


def test_starting_over_leaves_no_evaluation_of_the_model_before(ran, file, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(ran, out)
    arguments = ("--only", "A-0", "--fresh", "--without", "positions", "jigsaws")
    assert run(file, out, *arguments) == 0
    assert (out / "A-0" / "train" / RECORDS).is_file()
    assert not (out / "A-0" / "positions").exists()
    told = records(out, "study positions", "study accuracy")
    assert not [one for one in told if (one.conditions["run"], one.conditions["seed"]) == ("A", 0)]
    assert (out / "J-0" / "jigsaws").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace('"epochs": 3', '"epochs": 9'), "A-0 was made with epochs 9"),
        (lambda text: text.replace("'depth': 1", "'depth': 7"), "A-0 was made with arguments {"),
        (lambda text: text.replace('"study": "small"', '"study": "large"'), "is of study large"),
        (lambda text: "", "holds no result yet"),
        (lambda text: text.replace('"study": "small", ', ""), "tells of no run of a study"),
        (lambda text: text.replace('"study run"', '"study walk"', 1), "tells 0 times how A-0 was"),
        (lambda text: text[:-40] + "\n", "is no record"),
    ],
    ids=["another run", "another model", "another study", "empty", "no study", "half", "broken"],
)
def test_records_of_other_runs_are_refused(ran, file, tmp_path, capfd, change, reason):
    known = tmp_path / RECORDS
    known.write_text(change((ran / RECORDS).read_text()), encoding="utf-8")
    assert run(file, tmp_path / "out", "--known", known) == 2
    assert reason in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(file, tmp_path / "out", "--known", tmp_path / "none") == 2
    assert "there is no such file" in capfd.readouterr().err


def test_a_folder_may_be_named_for_the_records_in_it(ran, file, tmp_path, capfd):
    assert run(file, tmp_path / "out", "--known", ran, "--list") == 0
    assert capfd.readouterr().out.count("it is known") == 4


def test_a_folder_in_which_a_study_works_is_left_alone(ran, file, capfd):
    with (ran / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run(file, ran) == 2
    assert "another study works in" in capfd.readouterr().err


def test_looking_and_removing_contradict_each_other(ran, file, capfd):
    assert run(file, ran, "--list", "--fresh") == 2
    assert "--list only looks" in capfd.readouterr().err
    assert (ran / "A-0" / "train" / RECORDS).is_file()


def test_what_is_wrong_leaves_nothing_behind(file, tmp_path, capfd):
    out = tmp_path / "out"
    assert run(file, out, "--root", tmp_path / "nowhere") == 2
    assert "there is no such folder; name that of the data" in capfd.readouterr().err
    assert run(file, out, "--device", "cuda:99") == 2
    assert not out.exists()


def test_torchrun_is_refused(file, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(file, tmp_path / "out") == 2
    assert "without torchrun" in capfd.readouterr().err


def test_a_run_that_fails_does_not_keep_the_others_from_being_done(file, tmp_path, capfd):
    broken = tmp_path / "broken.toml"
    text = STUDY.replace(
        'name = "A"\nvariant = "A"\nseeds = [0, 1]',
        'name = "A"\nvariant = "A"\nset = { init = "nowhere.safetensors" }',
    ).replace("seeds = [0, 1]", "seeds = [0]")
    broken.write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    assert run(broken, out) == 1
    assert "1 run failed. A-0: init 'nowhere.safetensors'" in capfd.readouterr().err
    text = text.replace('name = "J"', 'name = "J"\nset = { init = "nowhere.safetensors" }')
    broken.write_text(text, encoding="utf-8")
    assert run(broken, tmp_path / "both") == 1
    assert "2 runs failed. A-0, J-0: init 'nowhere.safetensors'" in capfd.readouterr().err
    assert [one.conditions["run"] for one in records(out, "study run")] == ["J"]
    assert (out / "report.html").is_file()


def test_a_stopped_study_goes_on_and_comes_to_the_same(tmp_path):
    out, file = tmp_path / "out", tmp_path / "longer.toml"
    file.write_text(STUDY.replace("epochs = 3", "epochs = 12"), encoding="utf-8")
    chosen = ("--only", "J-0", "--device", "cpu")
    process = Fork(["study", file, "--out", out, *chosen], first=_forked_workers)
    told = out / "J-0" / "train" / RECORDS
    until(lambda: told.is_file() and "train epoch" in told.read_text())
    (worker,) = processes_writing_to(out / "J-0" / "log.txt")
    os.kill(worker, signal.SIGSTOP)  # It would be done before the study hears and tells it.
    process.send_signal(signal.SIGINT)
    until(lambda: is_pending(signal.SIGTERM, worker))
    os.kill(worker, signal.SIGCONT)
    printed, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with the same command" in err
    assert "[0/1] J-0" in printed
    assert "stopped at step" in printed
    assert "--resume" not in printed
    assert not list(out.glob("*/*/done.json"))
    assert run(file, out, *chosen) == 0
    assert run(file, tmp_path / "whole", *chosen) == 0
    kinds = ("study epoch", "study accuracy", "study jigsaw")
    whole = records(tmp_path / "whole", *kinds)
    assert len(whole) == 12 + 1 + 2
    assert without_times(records(out, *kinds)) == without_times(whole)
    assert not (out / "J-0" / "train" / "checkpoints").exists()


def test_a_run_whose_process_is_killed_fails_and_the_others_are_done(file, tmp_path):
    out = tmp_path / "out"
    asked = ["study", file, "--out", out, "--device", "cpu", "--only", "A-0", "J-0"]
    process = Fork([*asked, "--parallel", "1"], first=_forked_workers)
    until(lambda: (out / "A-0" / "train" / runs.RECIPE).is_file())
    (worker,) = processes_writing_to(out / "A-0" / "log.txt")
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "1 run failed. A-0: its process ended with status -9" in err
    assert [one.conditions["run"] for one in records(out, "study run")] == ["J"]


def test_processes_that_start_are_kept_from_ctrl_c_and_the_study_is_not():
    """Until it has left the terminal's group, a process gets what is typed there."""
    asked = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with study_pool._interrupts_held():
        started = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert started.stdout == "True\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def processes_writing_to(path):
    """The processes whose standard output is this file."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(process / "fd" / "1")) == path.resolve():
                found.append(int(process.name))
    return found


def is_pending(number, process):
    """Whether a signal was sent to a process that did not take it yet."""
    status = Path(f"/proc/{process}/status").read_text()
    (pending,) = (line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending, 16) >> (number - 1) & 1)


def _forked_workers():
    study_pool.CONTEXT = forking()


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_kept_scores_give_the_difference_that_was_measured(ran):
    scores = [read_scores(ran / f"{name}-0" / "jigsaws" / "scores.safetensors") for name in "AJ"]
    found = difference(scores[0], scores[1], JigsawSettings((0.27, 0.5), 2, 0))
    told = {
        (one.conditions["value"], one.conditions["ratio"]): one.values
        for one in records(ran, "study difference")
        if one.conditions["seed"] == 0
    }
    for key, estimate in found.items():
        assert isinstance(estimate, Estimate)
        assert told[key]["difference"] == pytest.approx(estimate.mean, abs=1e-4)


def test_a_run_that_is_timed_shares_the_machine_with_no_other(file, tmp_path):
    first, second, *_ = read_study(str(file), None).tasks
    alone = replace(second, entry=replace(second.entry, alone=True))
    pool = study_pool.Pool(tmp_path, "cpu", 2, None)
    assert pool._may_begin(first)
    assert pool._may_begin(alone)
    for task, other, may in ((first, second, True), (first, alone, False), (alone, first, False)):
        pool._processes = [study_pool._Process(None, None, task)]
        assert pool._may_begin(other) == may
    pool._processes = [study_pool._Process(None, None, one) for one in (first, second)]
    assert not pool._may_begin(first)


def test_scores_that_cannot_be_read_are_left_out(tmp_path, ran):
    scores = read_scores(ran / "A-0" / "jigsaws" / "scores.safetensors")
    path = tmp_path / "scores.safetensors"
    write_scores(path, scores)
    again = read_scores(path)
    assert (again.same == scores.same).all()
    assert (again.moved == scores.moved).all()
    path.write_bytes(path.read_bytes()[:100])
    assert read_scores(path) is None
    assert read_scores(tmp_path / "none") is None


def test_errors_under_corruption_are_compared_image_by_image(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {str(one): rng.integers(2, size=40).astype(np.uint8) for one in range(5)}
    more = {str(one): rng.integers(2, size=40).astype(np.uint8) for one in range(5)}
    (tmp_path / "corruptions").mkdir()
    for name, content in (("fog-1a", arrays), ("snow-1a", more), ("clean-1a", {"0": arrays["0"]})):
        save_file(content, tmp_path / "corruptions" / f"{name}.safetensors")
    expected = np.mean([*arrays.values(), *more.values()], axis=0)
    np.testing.assert_allclose(read_errors(tmp_path), expected)
    save_file({"0": arrays["0"][:7]}, tmp_path / "corruptions" / "frost-1a.safetensors")
    assert read_errors(tmp_path) is None
    assert read_errors(tmp_path / "nowhere") is None


def test_a_run_goes_on_with_the_same_weights_from_another_folder(tmp_path):
    recipe = replace(read_recipe("digits"), init="/here/weights.safetensors")
    runs.write_recipe(tmp_path, recipe)
    runs.check_same(tmp_path, replace(recipe, init="/there/weights.safetensors"))
    with pytest.raises(ConfigError, match=r"init was 'weights.safetensors' and is now 'other"):
        runs.check_same(tmp_path, replace(recipe, init="/here/other.safetensors"))


def test_records_are_lines_of_json(ran):
    for line in (ran / RECORDS).read_text(encoding="utf-8").splitlines():
        assert json.loads(line)["kind"].startswith("study ")
