"""Runs small trainings, in this process or in others that can be killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mjp.cli import main
from tests.forks import Fork

TINY = (
    *("--model.arguments.embed-dim", "24", "--model.arguments.depth", "2"),
    *("--run.epochs", "2", "--run.warmup-epochs", "1", "--run.log-every", "5"),
)
"""A run of 45 steps that takes a second or two."""

EVERYTHING = (
    *("--augment.mixup", "0.8", "--augment.cutmix", "1.0", "--augment.erasing", "0.5"),
    *("--augment.rand-augment", "9", "--augment.repeats", "2", "--optimizer.average", "0.9"),
    *("--model.drop-path", "0.2", "--mjp.ratio", "0.25"),
)
"""All that is random in a run, switched on."""


def train(out: Path, *flags: str, recipe: str = "digits", tiny: tuple[str, ...] = TINY) -> int:
    """Runs `mjp train` here; its exit status."""
    with pytest.raises(SystemExit) as stop:
        main(["train", recipe, "--out", str(out), *tiny, *flags])
    return stop.value.code


def start(
    out: Path,
    *flags: str,
    team: int = 0,
    new_group: bool = False,
    first: Callable[[], None] | None = None,
) -> Fork:
    """Starts `mjp train digits` in a process of its own, or in those of a team."""
    arguments = ["train", "digits", "--out", out, *TINY, *flags]
    return Fork(arguments, team=team, new_group=new_group, first=first)


def torchrun(processes: int, *arguments: object) -> subprocess.Popen:
    """Starts `torchrun -m mjp` with these arguments."""
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(processes))
    place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    return subprocess.Popen(
        [sys.executable, *launcher, *place, "-m", "mjp", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MJP_SHAPE_CHECKS": "0"},
    )


def wait_for_records(
    out: Path, count: int, process: Fork | subprocess.Popen, seconds: float = 90
) -> None:
    """Until the run has written so many records."""
    path, end = out / "records.jsonl", time.monotonic() + seconds
    while time.monotonic() < end:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        if process.poll() is not None:
            pytest.fail(f"the run ended too soon: {process.communicate()}")
        time.sleep(0.01)
    process.kill()
    pytest.fail(f"no {count} records after {seconds} s: {process.communicate()}")


def finish(process: Fork | subprocess.Popen, seconds: float = 120) -> tuple[int, str, str]:
    """Exit status and output of a process."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"still running after {seconds} s: {out} {err}")
    return process.returncode, out, err


def records(out: Path, *kinds: str) -> list[dict]:
    """The records of a run, of these kinds, or all but times."""
    found = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    if kinds:
        return [record for record in found if record["kind"] in kinds]
    return [record for record in found if record["kind"] != "train timing"]


def outcome(out: Path) -> tuple[list[dict], dict[str, bytes]]:
    """What two equal runs must agree on, to the last bit: records, models, the last checkpoint."""
    last = sorted((out / "checkpoints").glob("step-*"))[-1]
    files = [out / "best" / "model.safetensors", out / "final" / "model.safetensors"]
    tensors = {}
    for path in (*files, *sorted(last.glob("*.safetensors"))):
        for name, tensor in load_file(path).items():
            tensors[f"{path.relative_to(out)}:{name}"] = tensor.numpy().tobytes()
    found = [
        {**r, "conditions": {k: v for k, v in r["conditions"].items() if "checkpoint" not in k}}
        for r in records(out)
    ]
    return found, tensors


def assert_same(one: Path, other: Path) -> None:
    """That two runs came to the same, or where they first differ."""
    (found, tensors), (expected, wanted) = outcome(one), outcome(other)
    for record, right in zip(found, expected, strict=False):
        assert record == right
    assert len(found) == len(expected)
    assert tensors.keys() == wanted.keys()
    assert [name for name in wanted if tensors[name] != wanted[name]] == []
