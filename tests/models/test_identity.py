"""Without a plan, a wrapped model is timm's model, bit for bit."""

import pytest
import timm
import torch

import mjp
from mjp.models.factory import ADAPTERS
from tests.models.identity import assert_equal_to_timms
from tests.models.kinds import CLASSES, KINDS, TINY, VITS, Kind


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_logits_and_every_gradient_equal_timms_bitwise(kind: Kind, autocast):
    assert_equal_to_timms(kind, "cpu", autocast)


@pytest.mark.parametrize("letter", ["A", "C", "D", "E", "G", "H", "I", "J"])
def test_every_variant_that_keeps_its_positions_starts_out_as_timms_model(letter):
    plain = VITS["plain"].build().eval()
    wrapped = mjp.wrap(plain, mjp.VARIANTS[letter])
    images = VITS["plain"].images()
    assert torch.equal(wrapped(images), plain(images))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_wrapped_model_shares_its_parameters_with_the_model_it_leaves_alone(kind: Kind):
    plain = kind.build()
    names = [name for name, _ in plain.named_parameters()]
    wrapped = mjp.wrap(plain, mjp.MJPConfig())
    assert [name for name, _ in plain.named_parameters()] == names
    ours = dict(wrapped.named_parameters())
    assert all(ours[name] is parameter for name, parameter in plain.named_parameters())
    assert isinstance(wrapped, type(plain))
    assert type(plain) in [adapter.timm_class for adapter in ADAPTERS]


def test_timms_own_arguments_of_forward_still_work():
    plain = VITS["plain"].build().eval()
    wrapped = mjp.wrap(plain, mjp.MJPConfig())
    images = VITS["plain"].images()
    tokens = 1 + 8
    blocked = torch.ones(4, 1, tokens, tokens, dtype=torch.bool).tril()
    assert torch.equal(wrapped(images, attn_mask=blocked), plain(images, attn_mask=blocked))


@pytest.mark.parametrize(
    "name", ["beit_base_patch16_224", "convnext_atto", "vit_relpos_small_patch16_224"]
)
def test_an_architecture_without_an_adapter_is_refused_with_the_families_that_have_one(name):
    words = "no adapter for.*ViT and DeiT.*Swin.*ResNet"
    with torch.device("meta"), pytest.raises(mjp.UnsupportedModelError, match=words):
        mjp.wrap(timm.create_model(name), mjp.MJPConfig())
    with pytest.raises(mjp.UnsupportedModelError, match=words):
        mjp.create_model(name)


def test_a_name_that_timm_does_not_know_is_refused_with_a_suggestion():
    with pytest.raises(mjp.ConfigError, match="did you mean deit_tiny_patch16_224"):
        mjp.create_model("deit_tinny_patch16_224")


def test_a_convolutional_stem_is_refused():
    with torch.device("meta"):
        hybrid = timm.create_model("vit_tiny_r_s16_p8_224")
    with pytest.raises(mjp.UnsupportedModelError, match="embeds its patches with a HybridEmbed"):
        mjp.wrap(hybrid, mjp.MJPConfig())


def test_wrapping_twice_is_refused():
    with pytest.raises(mjp.ConfigError, match="wrapped already"):
        mjp.wrap(mjp.wrap(VITS["plain"].build()), mjp.MJPConfig())


def test_a_model_can_be_made_by_name():
    model = mjp.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **TINY)
    assert model(VITS["plain"].images()).shape == (4, CLASSES)
    assert model.mjp_config == mjp.MJPConfig()
