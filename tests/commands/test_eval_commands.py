"""`mjp eval` and `mjp probe` end to end, on tiny models and made-up pictures."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import mjp
from mjp.cli import main
from mjp.data.source import FolderSource
from mjp.evaluate.confidence import subset_classes
from mjp.evaluate.evaluation import Evaluation
from mjp.models.subject import Subject, imagenet_synsets
from tests.data.pictures import encoded, write_folder
from tests.evaluate.subjects import records, save, tiny
from tests.train.running import finish, torchrun

pytestmark = pytest.mark.unchecked  # Wrong input must meet our own errors.

FEW = ("--workers", "0", "--draws", "1", "--ratios", "0.25", "0.5")
CLASSES = {"labels": ("ant", "bee", "cat")}


def run(*arguments):
    """Runs the command line; its exit status."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code


@pytest.fixture
def folder(tmp_path):
    """A folder with a plain model, one with MJP, and a set of nine pictures."""
    save(tmp_path / "plain", "A", **CLASSES)
    save(tmp_path / "mjp", "J", **CLASSES)
    write_folder(tmp_path / "set", count=9)
    return tmp_path


@pytest.fixture
def imagenet_model(tmp_path):
    """A model with ImageNet's outputs, whose classes have no names of their own."""
    model = tiny("J", classes=1000)
    model.pretrained_cfg.pop("label_names", None)
    mjp.save(model, tmp_path / "in")
    return tmp_path / "in"


def wordnet_folder(root, names, each=2):
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for copy in range(each):
            (root / name / f"{copy}.png").write_bytes(encoded(10 * number + copy))


def evaluate(folder, *more, model="mjp", out="out"):
    """Runs `mjp eval` on the set of pictures."""
    asked = ("--model", folder / model, "--data", folder / "set", *FEW)
    return run("eval", *asked, "--out", folder / out, *more)


def corrupt(folder, *more, model="mjp", data="set", out="out"):
    """Runs `mjp eval corruptions`."""
    asked = ("--model", folder / model, "--data", folder / data, "--workers", "0")
    return run("eval", "corruptions", *asked, "--out", folder / out, *more)


def accuracy_by_hand(model, root, names, outputs):
    """The percentage of right answers among outputs that have these names."""
    source, subject = FolderSource(root), Subject.of("m", model)
    cut = subject.view.transform()
    levels = [torch.as_tensor(cut(source.picture(i))) for i in range(len(source))]
    with torch.no_grad():
        best = model(subject.normalized(torch.stack(levels)))[:, outputs].argmax(dim=1)
    right = [names[i] == source.classes[k] for i, k in zip(best, source.labels, strict=True)]
    return pytest.approx(100 * np.mean(right))


def test_models_are_evaluated_side_by_side_whatever_they_are_called(folder, capsys):
    labels = ("plain[/b]", "cost $5_{ and $6")
    models = (f"{labels[0]}={folder / 'plain'}", f"{labels[1]}={folder / 'mjp'}")
    assert evaluate(folder, "--model", *models) == 0
    printed, out = capsys.readouterr().out, folder / "out"
    for part in (*labels, "unknown positions", "pixels", "Top-1", "Consistency"):
        assert part in printed
    assert f"{labels[1]} − {labels[0]}" in printed
    found = records(out, "eval accuracy")
    assert [record["conditions"]["model"] for record in found] == list(labels)
    assert all(record["values"]["images"] == 9 for record in found)
    assert len(records(out, "eval jigsaw")) == 4
    assert len(records(out, "eval difference")) == 7
    assert (out / "jigsaw.png").stat().st_size > 10_000
    assert labels[1] in (out / "jigsaw.svg").read_text()  # Text stays text.


def test_accuracy_is_that_of_the_model_called_by_hand(folder):
    names = ("cat", "ant", "bee")  # Another order than the data's.
    model = tiny("J", labels=names)
    mjp.save(model, folder / "m")
    assert evaluate(folder, model="m") == 0
    (record,) = records(folder / "out", "eval accuracy")
    assert record["values"]["top1"] == accuracy_by_hand(model, folder / "set", names, [0, 1, 2])


def test_json_prints_the_records_and_nothing_else(folder, capsys):
    assert evaluate(folder, "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == records(folder / "out")


def test_evaluations_in_one_folder_replace_their_like_and_keep_others(folder):
    models = (f"a={folder / 'plain'}", f"b={folder / 'mjp'}")
    assert evaluate(folder, "--model", *models) == 0
    first = records(folder / "out")
    assert evaluate(folder, "--model", *models) == 0
    assert records(folder / "out") == first
    # Another size, another crop, and the difference the other way round are other measurements.
    others = ((*models, "--size", "64", "48"), (*models, "--crop", "0.9"), models[::-1])
    for count, more in enumerate(others, 2):
        assert evaluate(folder, "--model", *more) == 0
        assert len(records(folder / "out", "eval difference")) == 7 * count
    assert len(records(folder / "out", "eval accuracy")) == 6


def test_two_processes_give_what_one_does(folder):
    write_folder(folder / "many", count=600)
    (folder / "many" / "bee" / "301.png").write_bytes(b"")  # In the second process's block.
    data = ("--data", folder / "many", "--skip-corrupt")
    assert evaluate(folder, *data, out="one") == 0
    asked = ("eval", "--model", folder / "mjp", *data, *FEW, "--out", folder / "two")
    code, shown, err = finish(torchrun(2, *asked))
    assert code == 0, err
    assert shown.count("records:") == 1
    assert "1 images could not be read and were left out" in shown
    assert "301.png" in (folder / "two" / "unreadable.txt").read_text()
    for one, two in zip(records(folder / "one"), records(folder / "two"), strict=True):
        for record in (one, two):
            for name in ("processes", "hardware"):
                record["conditions"].pop(name, None)
        assert one["conditions"] == two["conditions"]
        for name, value in one["values"].items():
            assert two["values"][name] == pytest.approx(value, rel=1e-5), name


def test_some_images_are_drawn_by_the_seed(folder):
    for out in "ab":
        assert evaluate(folder, "--images", "4", out=out) == 0
    (one,), (other,) = (records(folder / out, "eval accuracy") for out in "ab")
    assert one == other
    assert one["values"]["images"] == 4


def test_unreadable_images_stop_it_or_are_left_out_and_listed(folder, capsys):
    (folder / "set" / "bee" / "001.png").write_bytes(encoded(1)[:40])
    assert evaluate(folder) == 1
    assert "001.png cannot be read as a picture" in capsys.readouterr().err
    assert evaluate(folder, "--skip-corrupt") == 0
    assert "1 images could not be read and were left out" in capsys.readouterr().out
    assert evaluate(folder, "--skip-corrupt", "--json", out="json") == 0
    assert "1 images could not be read" in capsys.readouterr().err
    assert "001.png" in (folder / "out" / "unreadable.txt").read_text()
    (record,) = records(folder / "out", "eval accuracy")
    assert record["values"]["images"] == 8
    assert record["values"]["unreadable"] == 1


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        ("--ratios 1.5", 2, "ratios must be"),
        ("--draws 0", 2, "draws"),
        ("--images 0", 2, "images"),
        ("--batch 0", 2, "batch"),
        ("--crop 0", 2, "crop"),
        ("--device quantum", 2, "is no device of torch"),
        ("--size 30 48", 2, "30x48"),
        ("--patch 5 --jigsaw pixels", 2, "cannot be cut into 5x5 patches"),
        ("--patch 16", 2, "add --jigsaw pixels"),
        ("--model no-such-model --out plain.txt", 2, "results cannot be written to"),
        ("--data no/such", 1, "there is no folder or file no/such"),
        ("--data digits", 1, "none of the model's 3 classes"),
        ("--data empty", 1, "has no subfolders"),
        ("--data plain.txt", 1, "neither a .parquet nor a .tar"),
        ("--split tset", 1, "there is no folder"),
        ("--model seven", 1, "has 3 classes and the model 7 outputs"),
    ],
)
def test_wrong_input_is_said_in_one_line(folder, monkeypatch, capsys, flags, status, message):
    save(folder / "seven", classes=7)
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    (folder / "plain.txt").write_text("no data")
    assert evaluate(folder, *flags.split()) == status
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_figure_that_cannot_be_written_loses_no_number(folder, capsys):
    (folder / "out" / "jigsaw.png").mkdir(parents=True)
    assert evaluate(folder) == 1
    shown = capsys.readouterr()
    assert "Top-1" in shown.out
    assert "jigsaw.png" in shown.err
    assert len(records(folder / "out")) == 3


def test_corruptions_are_made_measured_kept_and_measured_again_from_files(folder, capsys):
    some = ("--corruptions", "contrast", "jpeg_compression")
    assert corrupt(folder, *some, "--keep", folder / "c", out="made") == 0
    assert "Top-1 error" in capsys.readouterr().out
    assert (folder / "made" / "corruptions.png").exists()
    assert corrupt(folder, *some, data="c", out="read") == 0
    made, again = (records(folder / out, "eval corruption") for out in ("made", "read"))
    for one, other, name in zip(made, again, some[1:], strict=True):
        assert one["conditions"]["corruption"] == other["conditions"]["corruption"] == name
        assert one["conditions"]["corrupted"] == "made here"
        assert other["conditions"]["corrupted"] == "from files"
        for severity in range(1, 6):
            error = f"error_{severity}"
            assert one["values"][error] == other["values"][error]
    assert corrupt(folder, data="c", out="read") == 1
    assert "--corruptions contrast jpeg_compression" in capsys.readouterr().err


def test_a_resumed_run_measures_only_what_is_missing(folder, monkeypatch):
    assert corrupt(folder, "--corruptions", "contrast", "fog") == 0
    before = records(folder / "out", "eval corruption")
    measured, measure = [], Evaluation.measure

    def noted(self, source, what, *more):
        measured.append(what)
        return measure(self, source, what, *more)

    monkeypatch.setattr(Evaluation, "measure", noted)
    some = ("--corruptions", "contrast", "fog", "pixelate", "--resume")
    assert corrupt(folder, *some) == 0
    assert measured == ["pixelate"]
    after = records(folder / "out", "eval corruption")
    assert after[:2] == before
    assert [record["conditions"]["corruption"] for record in after[2:]] == ["pixelate"]
    assert corrupt(folder, *some, "--seed", "1") == 0  # Other conditions.
    assert measured[1:] == ["clean", "contrast", "fog", "pixelate"]


def test_a_resumed_run_never_takes_another_models_results(folder, monkeypatch):
    asked = ("--corruptions", "fog", "--resume", "--model")
    plain, ours = folder / "plain", folder / "mjp"
    for model, out in ((plain, "out"), (ours, "out"), (ours, "alone")):
        assert corrupt(folder, *asked, f"x={model}", out=out) == 0
    a, b = records(folder / "out", "eval corruption")
    assert [b] == records(folder / "alone", "eval corruption")
    assert a["conditions"]["weights"] != b["conditions"]["weights"]
    # And both are there for a run of the two, whatever these are called.
    monkeypatch.setattr("mjp.evaluate.evaluation.gather", None)
    assert corrupt(folder, *asked, f"p={plain}", f"q={ours}") == 0
    again = records(folder / "out", "eval corruption")[2:]
    assert [record["values"] for record in again] == [a["values"], b["values"]]


def test_images_that_cannot_be_corrupted_or_kept_are_refused_before_any_work(folder, capsys):
    save(folder / "small", img_size=(16, 24), **CLASSES)
    assert corrupt(folder, model="small") == 2
    said = capsys.readouterr().err
    assert "at least 32x32 pixels, not 16x24" in said
    assert "Traceback" not in said
    assert corrupt(folder, "--keep", folder / "set") == 2
    assert "is not an empty folder" in capsys.readouterr().err
    for flags in (("--resume",), ("--jpeg", "0")):
        assert corrupt(folder, "--keep", folder / "c", *flags) == 2


def test_among_the_classes_of_the_data_alexnets_errors_are_no_measure(folder, imagenet_model):
    wordnet_folder(folder / "few", imagenet_synsets()[3:6])
    found = {}
    for among in ("all", "data"):
        flags = ("--corruptions", "contrast", "--among", among)
        assert corrupt(folder, *flags, model="in", data="few", out=among) == 0
        (record,) = records(folder / among, "eval corruption")
        found[among] = record["values"]
    assert found["all"]["relative_to_alexnet"] is not None
    assert found["data"]["relative_to_alexnet"] is None
    assert found["data"]["error"] <= found["all"]["error"]


def test_imagenet_a_is_judged_over_its_200_classes(folder, imagenet_model, capsys):
    names = subset_classes("imagenet_a")
    wordnet_folder(folder / "a", names[5:9])
    asked = ("eval", "imagenet-a", "--data", folder / "a", "--workers", "0", "--out")
    assert run(*asked, folder / "out", "--model", imagenet_model) == 0
    assert "AURRA" in capsys.readouterr().out
    (record,) = records(folder / "out", "eval imagenet-a")
    outputs = [imagenet_synsets().index(name) for name in names]
    expected = accuracy_by_hand(mjp.load(imagenet_model).eval(), folder / "a", names, outputs)
    assert record["values"]["accuracy"] == expected
    assert record["values"]["images"] == 8
    assert (folder / "out" / "imagenet-a.png").exists()
    for name in ("xcit_nano_12_p16_224", "inception_v3"):  # Models of other families.
        assert run(*asked, folder / name, "--model", f"{name}@random") == 0
    wordnet_folder(folder / "a", ["n01440764"])
    assert run(*asked, folder / "out", "--model", imagenet_model) == 1
    assert "none of ImageNet-A's 200: n01440764" in capsys.readouterr().err


def test_imagenet_o_uses_the_inliers_of_its_own_classes(folder, imagenet_model, capsys):
    names = subset_classes("imagenet_o")
    other = next(name for name in imagenet_synsets() if name not in names)
    wordnet_folder(folder / "o", names[:3], each=4)
    wordnet_folder(folder / "val", [*names[2:5], other], each=3)
    asked = ("eval", "imagenet-o", "--model", imagenet_model, "--data", folder / "o")
    assert run(*asked, "--inliers", folder / "val", "--workers", "0", "--out", folder / "out") == 0
    assert "AUPR" in capsys.readouterr().out
    (record,) = records(folder / "out", "eval imagenet-o")
    assert record["values"]["outliers"] == 12
    assert record["values"]["inliers"] == 9
    assert 0 < record["values"]["aupr"] <= 100
    assert (folder / "out" / "imagenet-o.svg").exists()


def test_positions_are_probed_and_drawn(folder, capsys):
    models, out = ("--model", folder / "plain", f"a[red]={folder / 'mjp'}"), folder / "out"
    assert run("probe", *models, "--repeats", "2", "--no-umap", "--out", out) == 0
    printed = capsys.readouterr().out
    for part in ("2-D in cells of the grid", "1-D in patches", "a[red]"):
        assert part in printed
    one, other = records(out, "probe positions")
    assert (one["conditions"]["rows"], one["conditions"]["cols"]) == (4, 6)
    assert one["values"]["mae_2d"] != other["values"]["mae_2d"]
    for name in ("pca-2d", "pca-3d", "similarity", "spectrum"):
        assert Image.open(out / f"{name}.png").width > 600
        assert (out / f"{name}.svg").exists()
    assert run("probe", "--model", "mine=resnet18@random", "--out", out) == 2
    assert "mine: this ResNet has no table of absolute positions" in capsys.readouterr().err


def test_attention_is_drawn_for_every_picture_and_head(folder, capsys):
    save(folder / "registers", "J", reg_tokens=2)
    pictures, out = folder / "pictures", folder / "out"
    pictures.mkdir()
    for number in range(3):
        (pictures / f"p{number}.png").write_bytes(encoded(number, (40, 70)))
    models = ("--model", folder / "plain", folder / "registers")
    asked = ("probe", "attention", *models, "--images", pictures, "--most", "2", "--out", out)
    assert run(*asked) == 0
    assert "class token" in capsys.readouterr().out
    drawn = {"attention.png", "attention-p0.png", "attention-p1.png"}
    assert {path.name for path in out.glob("*.png")} == drawn
    assert len(records(out, "probe attention")) == 4
    assert run("probe", "attention", *models, "--images", folder / "no") == 1
    assert run(*asked, "--crop", "0") == 2
    (pictures / "p0.png").write_bytes(b"no picture")
    assert run(*asked) == 1
    assert "p0.png cannot be read" in capsys.readouterr().err
