"""Models by what a person calls them, and the trained ones that are part of the package."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import mjp
from mjp.core.errors import CheckpointError, ConfigError
from mjp.models.backbone import MJPBackbone
from mjp.models.checkpoint import FOLDER, pretrained_names
from mjp.models.opening import ModelName, open_model, open_models
from mjp.models.subject import fingerprint
from tests.models.kinds import TINY

ARGUMENTS = {"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 24, "num_heads": 3}


@pytest.fixture
def saved(tmp_path):
    model = mjp.create_model("deit_tiny_patch16_224", mjp.VARIANTS["J"], num_classes=5, **ARGUMENTS)
    mjp.save(model, tmp_path / "run" / "best")
    return tmp_path / "run", model


@pytest.mark.parametrize(
    ("text", "label", "source", "weights"),
    [
        ("vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k", None, None),
        ("mine=resnet50", "mine", "resnet50", None),
        ("resnet50@a/b.pth", "resnet50", "resnet50", "a/b.pth"),
        ("A=deit_tiny@x=y.safetensors", "A", "deit_tiny", "x=y.safetensors"),
        ("B=hf-hub:timm/x", "B", "hf-hub:timm/x", None),
        ("no/such/folder", "folder", "no/such/folder", None),
        ("pretrained:mini-imagenet-mjp", "mini-imagenet-mjp", None, None),
        ("local-dir:a/lr=0.1/m", "m", "local-dir:a/lr=0.1/m", None),
        ("C=local-dir:a/b@c", "C", "local-dir:a/b@c", None),
    ],
)
def test_names_are_taken_apart(text, label, source, weights):
    expected = ModelName(label, source or text, weights)
    assert ModelName.parse(text) == expected


def test_a_path_that_exists_is_taken_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "a=b@c").mkdir()
    monkeypatch.chdir(tmp_path)
    assert ModelName.parse("a=b@c") == ModelName("a=b@c", "a=b@c")
    assert ModelName.parse("L=a=b@c") == ModelName("L", "a=b@c")


def test_a_run_a_folder_and_local_dir_give_the_same_model(saved):
    run, model = saved
    assert ModelName.parse(str(run)).label == ModelName.parse(str(run / "best")).label == "run"
    for text in (str(run), str(run / "best"), f"local-dir:{run / 'best'}"):
        opened = open_model(ModelName.parse(text))
        assert isinstance(opened, MJPBackbone)
        assert not opened.training
        for name, tensor in opened.state_dict().items():
            assert torch.equal(tensor, model.state_dict()[name])


def test_a_folder_that_timm_wrote_is_a_plain_model(tmp_path):
    from timm.models import save_for_hf

    plain = timm.create_model("deit_tiny_patch16_224", num_classes=5, **ARGUMENTS)
    save_for_hf(plain, tmp_path / "timm", model_args=ARGUMENTS)
    opened = open_model(ModelName.parse(f"local-dir:{tmp_path / 'timm'}"))
    assert not isinstance(opened, MJPBackbone)
    assert torch.equal(opened.head.weight, plain.head.weight)


def test_a_file_of_weights_goes_with_the_name_of_its_architecture(tmp_path):
    plain = timm.create_model("deit_tiny_patch16_224", num_classes=7)
    half = {name: tensor.half() for name, tensor in plain.state_dict().items()}
    save_file(half, tmp_path / "w.safetensors")
    opened = open_model(ModelName.parse(f"deit_tiny_patch16_224@{tmp_path / 'w.safetensors'}"))
    assert type(opened) is type(plain)
    assert opened.num_classes == 7
    assert opened.head.weight.dtype == torch.float32
    torch.testing.assert_close(opened.pos_embed, plain.pos_embed, rtol=1e-3, atol=1e-4)
    larger = ModelName.parse(f"mjp_deit_tiny_patch16_224@{tmp_path / 'w.safetensors'}")
    assert open_model(larger, (256, 128)).position_grid() == mjp.PatchGrid(16, 8)
    with pytest.raises(ConfigError, match=r"write ARCHITECTURE@"):
        open_model(ModelName.parse(str(tmp_path / "w.safetensors")))


def test_a_file_of_another_family_is_loaded_strictly(tmp_path):
    mixer = timm.create_model("mixer_s32_224", num_classes=3)
    save_file(mixer.state_dict(), tmp_path / "mixer.safetensors")
    opened = open_model(ModelName.parse(f"mixer_s32_224@{tmp_path / 'mixer.safetensors'}"))
    assert torch.equal(opened.head.weight, mixer.head.weight)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        open_model(ModelName.parse(f"mixer_s16_224@{tmp_path / 'mixer.safetensors'}"))


def test_weights_with_mjp_are_not_opened_as_a_plain_model(saved):
    run, _ = saved
    text = f"deit_tiny_patch16_224@{run / 'best' / 'model.safetensors'}"
    with pytest.raises(CheckpointError, match=r"write mjp_deit_tiny_patch16_224@"):
        open_model(ModelName.parse(text))


def test_another_size_resamples_positions_and_is_nothing_to_a_resnet(saved):
    run, _ = saved
    assert open_model(ModelName.parse(str(run)), (48, 64)).position_grid() == mjp.PatchGrid(6, 8)
    one, other = (open_model(ModelName.parse("resnet18@random"), (48, 64)) for _ in range(2))
    assert torch.equal(one.conv1.weight, other.conv1.weight)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deit_tiny_patch16_225", "neither a folder nor a model of timm's; did you mean"),
        ("local-dir:no/such", "there is no model in no/such"),
        ("mini-imagenet-mjp", "did you mean pretrained:mini-imagenet-mjp"),
        ("pretrained:mini-imagenet-mpj", "did you mean mini-imagenet-mjp"),
        ("pretrained:../x", "no trained model named '../x'; did you mean mini-imagenet-mjp or"),
        ("import:os", "write import:MODULE:FUNCTION"),
        ("deit_tiny_patch16_224@no/such.pth", "no file of weights at no/such.pth"),
        ("a=", "names no model"),
    ],
)
def test_what_is_not_there_is_said(text, message):
    with pytest.raises((ConfigError, CheckpointError), match=message):
        open_model(ModelName.parse(text))


def test_a_module_beside_the_person_is_imported_and_the_path_stays(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("from torch import nn\nmake = nn.Identity\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert isinstance(open_model(ModelName.parse("import:beside:make")), torch.nn.Identity)
    assert sys.path == before


def test_two_models_need_two_labels(saved):
    run, _ = saved
    with pytest.raises(ConfigError, match="two models are called 'run'"):
        open_models((str(run), str(run / "best")))
    assert list(open_models((f"a={run}", f"b={run}"))) == ["a", "b"]
    with pytest.raises(ConfigError, match="name a model"):
        open_models(())


ROOT = Path(__file__).parents[2]
NAMES = ["mini-imagenet-mjp", "mini-imagenet-plain"]
MOST_BYTES = 4_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_the_package_is_small_and_answers_without_a_network(name, monkeypatch):
    def no_network(*_, **__):
        raise AssertionError("a model of the package needs no network")

    monkeypatch.setattr("socket.socket.connect", no_network)
    assert pretrained_names() == NAMES
    file = FOLDER / name / "model.safetensors"
    assert file.stat().st_size < MOST_BYTES
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.float16}
    model = open_model(ModelName.parse(f"pretrained:{name}"))
    assert not model.training
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    logits = model(torch.rand(2, 3, 64, 64))
    assert logits.shape == (2, 100)
    assert logits.isfinite().all()
    assert len(set(model.pretrained_cfg["label_names"])) == 100
    assert model.mjp_config.positions == ("own" if name.endswith("plain") else "unknown")


@pytest.mark.parametrize("name", NAMES)
def test_the_example_on_a_models_card_runs(name):
    card = (FOLDER / name / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    given: dict = {}
    exec(compile(block, name, "exec"), given)
    assert given["model"].num_classes == 100
    description = json.loads((FOLDER / name / "config.json").read_text())["pretrained_cfg"]
    assert description["license"] == "mit"  # Not that of the weights that timm has of the name.


def test_half_precision_is_of_the_file_alone(tmp_path):
    model = mjp.create_model("vit_tiny_patch16_224", num_classes=7, **TINY).eval()
    before = fingerprint(model)
    mjp.save(model, tmp_path / "half", precision="fp16")
    mjp.save(model, tmp_path / "own")
    sizes = [(tmp_path / one / "model.safetensors").stat().st_size for one in ("half", "own")]
    assert sizes[0] < 0.6 * sizes[1]
    again = mjp.load(tmp_path / "half").state_dict()
    assert fingerprint(model) == before
    for name, tensor in model.state_dict().items():
        assert torch.equal(again[name], tensor.half().float())
    with torch.no_grad():
        model.head.bias[0] = 1e6
    with pytest.raises(mjp.CheckpointError, match=r"head.bias has values up to 1e\+06"):
        mjp.save(model, tmp_path / "large", precision="fp16")
    assert not (tmp_path / "large").exists()


def test_a_wheel_has_them(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    script = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if "No module named 'setuptools'" in done.stderr:
        pytest.skip("needs setuptools, which is no dependency")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    for name in NAMES:
        for part in ("model.safetensors", "config.json", "README.md"):
            assert f"mjp/pretrained/{name}/{part}" in inside
    assert "mjp/tasks/classify/recipes/mini-imagenet-16x16.toml" in inside
