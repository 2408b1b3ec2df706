"""Nothing is lost: runs are killed, stopped, starved of disk and fed damaged checkpoints."""

import os
import random
import resource
import shutil
import signal

import pytest

from mjp.train import folder
from tests.train.running import (
    EVERYTHING,
    assert_same,
    finish,
    outcome,
    records,
    start,
    train,
    wait_for_records,
)

OFTEN = ("--run.checkpoint-minutes", "0.005")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that nobody interrupts."""
    out = tmp_path_factory.mktemp("straight") / "run"
    assert train(out, *EVERYTHING) == 0
    return out


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_killed_anywhere_comes_to_bitwise_the_same(seed, straight, tmp_path):
    draw = random.Random(seed)
    out = tmp_path / "run"
    process = start(out, *EVERYTHING, *OFTEN)
    wait_for_records(out, draw.randint(2, 9), process)
    process.kill()
    process.communicate()
    (out / "records.jsonl").open("a").write('{"kind": "half a li')  # As if killed in mid-write.
    again = start(out, *EVERYTHING, *OFTEN, "--resume")
    if seed:
        wait_for_records(out, draw.randint(10, 12), again)
        again.kill()
        again.communicate()
        again = start(out, *EVERYTHING, *OFTEN, "--resume")
    code, _, err = finish(again)
    assert code == 0, err
    assert_same(out, straight)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_writes_a_checkpoint_and_exits(number, status, straight, tmp_path):
    out = tmp_path / "run"
    process = start(out, *EVERYTHING, "--data.workers", "2", "--data.feed", "resident")
    wait_for_records(out, 3, process)
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == status, err
    assert "go on with --resume" in err
    assert "Traceback" not in err
    [checkpoint] = (out / "checkpoints").glob("step-*")
    assert str(checkpoint) in err
    shutil.copytree(out, tmp_path / "copy")
    assert train(out, *EVERYTHING, "--data.workers", "2", "--resume") == 0
    assert outcome(out)[1] == outcome(straight)[1]


def test_a_signal_stops_a_run_with_workers_cleanly(tmp_path):
    out = tmp_path / "run"
    process = start(out, "--data.feed", "workers", "--data.workers", "2")
    wait_for_records(out, 2, process)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130, err
    assert "Traceback" not in err


def test_a_run_with_workers_and_drop_path_is_resumed_bitwise_after_a_signal_to_its_group(tmp_path):
    """As torchrun and schedulers send it; the workers must not die before the checkpoint."""
    flags = ("--data.feed", "workers", "--data.workers", "1", "--model.drop-path", "0.3")
    assert train(tmp_path / "straight", *flags) == 0
    out = tmp_path / "run"
    process = start(out, *flags, new_group=True)
    wait_for_records(out, 3, process)
    os.killpg(process.pid, signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 143, err
    assert train(out, *flags, "--resume") == 0
    assert_same(out, tmp_path / "straight")


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory):
    """A run that wrote a checkpoint after every step."""
    out = tmp_path_factory.mktemp("checkpointed") / "run"
    assert train(out, "--run.checkpoint-minutes", "0") == 0
    return out


def test_the_last_two_checkpoints_are_kept_beside_the_best(checkpointed):
    names = sorted(path.name for path in (checkpointed / "checkpoints").iterdir())
    assert names == ["step-000000044", "step-000000045"]
    assert (checkpointed / "best" / "model.safetensors").is_file()


@pytest.fixture
def stopped(checkpointed, tmp_path):
    """A run with two checkpoints that was stopped before its end."""
    out = shutil.copytree(checkpointed, tmp_path / "run")
    for path in ("final", "best"):
        shutil.rmtree(out / path)
    return out


@pytest.mark.parametrize("damage", ["truncated", "missing", "no state"])
def test_an_unreadable_checkpoint_falls_back_to_the_one_before(stopped, damage, capsys):
    newest = stopped / "checkpoints" / "step-000000045"
    [tensors] = newest.glob("*.safetensors")
    if damage == "truncated":
        tensors.write_bytes(tensors.read_bytes()[:5000])
    elif damage == "missing":
        tensors.unlink()
    else:
        (newest / "state.json").write_text("{")
    capsys.readouterr()
    assert train(stopped, "--resume") == 0
    err = capsys.readouterr().err
    assert f"checkpoint {newest} cannot be read" in err
    assert "resuming at step 44 of 45" in err


def test_no_readable_checkpoint_is_an_error_that_loses_nothing(stopped, capsys):
    for path in (stopped / "checkpoints").glob("step-*/*.safetensors"):
        path.write_bytes(b"")
    before = (stopped / "records.jsonl").read_bytes()
    assert train(stopped, "--resume") == 1
    assert "none of the checkpoints" in capsys.readouterr().err
    assert (stopped / "records.jsonl").read_bytes() == before


def starve():
    """From the second checkpoint on, no file can grow beyond a few bytes: what a full disk does."""
    write = folder.write_checkpoint

    def starved(*arguments):
        if folder.checkpoints(arguments[0]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        return write(*arguments)

    folder.write_checkpoint = starved


def test_a_full_disk_is_said_and_keeps_the_last_good_checkpoint(tmp_path):
    out = tmp_path / "run"
    code, _, err = finish(start(out, "--run.checkpoint-minutes", "0", first=starve))
    assert code == 1, err
    assert "cannot be written" in err
    assert "File too large" in err
    assert "the last good one is" in err
    assert "Traceback" not in err
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-000000001"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert train(out, "--resume") == 0


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step(tmp_path, capsys):
    out = tmp_path / "run"
    flags = ("--optimizer.learning-rate", "1e30", "--optimizer.clip", "0")
    assert train(out, *flags, "--run.checkpoint-minutes", "0") == 1
    err = capsys.readouterr().err
    assert "the loss is no number any more since step" in err
    assert "the last good checkpoint is" in err
    step = int(err.split("since step ")[1].split()[0])
    newest = sorted((out / "checkpoints").iterdir())[-1]
    assert newest.name == f"step-{step:09d}"
    assert str(newest) in err


def test_another_recipe_is_not_resumed(stopped, capsys):
    before = (stopped / "records.jsonl").read_bytes()
    assert train(stopped, "--resume", "--optimizer.learning-rate", "0.5") == 2
    err = capsys.readouterr().err
    assert "optimizer.learning_rate was 0.002 and is now 0.5" in err
    assert (stopped / "records.jsonl").read_bytes() == before


def test_a_run_is_not_written_over_unless_asked(stopped, capsys):
    before = (stopped / "records.jsonl").read_bytes()
    assert train(stopped) == 2
    assert "holds a run already; go on with it with --resume" in capsys.readouterr().err
    assert (stopped / "records.jsonl").read_bytes() == before
    (stopped / "mine.txt").write_text("not the run's")
    assert train(stopped, "--fresh") == 0
    assert len(records(stopped, "train start")) == 1
    assert (stopped / "mine.txt").exists()
    assert train(stopped, "--fresh", "--resume") == 2


def test_a_finished_run_that_is_resumed_stays_as_it_is(straight):
    before = outcome(straight)
    assert train(straight, *EVERYTHING, "--resume") == 0
    assert outcome(straight) == before


def test_resuming_where_there_is_no_checkpoint_yet_starts_from_the_beginning(tmp_path, capsys):
    assert train(tmp_path / "run", "--resume") == 0
    assert "starting from the beginning" in capsys.readouterr().err


def test_records_that_were_cut_off_are_noticed(stopped, capsys):
    (stopped / "records.jsonl").write_text("")
    assert train(stopped, "--resume") == 1
    assert "is shorter than the checkpoint says" in capsys.readouterr().err
