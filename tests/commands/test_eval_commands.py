"""`mjp eval` and `mjp probe` end to end, on tiny models and made-up pictures."""

import json

import numpy as np
import pytest
from PIL import Image

import mjp
from mjp.cli import main
from mjp.evaluate import corruptions
from mjp.evaluate.confidence import subset_classes
from mjp.models.facts import imagenet_synsets
from tests.data.pictures import encoded, write_folder
from tests.evaluate.subjects import records, save, tiny
from tests.train.running import finish, torchrun

pytestmark = pytest.mark.unchecked  # Wrong input must meet our own errors.


def run(*arguments):
    """Runs the command line; its exit status."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "set", count=9)
    return tmp_path


FEW = ("--workers", "0", "--draws", "1", "--ratios", "0.25", "0.5")
CLASSES = {"labels": ("ant", "bee", "cat")}


def test_models_are_evaluated_side_by_side(folder, capsys):
    save(folder / "plain", "A", **CLASSES)
    save(folder / "mjp", "J", **CLASSES)
    out = folder / "out"
    models = ("--model", folder / "plain", f"ours={folder / 'mjp'}")
    assert run("eval", *models, "--data", folder / "set", *FEW, "--out", out) == 0
    printed = capsys.readouterr().out
    for part in ("plain", "ours", "unknown positions", "pixels", "Top-1", "Consistency"):
        assert part in printed
    assert "ours − plain" in printed
    found = records(out, "eval accuracy")
    assert [record["conditions"]["model"] for record in found] == ["plain", "ours"]
    assert all(record["values"]["images"] == 9 for record in found)
    assert len(records(out, "eval jigsaw")) == 4
    assert len(records(out, "eval difference")) == 7
    assert (out / "jigsaw.png").stat().st_size > 10_000
    assert "<text" in (out / "jigsaw.svg").read_text()  # Text stays text.


def test_accuracy_is_that_of_the_model_called_by_hand(folder):
    import torch

    model = tiny("J", labels=("cat", "ant", "bee"))  # Another order than the data's.
    mjp.save(model, folder / "m")
    out = folder / "out"
    assert run("eval", "--model", folder / "m", "--data", folder / "set", *FEW, "--out", out) == 0
    from mjp.data.source import FolderSource
    from mjp.models.subject import Subject

    source, subject = FolderSource(folder / "set"), Subject.of("m", model)
    cut = subject.view.transform()
    levels = torch.stack([torch.as_tensor(cut(source.picture(i))) for i in range(9)])
    with torch.no_grad():
        best = model(subject.normalized(levels)).argmax(dim=1)
    names = [("cat", "ant", "bee")[i] for i in best]
    right = [
        name == source.classes[label] for name, label in zip(names, source.labels, strict=True)
    ]
    (record,) = records(out, "eval accuracy")
    assert record["values"]["top1"] == pytest.approx(100 * np.mean(right))


def test_json_prints_the_records_and_nothing_else(folder, capsys):
    save(folder / "m", **CLASSES)
    out = folder / "out"
    asked = ("eval", "--model", folder / "m", "--data", folder / "set", *FEW, "--json")
    assert run(*asked, "--out", out) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == records(out)


def test_evaluations_in_one_folder_replace_their_like_and_keep_others(folder):
    save(folder / "plain", "A", **CLASSES)
    save(folder / "mjp", "J", **CLASSES)
    out = folder / "out"
    models = (f"a={folder / 'plain'}", f"b={folder / 'mjp'}")
    asked = ("--data", folder / "set", *FEW, "--out", out)
    assert run("eval", "--model", *models, *asked) == 0
    first = records(out)
    assert run("eval", "--model", *models, *asked) == 0
    assert records(out) == first
    # Another size, another crop, and the difference the other way round are other measurements.
    others = (
        (*models, *asked, "--size", "64", "48"),
        (*models, *asked, "--crop", "0.9"),
        (*models[::-1], *asked),
    )
    for count, more in enumerate(others, 2):
        assert run("eval", "--model", *more) == 0
        assert len(records(out, "eval difference")) == 7 * count
    assert len(records(out, "eval accuracy")) == 6
    sizes = {record["conditions"]["image_size"] for record in records(out, "eval difference")}
    assert sizes == {"32x48", "64x48"}


def test_two_processes_give_what_one_does(folder):
    save(folder / "m", **CLASSES)
    write_folder(folder / "many", count=600)
    (folder / "many" / "bee" / "301.png").write_bytes(b"")  # In the second process's block.
    asked = ["--model", folder / "m", "--data", folder / "many", *FEW, "--skip-corrupt"]
    assert run("eval", *asked, "--out", folder / "one") == 0
    code, shown, err = finish(torchrun(2, "eval", *asked, "--out", folder / "two"))
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
    save(folder / "m", **CLASSES)
    asked = ("eval", "--model", folder / "m", "--data", folder / "set", *FEW, "--images", "4")
    for out, seed in (("a", 0), ("b", 0)):
        assert run(*asked, "--seed", seed, "--out", folder / out) == 0
    (one,), (other,) = (records(folder / out, "eval accuracy") for out in "ab")
    assert one == other
    assert one["values"]["images"] == 4


def test_unreadable_images_stop_it_or_are_left_out_and_listed(folder, capsys):
    save(folder / "m", **CLASSES)
    (folder / "set" / "bee" / "001.png").write_bytes(encoded(1)[:40])
    asked = ("eval", "--model", folder / "m", "--data", folder / "set", *FEW)
    assert run(*asked, "--out", folder / "out") == 1
    assert "001.png cannot be read as a picture" in capsys.readouterr().err
    assert run(*asked, "--out", folder / "out", "--skip-corrupt") == 0
    assert "1 images could not be read and were left out" in capsys.readouterr().out
    assert run(*asked, "--out", folder / "json", "--skip-corrupt", "--json") == 0
    assert "1 images could not be read" in capsys.readouterr().err
    assert "001.png" in (folder / "out" / "unreadable.txt").read_text()
    (record,) = records(folder / "out", "eval accuracy")
    assert record["values"]["images"] == 8
    assert record["values"]["unreadable"] == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--ratios", "1.5"), "ratios must be"),
        (("--draws", "0"), "draws"),
        (("--images", "0"), "images"),
        (("--batch", "0"), "batch"),
        (("--crop", "0"), "crop"),
        (("--device", "quantum"), "is no device of torch"),
        (("--size", "30", "48"), "30x48"),
        (("--patch", "5", "--jigsaw", "pixels"), "cannot be cut into 5x5 patches"),
        (("--patch", "16"), "add --jigsaw pixels"),
    ],
)
def test_wrong_input_is_said_in_one_line(folder, capsys, flags, message):
    save(folder / "m", **CLASSES)
    data = () if "--data" in flags else ("--data", folder / "set")
    out = ("--out", folder / "out")
    assert run("eval", "--model", folder / "m", *data, *out, "--workers", "0", *flags) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("no/such", "there is no folder or file no/such"),
        ("digits", "none of the model's 3 classes"),
        ("empty", "has no subfolders"),
        ("plain.txt", "neither a .parquet nor a .tar"),
        ("set --split tset", "there is no folder"),
        ("set --model seven", "has 3 classes and the model 7 outputs"),
    ],
)
def test_wrong_data_are_said_in_one_line(folder, monkeypatch, capsys, data, message):
    save(folder / "m", **CLASSES)
    save(folder / "seven", classes=7)
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    (folder / "plain.txt").write_text("no data")
    asked = ("eval", "--data", *data.split(), "--out", "out", "--workers", "0")
    model = () if "--model" in data else ("--model", "m")
    assert run(*asked, *model) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_place_that_cannot_be_written_is_refused_before_any_work(folder, capsys):
    (folder / "out").write_text("a file")
    asked = ("eval", "--model", "no-such-model", "--data", folder / "set")
    assert run(*asked, "--out", folder / "out") == 2
    assert "results cannot be written to" in capsys.readouterr().err


@pytest.fixture
def imagenet_model(tmp_path):
    """A model with ImageNet's outputs, whose classes have no names of their own."""
    model = tiny("J", classes=1000)
    model.pretrained_cfg.pop("label_names", None)
    mjp.save(model, tmp_path / "in")
    return tmp_path / "in"


def test_corruptions_are_made_measured_kept_and_measured_again_from_files(folder, capsys):
    save(folder / "m", **CLASSES)
    some = ("--corruptions", "contrast", "jpeg_compression", "--workers", "0")
    asked = ("eval", "corruptions", "--model", folder / "m", *some)
    made = (*asked, "--data", folder / "set", "--out", folder / "made")
    assert run(*made, "--keep", folder / "c") == 0
    assert "Top-1 error" in capsys.readouterr().out
    found = records(folder / "made", "eval corruption")
    assert [record["conditions"]["corruption"] for record in found] == [
        "contrast",
        "jpeg_compression",
    ]
    assert (folder / "made" / "corruptions.png").exists()
    assert run(*asked, "--data", folder / "c", "--out", folder / "read") == 0
    again = records(folder / "read", "eval corruption")
    for one, other in zip(found, again, strict=True):
        assert one["conditions"]["corrupted"] == "made here"
        assert other["conditions"]["corrupted"] == "from files"
        for severity in range(1, 6):
            name = f"error_{severity}"
            assert one["values"][name] == other["values"][name]


def test_a_resumed_run_measures_only_what_is_missing(folder, monkeypatch):
    save(folder / "m", **CLASSES)
    asked = ("eval", "corruptions", "--model", folder / "m", "--data", folder / "set")
    out = ("--workers", "0", "--out", folder / "out")
    assert run(*asked, *out, "--corruptions", "contrast", "fog") == 0
    before = records(folder / "out", "eval corruption")
    measured = []
    real = corruptions._measure

    def noted(run, subjects, sets, options):
        measured.extend(sets[0].what.split()[:1] if subjects else ())
        return real(run, subjects, sets, options)

    monkeypatch.setattr(corruptions, "_measure", noted)
    some = ("--corruptions", "contrast", "fog", "pixelate")
    assert run(*asked, *out, *some, "--resume") == 0
    assert measured == ["pixelate"]
    after = records(folder / "out", "eval corruption")
    assert after[:2] == before
    assert [record["conditions"]["corruption"] for record in after[2:]] == ["pixelate"]
    assert run(*asked, *out, *some, "--resume", "--seed", "1") == 0  # Other conditions.
    assert measured == ["pixelate", "clean", "contrast", "fog", "pixelate"]


def test_a_resumed_run_never_takes_another_models_results(folder, monkeypatch):
    first, second = save(folder / "a", "A", **CLASSES), save(folder / "b", "J", **CLASSES)
    asked = ("eval", "corruptions", "--data", folder / "set", "--corruptions", "fog")
    more = ("--workers", "0", "--resume")
    for model, out in ((first, "out"), (second, "out"), (second, "alone")):
        assert run(*asked, *more, "--model", f"x={model}", "--out", folder / out) == 0
    a, b = records(folder / "out", "eval corruption")
    (alone,) = records(folder / "alone", "eval corruption")
    assert b == alone
    assert a["conditions"]["weights"] != b["conditions"]["weights"]
    # And both are there for a run of the two, whatever these are called.
    monkeypatch.setattr("mjp.evaluate.evaluation.gather", None)
    both = ("--model", f"p={first}", f"q={second}", "--out", folder / "out")
    assert run(*asked, *more, *both) == 0
    again = records(folder / "out", "eval corruption")[2:]
    assert [record["values"] for record in again] == [a["values"], b["values"]]


def test_images_too_small_to_corrupt_are_refused_before_any_work(folder, capsys):
    save(folder / "m", img_size=(16, 24), **CLASSES)
    asked = ("eval", "corruptions", "--model", folder / "m", "--data", folder / "set")
    assert run(*asked, "--out", folder / "out", "--workers", "1") == 2
    said = capsys.readouterr().err
    assert "at least 32x32 pixels, not 16x24" in said
    assert "Traceback" not in said


def test_a_kept_copy_is_whole_and_new(folder, capsys):
    save(folder / "m", **CLASSES)
    asked = ("eval", "corruptions", "--model", folder / "m", "--data", folder / "set")
    out = ("--out", folder / "out")
    assert run(*asked, *out, "--keep", folder / "set") == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert run(*asked, *out, "--keep", folder / "c", "--resume") == 2
    assert run(*asked, *out, "--keep", folder / "c", "--jpeg", "0") == 2


def test_labels_are_shown_as_they_are(folder, capsys):
    save(folder / "m", **CLASSES)
    labels = ("a[/b]", "a[red]", "cost $5_{ and $6")
    models = [f"{label}={folder / 'm'}" for label in labels]
    out = folder / "out"
    assert run("eval", "--model", *models, "--data", folder / "set", *FEW, "--out", out) == 0
    printed = capsys.readouterr().out
    assert all(label in printed for label in labels)
    assert labels[2] in (out / "jigsaw.svg").read_text()
    assert run("probe", "--model", *models, "--no-umap", "--repeats", "1", "--out", out) == 0


def test_a_figure_that_cannot_be_written_loses_no_number(folder, capsys):
    save(folder / "m", **CLASSES)
    out = folder / "out"
    (out / "jigsaw.png").mkdir(parents=True)
    asked = ("eval", "--model", folder / "m", "--data", folder / "set", *FEW, "--out", out)
    assert run(*asked) == 1
    shown = capsys.readouterr()
    assert "Top-1" in shown.out
    assert "jigsaw.png" in shown.err
    assert len(records(out)) == 3


@pytest.mark.parametrize("name", ["xcit_nano_12_p16_224", "inception_v3"])
def test_models_of_other_families_are_taken(folder, name):
    wordnet_folder(folder / "a", subset_classes("imagenet_a")[:2], each=1)
    asked = ("eval", "imagenet-a", "--model", f"{name}@random", "--data", folder / "a")
    assert run(*asked, "--workers", "0", "--out", folder / "out") == 0


def test_a_copy_of_imagenet_c_that_lacks_a_corruption_says_what_there_is(folder, capsys):
    save(folder / "m", **CLASSES)
    for severity in range(1, 6):
        write_folder(folder / "c" / "fog" / str(severity), count=3)
    asked = ("eval", "corruptions", "--model", folder / "m", "--data", folder / "c")
    assert run(*asked, "--out", folder / "out", "--workers", "0") == 1
    assert "--corruptions fog" in capsys.readouterr().err


def wordnet_folder(root, names, each=2):
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for copy in range(each):
            (root / name / f"{copy}.png").write_bytes(encoded(10 * number + copy))


def test_among_the_classes_of_the_data_alexnets_errors_are_no_measure(folder, imagenet_model):
    wordnet_folder(folder / "few", imagenet_synsets()[3:6])
    asked = ("eval", "corruptions", "--model", imagenet_model, "--data", folder / "few")
    asked = (*asked, "--corruptions", "contrast", "--workers", "0")
    found = {}
    for among in ("all", "data"):
        assert run(*asked, "--among", among, "--out", folder / among) == 0
        (found[among],) = records(folder / among, "eval corruption")
    assert found["all"]["values"]["relative_to_alexnet"] is not None
    assert found["data"]["values"]["relative_to_alexnet"] is None
    assert found["data"]["values"]["error"] <= found["all"]["values"]["error"]


def test_imagenet_a_is_judged_over_its_200_classes(folder, imagenet_model, capsys):
    import torch

    from mjp.data.source import FolderSource
    from mjp.models.subject import Subject

    names = subset_classes("imagenet_a")
    wordnet_folder(folder / "a", names[5:9])
    asked = ("eval", "imagenet-a", "--model", imagenet_model, "--data", folder / "a")
    assert run(*asked, "--workers", "0", "--out", folder / "out") == 0
    assert "AURRA" in capsys.readouterr().out
    (record,) = records(folder / "out", "eval imagenet-a")
    model, source = mjp.load(imagenet_model).eval(), FolderSource(folder / "a")
    subject = Subject.of("m", model)
    cut = subject.view.transform()
    levels = torch.stack([torch.as_tensor(cut(source.picture(i))) for i in range(8)])
    all_names = imagenet_synsets()
    among = [all_names.index(name) for name in names]
    with torch.no_grad():
        best = model(subject.normalized(levels))[:, among].argmax(dim=1)
    right = [names[i] == source.classes[k] for i, k in zip(best, source.labels, strict=True)]
    assert record["values"]["accuracy"] == pytest.approx(100 * np.mean(right))
    assert record["values"]["images"] == 8
    assert (folder / "out" / "imagenet-a.png").exists()


def test_a_class_that_is_none_of_imagenet_as_is_an_error(folder, imagenet_model, capsys):
    wordnet_folder(folder / "a", [*subset_classes("imagenet_a")[:2], "n01440764"])
    asked = ("eval", "imagenet-a", "--model", imagenet_model, "--data", folder / "a")
    assert run(*asked, "--workers", "0", "--out", folder / "out") == 1
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
    save(folder / "plain", "A")
    save(folder / "mjp", "J")
    models = ("--model", folder / "plain", folder / "mjp")
    out = folder / "out"
    assert run("probe", *models, "--repeats", "2", "--no-umap", "--out", out) == 0
    printed = capsys.readouterr().out
    assert "2-D in cells of the grid" in printed
    assert "1-D in patches" in printed
    one, other = records(out, "probe positions")
    assert one["conditions"]["rows"] == 4
    assert one["conditions"]["cols"] == 6
    assert one["values"]["mae_2d"] != other["values"]["mae_2d"]
    for name in ("pca-2d", "pca-3d", "similarity", "spectrum"):
        assert Image.open(out / f"{name}.png").width > 600
        assert (out / f"{name}.svg").exists()


def test_a_model_without_positions_is_refused_by_name(folder, capsys):
    asked = ("probe", "--model", "mine=resnet18@random", "--out", folder / "out")
    assert run(*asked) == 2
    assert "mine: this ResNet has no table of absolute positions" in capsys.readouterr().err


def test_attention_is_drawn_for_every_picture_and_head(folder, capsys):
    save(folder / "plain", "A")
    save(folder / "registers", "J", reg_tokens=2)
    pictures = folder / "pictures"
    pictures.mkdir()
    for number in range(3):
        (pictures / f"p{number}.png").write_bytes(encoded(number, (40, 70)))
    models = ("--model", folder / "plain", folder / "registers")
    out = folder / "out"
    asked = ("probe", "attention", *models, "--images", pictures, "--most", "2", "--out", out)
    assert run(*asked) == 0
    assert "class token" in capsys.readouterr().out
    assert sorted(path.name for path in out.glob("*.png")) == [
        "attention-p0.png",
        "attention-p1.png",
        "attention.png",
    ]
    assert len(records(out, "probe attention")) == 4
    assert run("probe", "attention", *models, "--images", folder / "no") == 1
    assert run(*asked, "--crop", "0") == 2
    (pictures / "p0.png").write_bytes(b"no picture")
    assert run(*asked) == 1
    assert "p0.png cannot be read" in capsys.readouterr().err


def test_help_shows_what_there_is(capsys):
    assert run("eval", "--help") == 0
    assert "--ratios" in capsys.readouterr().out
    assert run("probe", "attention", "--help") == 0
    assert "--images" in capsys.readouterr().out
