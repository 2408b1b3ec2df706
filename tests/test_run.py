"""`Run`: one folder, one writer, every record once."""

import signal
from contextlib import suppress

import pytest

from mjp.core.errors import ConfigError, MjpError, StoppedError
from mjp.core.records import ENVIRONMENT, RECORDS, Record, read_records
from mjp.core.run import Run


def record(value, **conditions):
    return Record("kind", {"model": "A", **conditions}, {"value": value})


def test_records_bear_the_environment_which_is_no_part_of_their_identity(tmp_path):
    with Run.open(tmp_path, device="cpu") as run:
        (written,) = run.write(record(1))
        assert set(run.environment()) == ENVIRONMENT
    assert read_records(tmp_path) == [written]
    assert written.conditions["hardware"]
    assert written.key() == record(2).key()
    assert written.key() != record(1, crop=0.9).key()


def test_a_later_record_of_the_same_measurement_replaces_the_earlier(tmp_path):
    for value in (1, 2):
        with Run.open(tmp_path, device="cpu") as run:
            run.write(record(value, ratio=0.1), record(10 * value, ratio=0.2))
            run.write(record(3, ratio=0.3))
    values = {r.conditions["ratio"]: r.values["value"] for r in read_records(tmp_path)}
    assert values == {0.1: 2, 0.2: 20, 0.3: 3}
    assert len((tmp_path / RECORDS).read_text().splitlines()) == 3


def test_what_an_earlier_run_measured_is_known(tmp_path):
    with Run.open(tmp_path, device="cpu") as run:
        run.write(record(1))
    with Run.open(tmp_path, device="cpu") as run:
        assert run.done(record(0).key()).values == {"value": 1}
        assert run.done(record(0, ratio=1).key()) is None


def test_two_runs_cannot_write_to_one_folder(tmp_path):
    with Run.open(tmp_path, device="cpu"), pytest.raises(ConfigError, match="another command"):
        Run.open(tmp_path, device="cpu").__enter__()
    with Run.open(tmp_path, device="cpu"):
        pass


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="it is a file"):
        Run.open(tmp_path / "file", device="cpu").__enter__()


def test_a_run_that_wrote_nothing_leaves_nothing(tmp_path):
    with Run.open(tmp_path / "out", device="cpu"):
        pass
    assert not (tmp_path / "out").exists()


def test_records_after_a_checkpoint_are_cut_off(tmp_path):
    with Run.open(tmp_path, device="cpu") as run:
        run.write(record(1))
        size = run.size()
        run.write(record(2, ratio=0.5))
        run.cut(size)
        assert run.done(record(2, ratio=0.5).key()) is None
        with pytest.raises(MjpError, match="shorter than the checkpoint"):
            run.cut(size + 1)
    assert [r.values["value"] for r in read_records(tmp_path)] == [1]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    with Run.open(tmp_path, device="cpu") as run:
        with suppress(KeyError), run.file("figures/a.txt") as part:
            part.write_text("half")
            raise KeyError
        assert not any((tmp_path / "figures").iterdir())
        with run.file("figures/a.txt") as part:
            part.write_text("whole")
    assert (tmp_path / "figures" / "a.txt").read_text() == "whole"


def test_a_signal_is_noted_and_raised_where_the_work_can_stop(tmp_path):
    with Run.open(tmp_path, device="cpu") as run, run.stoppable():
        run.check_stop()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StoppedError, match="go on with the same command") as caught:
            run.check_stop()
    assert caught.value.number == signal.SIGTERM


def test_broken_lines_are_no_records(tmp_path):
    whole = record(1)
    lines = ['{"kind": 3}', "[" * 100_000, whole.to_json(), '{"kind": "x", "cond', ""]
    (tmp_path / RECORDS).write_text("\n".join(lines))
    assert read_records(tmp_path) == [whole]
    assert read_records(tmp_path / "nowhere") == []
