"""Runs of two processes on gloo: they come to what one process comes to.

They are started by the launcher inside torchrun, and once by torchrun itself.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.running import (
    TINY,
    finish,
    outcome,
    records,
    start,
    torchrun,
    train,
    wait_for_records,
)

# All that is random and shared; what a model draws inside itself differs from process to process.
SHARED = (
    *("--augment.mixup", "0.8", "--augment.cutmix", "1.0", "--augment.erasing", "0.5"),
    *("--augment.rand-augment", "9", "--optimizer.average", "0.9", "--mjp.ratio", "0.25"),
    *("--run.warmup-epochs", "0", "--run.epochs", "1", "--run.log-every", "1"),
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    assert train(out, *SHARED) == 0
    return out


@pytest.mark.parametrize(
    "flags",
    [
        ("--run.distribution", "fsdp"),
        ("--run.distribution", "ddp", "--data.feed", "workers", "--run.accumulation", "2"),
    ],
    ids=["fsdp", "ddp with workers and accumulation"],
)
def test_two_processes_have_the_losses_of_one(flags, alone, tmp_path):
    expected = alone
    if "workers" in flags:
        expected = tmp_path / "alone"
        assert train(expected, *SHARED, "--data.feed", "workers", "--data.workers", "1") == 0
    out = tmp_path / "run"
    code, _, err = finish(start(out, *SHARED, *flags, team=2))
    assert code == 0, err
    ours, theirs = records(out), records(expected)
    assert [record["kind"] for record in ours] == [record["kind"] for record in theirs]
    compared = 0
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        for name, value in other["values"].items():
            if value is not None and "accuracy" not in name:
                assert one["values"][name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
                compared += 1
    assert compared > 100
    assert ours[0]["values"]["processes"] == 2
    one, other = (load_file(path / "final" / "model.safetensors") for path in (out, expected))
    for name, tensor in other.items():
        torch.testing.assert_close(one[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


def test_a_sharded_run_is_resumed_by_one_process(tmp_path, alone):
    out = tmp_path / "run"
    flags = (*SHARED, "--run.distribution", "fsdp")
    process = start(out, *flags, "--run.checkpoint-minutes", "0.01", team=2)
    wait_for_records(out, 8, process)
    os.kill(process.pid, signal.SIGTERM)
    code, _, err = finish(process)
    assert code != 0
    newest = sorted((out / "checkpoints").glob("step-*"))[-1]
    assert len(list(newest.glob("*.safetensors"))) == 2, err
    assert train(out, *SHARED, "--resume") == 0
    ours, theirs = (records(path, "train epoch")[-1]["values"] for path in (out, alone))
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert ours["val_top1"] == theirs["val_top1"]


def test_a_process_that_dies_takes_the_run_down_within_a_minute(tmp_path):
    out = tmp_path / "run"
    process = torchrun(2, "train", "digits", "--out", out, *TINY, *SHARED, "--run.epochs", "50")
    wait_for_records(out, 4, process)
    children = _python_children(process.pid)
    assert len(children) == 2
    os.kill(children[-1], signal.SIGKILL)
    began = time.monotonic()
    code, _, err = finish(process, seconds=70)
    assert time.monotonic() - began < 60
    assert code != 0
    assert "SIGKILL" in err or "exitcode: -9" in err or "exitcode  : -9" in err


def _python_children(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(c) for c in children if b"train" in Path(f"/proc/{c}/cmdline").read_bytes()]


def test_wrong_input_is_said_once(tmp_path):
    out = tmp_path / "run"
    code, _, err = finish(start(out, "--run.batch", "6", team=2))
    assert code != 0
    assert err.count("cannot be divided among 2 processes") == 1
    assert not out.exists()


def test_sharding_needs_torchrun(tmp_path, capsys):
    assert train(tmp_path / "run", "--run.distribution", "fsdp") == 2
    assert "fsdp is for torchrun" in capsys.readouterr().err


def test_checkpoints_hold_no_pickle(alone):
    for path in (alone / "checkpoints").rglob("*"):
        if path.is_file():
            assert path.suffix in (".safetensors", ".json")
    [state] = (alone / "checkpoints").glob("*/state.json")
    assert json.loads(state.read_text())["step"] == 23
    assert outcome(alone)[1]
