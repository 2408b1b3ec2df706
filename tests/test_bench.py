"""`mjp bench` end to end, on tiny models and made-up pictures; no test looks at a time itself."""

import pytest

from mjp.cli import main
from mjp.core.records import read_records

TINY = ("--model", "vit_tiny_patch16_224", "--rounds", "2", "--device", "cpu")


def bench(out, *arguments):
    with pytest.raises(SystemExit) as exit:
        main(["bench", *arguments, "--out", str(out)])
    return exit.value.code


def test_drawing_plans_is_timed_at_each_ratio(tmp_path, capsys):
    arguments = ("--batch", "3", "--repeats", "2", "--ratios", "0.1", "0.5", "--device", "cpu")
    assert bench(tmp_path, "plan", *arguments) == 0
    assert "3 images on a 14x14 grid" in capsys.readouterr().out
    assert [record.conditions["ratio"] for record in read_records(tmp_path)] == [0.1, 0.5]


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "resnet18"])
def test_a_step_is_timed_without_and_with_mjp(tmp_path, capsys, model):
    assert bench(tmp_path, "step", *TINY, "--model", model, "--batch", "1") == 0
    assert "As mjp train does" in capsys.readouterr().out.replace("\n", " ")
    (record,) = read_records(tmp_path)
    values = record.values
    assert min(values["plain_ms"], values["trained_ms"], values["trained_time_ratio"]) > 0
    assert values["time_ratio_quartile_low"] <= values["time_ratio"]
    assert values["time_ratio"] <= values["time_ratio_quartile_high"]


def test_training_is_timed_against_its_data(tmp_path, capsys):
    arguments = ("--rounds", "2", "--images", "64", "--batch", "4", "--workers", "1")
    assert bench(tmp_path, "train", *arguments) == 0
    capsys.readouterr()
    step, workers = read_records(tmp_path)
    assert (step.conditions["part"], workers.conditions["part"]) == ("step", "workers")
    assert step.values["gflop"] > 0
    assert min(step.values["ratio"], workers.values["ratio"]) > 0


def test_evaluation_is_timed_against_the_model(tmp_path):
    arguments = ("--images", "3", "--draws", "1", "--batch", "3", "--workers", "0")
    assert bench(tmp_path, "eval", *TINY, *arguments) == 0
    (record,) = read_records(tmp_path)
    assert 0 < record.values["ratio_lowest"] <= record.values["ratio_highest"]


def test_attacks_are_timed_against_the_gradients_alone(tmp_path):
    assert bench(tmp_path, "audit", *TINY, "--images", "2", "--adaptive-images", "2") == 0
    solved, adaptive = read_records(tmp_path)
    assert (solved.conditions["attack"], solved.conditions["defence"]) == ("patch_solve", "none")
    assert adaptive.conditions["defence"] == "mjp=0.09"
    for record in (solved, adaptive):
        assert record.conditions["images"] == 2
        assert record.values["ratio"] > 0
        assert record.values["psnr"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("step", "--device", "warp"), "'warp' is no device of torch"),
        (("step", "--device", "cuda:99"), "torch cannot use device cuda:99 here"),
        (("step", "--model", "deit_tinny_patch16_224"), "did you mean"),
        (("step", "--model", "beit_base_patch16_224"), "no adapter"),
        (("step", *TINY, "--rounds", "1"), "rounds must be a whole number of at least 2"),
        (("step", "--batch", "0"), "batch must be a whole number of at least 1"),
        (("plan", "--rows", "0"), "rows must be a whole number of at least 1"),
        (("plan", "--batch", "0"), "batch must be a whole number of at least 1"),
        (("train", "--rounds", "1"), "rounds must be a whole number of at least 2"),
        (("eval", "--draws", "0"), "draws"),
        (("audit", "--images", "0"), "images"),
        (("audit", "--ratio", "2"), "ratio"),
        (("audit", "--rounds", "0"), "rounds"),
    ],
)
def test_a_bench_that_cannot_be_is_refused(tmp_path, capsys, arguments, message):
    assert bench(tmp_path / "out", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
