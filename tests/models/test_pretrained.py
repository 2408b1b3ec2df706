"""The trained models that are part of the package."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mjp
from mjp.core.errors import ConfigError
from mjp.models.checkpoint import FOLDER, pretrained_names
from mjp.models.opening import ModelName, open_model, open_models
from tests.models.kinds import TINY

ROOT = Path(__file__).parents[2]
NAMES = ["mini-imagenet-mjp", "mini-imagenet-plain"]
MOST_BYTES = 4_000_000


def test_the_models_that_are_promised_are_there():
    assert pretrained_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_the_package_is_small_and_answers_without_a_network(name, monkeypatch):
    def no_network(*_, **__):
        raise AssertionError("a model of the package needs no network")

    monkeypatch.setattr("socket.socket.connect", no_network)
    file = FOLDER / name / "model.safetensors"
    assert file.stat().st_size < MOST_BYTES
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.float16}
    model = mjp.pretrained(name)
    assert not model.training
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    logits = model(torch.rand(2, 3, 64, 64))
    assert logits.shape == (2, 100)
    assert logits.isfinite().all()
    assert len(set(model.pretrained_cfg["label_names"])) == 100
    assert model.mjp_config.positions == ("own" if name.endswith("plain") else "unknown")


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_the_package_has_a_card(name):
    card = (FOLDER / name / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n")
    for heading in (f"# {name}", "## Training", "## Numbers", "## Limits"):
        assert f"\n{heading}\n" in card
    (block,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    given: dict = {}
    exec(compile(block, name, "exec"), given)
    assert given["model"].num_classes == 100
    description = json.loads((FOLDER / name / "config.json").read_text())["pretrained_cfg"]
    assert description["license"] == "mit"  # Not that of the weights that timm has of the name.


def test_what_loading_takes_is_taken():
    model = mjp.pretrained("mini-imagenet-mjp", img_size=48)
    assert model.position_grid() == mjp.PatchGrid(12, 12)
    assert mjp.pretrained("mini-imagenet-mjp", num_classes=7, head="keep").num_classes == 7


def test_a_name_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(mjp.ConfigError, match=r"'mini-imagenet-mpj'; did you mean mini-imagenet-m"):
        mjp.pretrained("mini-imagenet-mpj")
    words = r"no trained model named '../x' \(there is mini-imagenet-mjp, mini-imagenet-plain\)"
    with pytest.raises(mjp.ConfigError, match=words):
        mjp.pretrained("../x")


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_opens_them_by_name(name):
    text = f"pretrained:{name}"
    assert ModelName.parse(text) == ModelName(name, text)
    assert ModelName.parse(f"mine={text}") == ModelName("mine", text)
    opened = open_model(ModelName.parse(text), (48, 48))
    assert opened.position_grid() == mjp.PatchGrid(12, 12)
    assert torch.equal(opened.head.weight, mjp.pretrained(name).head.weight)
    assert list(open_models((text, f"mine={text}"))) == [name, "mine"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mini-imagenet-mjp", "did you mean pretrained:mini-imagenet-mjp"),
        ("pretrained:mini", "no trained model named 'mini'"),
        ("pretrained:mini-imagenet-mjp@w.pth", r"did you mean mini-imagenet-mjp"),
    ],
)
def test_a_name_that_cannot_be_opened_is_told(text, words):
    with pytest.raises(ConfigError, match=words):
        open_model(ModelName.parse(text))


def test_half_precision_is_of_the_file_alone(tmp_path):
    model = mjp.create_model("vit_tiny_patch16_224", num_classes=7, **TINY).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mjp.save(model, tmp_path / "half", precision="fp16")
    mjp.save(model, tmp_path / "own")
    sizes = [(tmp_path / one / "model.safetensors").stat().st_size for one in ("half", "own")]
    assert sizes[0] < 0.6 * sizes[1]
    again = mjp.load(tmp_path / "half").state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert torch.equal(again[name], tensor.half().float())
    with torch.no_grad():
        model.head.bias[0] = 1e6
    with pytest.raises(mjp.CheckpointError, match=r"head.bias has values up to 1e\+06"):
        mjp.save(model, tmp_path / "large", precision="fp16")
    assert not (tmp_path / "large").exists()


@pytest.mark.unchecked
def test_an_unknown_precision_is_refused(tmp_path):
    model = mjp.create_model("vit_tiny_patch16_224", num_classes=7, **TINY)
    with pytest.raises(mjp.ConfigError, match="precision must be one of own, fp16; got 'int4'"):
        mjp.save(model, tmp_path, precision="int4")


def test_counts_stay_whole_numbers_in_half_precision(tmp_path):
    model = mjp.create_model("resnet18", num_classes=7)
    mjp.save(model, tmp_path, precision="fp16")
    again = mjp.load(tmp_path)
    assert again.bn1.num_batches_tracked.dtype == torch.int64
    assert again.bn1.running_var.dtype == torch.float32


def test_a_wheel_has_them(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    script = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=source, capture_output=True, text=True
    )
    if "No module named 'setuptools'" in done.stderr:
        pytest.skip("needs setuptools, which is no dependency")
    assert done.returncode == 0, done.stderr
    (wheel,) = (source / "dist").glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    for name in NAMES:
        for part in ("model.safetensors", "config.json", "README.md"):
            assert f"mjp/pretrained/{name}/{part}" in inside
    assert "mjp/recipes/mini-imagenet-16x16.toml" in inside
