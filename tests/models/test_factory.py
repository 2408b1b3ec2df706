"""Models are made by name, wrapped and registered with timm, and go on working as models."""

import subprocess
import sys
from dataclasses import replace

import pytest
import timm
import torch
from timm.models.vision_transformer import ParallelScalingBlock

import mjp
from mjp.models.checkpoint import _describe
from mjp.models.factory import supported_architectures
from tests.models.kinds import CLASSES, OTHERS, TINY, VITS


def test_every_supported_architecture_is_registered_under_its_prefixed_name():
    registered = set(timm.list_models("mjp_*"))
    assert registered == {f"mjp_{name}" for name in supported_architectures()}
    for name in ("deit_small_patch16_224", "vit_base_patch16_224", "swin_tiny_patch4_window7_224"):
        assert f"mjp_{name}" in registered


@pytest.mark.parametrize("first", ["import mjp.timm", "import timm, mjp"])
def test_whatever_is_imported_first_all_is_registered_once(first):
    script = f"""
{first}
import timm, mjp, torch; torch.set_default_device("meta")
assert len(timm.list_models("mjp_deit_*")) == len(timm.list_models("deit_*")) > 5
assert type(timm.create_model("mjp_deit_tiny_patch16_224")).__name__ == "MJPVisionTransformer"
mjp.create_model("deit_tiny_patch16_224")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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


VIT = "vit_tiny_patch16_224"
ADDED = mjp.MJPConfig(absolute_positions="added")
BARE = mjp.MJPConfig(first_block="bare")


def replaced():
    model = VITS["plain"].build()
    model.forward = lambda x: x
    return model


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mjp.create_model("deit_tinny_patch16_224"), "did you mean deit_tiny_patch16_224"),
        (lambda: mjp.create_model("beit_base_patch16_224"), "no adapter for.*DeiT, Swin, ResNet"),
        (lambda: mjp.create_model("resnet18", checkpoint_path="x.pth"), "with mjp.load_weights"),
        (lambda: mjp.create_model("resnet18", mjp=mjp.MJPConfig()), "configuration as config"),
        (lambda: mjp.wrap(mjp.wrap(VITS["plain"].build())), "wrapped already"),
        (lambda: mjp.wrap(replaced()), "forward was replaced on the instance"),
        (lambda: mjp.wrap(VITS["plain"].build(), "J"), "config must be an MJPConfig"),
        (lambda: mjp.create_model(VIT, small_stem=True), f"does not fit {VIT}"),
        (
            lambda: mjp.create_model("resnet18", small_stem=True, pretrained=True),
            "no weights of timm's fit",
        ),
        (lambda: mjp.wrap(OTHERS["resnet"].build(), mjp.VARIANTS["B"]), "only ratio, shape, pixel"),
        (lambda: mjp.wrap(OTHERS["swin"].build(), mjp.VARIANTS["F"]), "takes 'unknown' or 'own'"),
        (
            lambda: mjp.wrap(OTHERS["swin"].build(), replace(ADDED, jigsaw_patch=10)),
            "cut through this Swin's 4x4 tokens",
        ),
        (lambda: mjp.wrap(VITS["plain"].build(pos_embed="none")), "has no position table"),
        (
            lambda: mjp.wrap(timm.create_model("vit_tiny_r_s16_p8_224")),
            "patches with a HybridEmbed",
        ),
        (
            lambda: mjp.wrap(VITS["plain"].build(block_fn=ParallelScalingBlock), BARE),
            "'s is a ParallelScal",
        ),
    ],
)
def test_what_cannot_be_wrapped_is_refused(make, words):
    with pytest.raises((mjp.ConfigError, mjp.UnsupportedModelError), match=words):
        make()


def test_features_only_takes_a_plan_too():
    config = {"ratio": 0.5, "probability": 1.0}
    net = timm.create_model(
        "mjp_vit_tiny_patch16_224", features_only=True, out_indices=(1,), mjp=config, **TINY
    ).eval()
    images = torch.randn(2, 3, 64, 32)
    plan = net.draw_plan(images, torch.Generator().manual_seed(0))
    (feature_map,) = net(images, plan=plan)
    (expected,) = net.model.forward_intermediates(
        images, indices=[1], plan=plan, intermediates_only=True
    )
    assert torch.equal(feature_map, expected)
    assert not torch.equal(feature_map, net(images)[0])
    assert net.localization_loss(plan) > 0
    assert {"model.pos_embed", "model.unknown_position"} <= net.no_weight_decay()


def test_a_model_started_on_the_meta_device_is_initialised_whole():
    for config in (mjp.MJPConfig(), mjp.VARIANTS["F"], mjp.MJPConfig(position_init_std=1.0)):
        with torch.device("meta"):
            model = mjp.wrap(VITS["plain"].build(), config)
        model = model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(777.0)
        model.init_weights()
        assert not any((parameter == 777.0).any() for parameter in model.parameters())
        assert model.pos_embed.std().item() == pytest.approx(config.position_init_std, rel=0.25)
    with torch.device("meta"):
        swin = mjp.wrap(OTHERS["swin"].build(), mjp.MJPConfig(absolute_positions="added"))
    swin = swin.to_empty(device="cpu")
    swin.init_weights()
    assert swin.pos_embed.std().item() == pytest.approx(0.02, rel=0.2)


def test_hooks_and_compilation_of_the_model_before_wrapping():
    plain = VITS["plain"].build()
    calls = []
    handle = plain.register_forward_hook(lambda *call: calls.append(1))
    plain.compile(backend="eager")
    wrapped = mjp.wrap(plain, mjp.VARIANTS["B"])
    images = VITS["plain"].images()
    assert not torch.equal(wrapped(images), plain.forward(images))  # B has no positions.
    assert calls == [1]
    handle.remove()
    wrapped(images)
    assert calls == [1]
