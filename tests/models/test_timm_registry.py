import subprocess
import sys

import pytest
import timm
import torch

import mjp
from mjp.models.checkpoint import _describe
from mjp.models.factory import supported_architectures
from tests.models.kinds import CLASSES, TINY, VITS


def test_every_supported_architecture_is_registered_under_its_prefixed_name():
    registered = set(timm.list_models("mjp_*"))
    assert registered == {f"mjp_{name}" for name in supported_architectures()}
    for name in ("deit_small_patch16_224", "vit_base_patch16_224", "swin_tiny_patch4_window7_224"):
        assert f"mjp_{name}" in registered


FORKS = """
import os, sys, torch, torchvision  # What takes long, and is none of the matter.
assert not {"timm", "mjp"} & set(sys.modules)
for script in sys.argv[1:]:
    if not (child := os.fork()):
        exec(script, {})
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, script
"""


def test_whatever_is_imported_first_all_is_registered_once():
    firsts = [
        "import mjp, timm, mjp.timm",
        "import timm, mjp",
        "import mjp; mjp.create_model",
        "import mjp; mjp.wrap; mjp.load",
        "import mjp.timm",
        "from timm.layers import PatchEmbed; import mjp.core.errors",
    ]
    then = (
        "import timm, mjp, torch; torch.set_default_device('meta'); "
        "print(len(timm.list_models('mjp_deit_*')), len(timm.list_models('deit_*')), "
        "type(timm.create_model('mjp_deit_small_patch16_224')).__name__); "
        "mjp.create_model('deit_tiny_patch16_224')"
    )
    command = [sys.executable, "-c", FORKS, *(f"{first}; {then}" for first in firsts)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for first, told in zip(firsts, done.stdout.splitlines(), strict=True):
        ours, both, kind = told.split()
        assert int(ours) == int(both) > 5, first
        assert kind == "MJPVisionTransformer", first


def test_timm_takes_the_configuration_as_an_argument():
    model = timm.create_model(
        "mjp_vit_tiny_patch16_224", num_classes=CLASSES, mjp={"localization": "linear"}, **TINY
    )
    assert model.mjp_config == mjp.VARIANTS["I"]
    assert model(VITS["plain"].images()).shape == (4, CLASSES)
    with pytest.raises(mjp.ConfigError, match="MJPConfig has no field lokalization"):
        timm.create_model("mjp_vit_tiny_patch16_224", mjp={"lokalization": "linear"})


def test_the_weights_of_a_registered_name_are_those_of_timms():
    with torch.device("meta"):
        ours = timm.create_model("mjp_deit_small_patch16_224").pretrained_cfg
        theirs = timm.create_model("deit_small_patch16_224").pretrained_cfg
    assert ours["hf_hub_id"] == theirs["hf_hub_id"] == "timm/deit_small_patch16_224.fb_in1k"
    assert ours["architecture"] == "mjp_deit_small_patch16_224"


@pytest.mark.slow
@pytest.mark.parametrize("name", supported_architectures())
def test_every_registered_architecture_can_be_built(name):
    with torch.device("meta"):
        ours, theirs = timm.create_model(f"mjp_{name}"), timm.create_model(name)
    assert isinstance(ours, type(theirs))
    own = {name for name, _ in ours.named_parameters()} - {n for n, _ in theirs.named_parameters()}
    assert all(name.startswith(("unknown_position", "locator.")) for name in own)
    assert bool(own) == isinstance(ours, timm.models.vision_transformer.VisionTransformer)
    assert _describe(ours)["num_classes"] == theirs.num_classes  # It can be saved.
    assert _describe(mjp.wrap(theirs))["num_classes"] == theirs.num_classes
