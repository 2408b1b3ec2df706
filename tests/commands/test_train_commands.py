"""`mjp train` and `mjp check` as a person meets them."""

import os
import pty

import pytest

from tests.commands.test_cli import run
from tests.data.pictures import write_folder
from tests.forks import Fork
from tests.train.running import TINY, records


def test_training_shows_a_table_and_ends_with_the_paths_it_wrote(tmp_path, capsys):
    out = tmp_path / "run"
    code, shown, told = run(capsys, "train", "digits", "--out", str(out), *TINY)
    assert code == 0
    rows = [line.split() for line in shown.splitlines()]
    assert rows[0][:3] == ["epoch", "loss", "classification"]
    assert [row[0] for row in rows[1:3]] == ["1", "2"]
    assert "best top1" in shown
    for name in ("best", "final", "records.jsonl"):
        assert str(out / name) in shown
        assert (out / name).exists()
    assert shown.splitlines()[-1] == f"records: {out / 'records.jsonl'}"
    assert "decoding training images: 1438 of 1438" in told
    assert list((out / "tensorboard").glob("events*"))


def test_records_hold_the_recipe_the_versions_and_every_number(tmp_path, capsys):
    out = tmp_path / "run"
    assert run(capsys, "train", "digits", "--out", str(out), *TINY)[0] == 0
    first = records(out)[0]
    assert first["kind"] == "train start"
    conditions = first["conditions"]
    assert conditions["run.epochs"] == 2
    assert conditions["model.name"] == "deit_tiny_patch16_224"
    assert conditions["run.seed"] == 0
    assert {"mjp", "torch", "python"} <= set(conditions)
    assert first["values"]["steps"] == 45
    for record in records(out, "train epoch"):
        values = record["values"]
        total = values["classification"] + values["localization_weight"] * values["localization"]
        assert values["loss"] == pytest.approx(total, rel=1e-2)
    timing = records(out, "train timing")
    assert all(r["values"]["images_per_second"] > 0 for r in timing if "epoch" in r["conditions"])


def at_a_wide_terminal():
    os.environ.update(COLUMNS="150", TERM="xterm-256color")


def test_at_a_terminal_there_is_a_live_line(tmp_path):
    """A real terminal: a pseudo one, whose screen is read back."""
    leader, follower = pty.openpty()
    arguments = ["train", "digits", "--out", tmp_path / "run", *TINY, "--run.epochs", "6"]
    process = Fork(arguments, terminal=os.ttyname(follower), first=at_a_wide_terminal)
    screen = os.read(leader, 65536)  # Once the process has the terminal open.
    os.close(follower)
    try:
        while piece := os.read(leader, 65536):
            screen += piece
    except OSError:  # How a pseudo terminal says that nobody writes to it any more.
        pass
    assert process.wait() == 0
    text = screen.decode()
    assert "images/s" in text
    assert "best top1" in text


def test_a_variant_and_a_ratio_are_a_flag_away(tmp_path, capsys):
    code, out, _ = run(capsys, "check", "digits", "--variant", "E", "--mjp.ratio", "0.5")
    assert code == 0
    assert 'positions = "own"' in out
    assert "ratio = 0.5" in out
    assert 'localization = "none"' in out
    code, out, _ = run(capsys, "check", "--variant=A")
    assert "ratio = 0.0" in out


def test_check_prints_the_recipe_and_what_it_will_take(capsys):
    code, out, _ = run(capsys, "check", "digits")
    assert code == 0
    for words in ("epochs = 40", "464,556", "1,438 to train on", "899, 22.5 an epoch", "memory"):
        assert words in out
    assert out.rstrip().endswith("nothing is wrong")


def test_check_names_everything_that_is_wrong_at_once(tmp_path, capsys):
    write_folder(tmp_path / "train")
    (tmp_path / "train" / "ant" / "000.png").write_bytes(b"")
    write_folder(tmp_path / "val")
    arguments = ("imagenet-deit-ti", "--data.root", str(tmp_path), "--run.batch", "7")
    code, _, err = run(capsys, "check", *arguments, "--model.image-size", "100", "100")
    assert code == 2
    assert "imagenet-deit-ti cannot be carried out" in err
    assert "ant/000.png is empty (0 bytes)" in err
    assert "a batch of 7 cannot be divided" in err


def test_check_notes_what_is_perhaps_not_meant(capsys):
    _, out, _ = run(capsys, "check", "digits", "--mjp.ratio", "0.01", "--mjp.probability", "0")
    assert "masks none of an image's 16 patches" in out
    assert "there will never be a jigsaw" in out


def test_check_tries_the_model_on_images_of_its_size(capsys):
    code, _, err = run(capsys, "check", "digits", "--model.image-size", "18", "18")
    assert code == 2
    assert "cannot be carried out" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "digit"), "did you mean digits?"),
        (("train", "mine.toml"), "mine.toml cannot be read"),
        (("train", "mini-imagenet-64"), "name its folder with --data.root"),
        (("train", "digits", "--variant", "Z"), "there is no variant 'Z'"),
        (("train", "digits", "--run.device", "warp"), "'warp' is no device of torch"),
        (("train", "digits", "--model.name", "deit_tinny_patch16_224"), "did you mean"),
        (("train", "digits", "--init", "nowhere"), "neither a file, nor a folder"),
        (("train", "--resume", "--out", "nowhere"), "nowhere holds no run to resume"),
        (("train", "--run.epochs", "9", "mini-imagenet-64"), "name the recipe before its flags"),
    ],
)
def test_what_cannot_be_trained_is_said(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code in (1, 2)
    assert words in err
    assert out == ""
    assert not list(tmp_path.glob("runs/*")), "nothing is written before all is known to be well"


def test_corrupt_images_that_were_skipped_are_listed_at_the_end(tmp_path, capsys):
    write_folder(tmp_path / "data" / "train", 24)
    write_folder(tmp_path / "data" / "val", 6)
    (tmp_path / "data" / "train" / "bee" / "001.png").write_bytes(b"")
    arguments = (
        "--data.source",
        "folder",
        "--data.root",
        str(tmp_path / "data"),
        "--run.batch",
        "8",
    )
    out = tmp_path / "run"
    code, _, err = run(capsys, "train", "digits", "--out", str(out), *TINY, *arguments)
    assert code == 1
    assert "bee/001.png is empty (0 bytes); mend or remove it" in err
    arguments = (*arguments, "--data.skip-corrupt", "--fresh")
    code, shown, _ = run(capsys, "train", "digits", "--out", str(out), *TINY, *arguments)
    assert code == 0
    assert "1 images could not be read and were left out" in shown
    assert "bee/001.png" in (out / "unreadable.txt").read_text()
    [end] = records(out, "train end")
    assert end["values"]["unreadable_images"] == 1
