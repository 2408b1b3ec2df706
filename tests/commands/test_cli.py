import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from mjp.cli import main


def run(capsys, *arguments: str):
    """Exit status, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_help_and_version_answer_without_loading_torch():
    script = (
        "import sys\n"
        "from mjp.cli import main\n"
        "try: main([{!r}])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {{'torch', 'timm', 'matplotlib', 'numpy'}} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for flag in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", script.format(flag)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "mjp" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--ratio", "1.5"), "ratio must be a number between 0 and 1, got 1.5"),
        (("demo", "--ratio", "0"), "ratio must be above 0 and below 1 here, got 0"),
        (("report", "nowhere"), "there is no folder 'nowhere'; name one that another verb wrote"),
        (("demo", "--ratio", "nan"), "ratio must be a number between 0 and 1, got nan"),
        (("demo", "--image", "nowhere.png"), "nowhere.png cannot be read as a picture"),
        (("demo", "--image", "pyproject.toml"), "pyproject.toml cannot be read as a picture"),
    ],
)
def test_what_cannot_be_done_is_said_and_exits_2(arguments, words, capsys, tmp_path):
    code, out, err = run(capsys, *arguments, "--out", str(tmp_path / "out"))
    assert code == 2
    assert words in err
    assert out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bensh",), "bench"),
        (("demo", "--ration", "0.5"), "--ratio"),
        (("bench",), "step"),
    ],
)
def test_an_unknown_name_exits_2_with_a_suggestion(arguments, words, capsys):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert words in err


def test_a_folder_that_cannot_be_made_is_one_line_and_nothing_is_lost(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    code, _, err = run(capsys, "demo", "--out", str(tmp_path / "file"))
    assert code == 2
    assert "results cannot be written to" in err
    assert "it is a file; name a folder" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_ctrl_c_ends_a_command_with_one_line(tmp_path):
    command = [sys.executable, "-m", "mjp", "bench", "plan", "--repeats", "100000"]
    process = subprocess.Popen(
        [*command, "--device", "cpu", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that a shell started in the background ignore Ctrl-C, and would hand that on.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    started = time.monotonic()
    try:
        while not (tmp_path / "records.jsonl").exists() and time.monotonic() < started + 120:
            time.sleep(0.2)  # It is there before the work begins.
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()  # It would go on for hours.
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == "mjp: interrupted"
    assert "Traceback" not in err
    assert out == ""


def test_an_absent_extra_is_named(monkeypatch, capsys, tmp_path):
    for name in list(sys.modules):
        if name.startswith(("mjp.demo", "mjp.report")):  # All that may have it already.
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(capsys, "demo", "--out", str(tmp_path))
    assert code == 1
    assert "this needs matplotlib: pip install 'mjp[demo]'" in err
