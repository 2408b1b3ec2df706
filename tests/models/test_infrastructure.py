"""What people do with models goes on working: copies, pickles, averages, features, resizing."""

import copy
import pickle

import pytest
import timm
import torch
from timm.utils import ModelEmaV3

import mjp
from tests.models.kinds import CLASSES, KINDS, OTHERS, TINY, TINY_SWIN, VITS, Kind


def model_and_plan(kind: Kind, config=None):
    model = mjp.wrap(kind.build(), config or mjp.MJPConfig(ratio=0.5, probability=1.0)).eval()
    images = kind.images()
    return model, images, model.draw_plan(images, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copies_compute_the_same_and_share_nothing(kind: Kind, copied):
    model, images, plan = model_and_plan(kind)
    twin = copied(model)
    assert torch.equal(twin(images, plan=plan), model(images, plan=plan))
    assert torch.equal(twin.localization_loss(plan), model.localization_loss(plan))
    ours = {id(parameter) for parameter in model.parameters()}
    assert not any(id(parameter) in ours for parameter in twin.parameters())


def test_an_exponential_moving_average_follows_all_parameters():
    model, images, plan = model_and_plan(VITS["plain"])
    average = ModelEmaV3(model, decay=0.5)
    with torch.no_grad():
        model.unknown_position.add_(1.0)
        before = average.module.unknown_position.clone()
    average.update(model)
    torch.testing.assert_close(
        average.module.unknown_position, (before + model.unknown_position) / 2
    )
    assert average.module(images, plan=plan).shape == (4, CLASSES)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_intermediate_features_equal_timms(kind: Kind):
    plain = kind.build().eval()
    wrapped = mjp.wrap(plain, mjp.MJPConfig())
    images = kind.images()
    ours = wrapped.forward_intermediates(images, intermediates_only=True)
    theirs = plain.forward_intermediates(images, intermediates_only=True)
    assert len(ours) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vit_tiny_patch16_224", {**TINY, "out_indices": (0, 1)}),
        ("vit_tiny_patch16_224", {**TINY, "depth": 4}),
        ("deit_tiny_distilled_patch16_224", {**TINY, "out_indices": 2}),
        ("swin_tiny_patch4_window7_224", TINY_SWIN),
        ("resnet18", {}),
    ],
)
def test_features_only_gives_as_many_maps_of_the_same_size_as_timms(name, arguments):
    theirs = timm.create_model(name, features_only=True, **arguments).eval()
    ours = timm.create_model(f"mjp_{name}", features_only=True, **arguments).eval()
    images = torch.randn(2, 3, 64, 32)
    assert [one.shape for one in ours(images)] == [one.shape for one in theirs(images)]
    assert ours.feature_info.channels() == theirs.feature_info.channels()


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


@pytest.mark.unchecked
def test_features_only_refuses_what_the_model_refuses():
    net = timm.create_model("mjp_resnet18", features_only=True)
    with pytest.raises(mjp.ConfigError, match="images must be in floating point"):
        net(torch.zeros(1, 3, 64, 32, dtype=torch.int64))


def test_resizing_224_to_384_resamples_the_table_as_timm_does_and_keeps_the_unknown_row():
    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", depth=1)
    wrapped = mjp.wrap(copy.deepcopy(plain), mjp.MJPConfig())
    unknown = wrapped.unknown_position.clone()
    for model in (plain, wrapped):
        model.set_input_size(img_size=(384, 384))
    assert wrapped.pos_embed.shape == (1, 1 + 24 * 24, 192)
    assert torch.equal(wrapped.pos_embed, plain.pos_embed)
    assert torch.equal(wrapped.unknown_position, unknown)
    assert wrapped.position_grid() == mjp.PatchGrid(24, 24)
    images = torch.randn(1, 3, 384, 384)
    assert torch.equal(wrapped(images), plain(images))
    plan = mjp.sample_plan(wrapped.grid_of(images), 1, 0.27, torch.Generator())
    assert wrapped(images, plan=plan).shape == (1, 1000)


def test_resizing_keeps_rows_and_columns_apart_and_resamples_the_index_table_too():
    model = mjp.wrap(VITS["plain"].build(), mjp.VARIANTS["F"])
    with torch.no_grad():
        model.index_embed.copy_(model.pos_embed)
    model.set_input_size(img_size=(96, 32))
    assert model.position_grid() == mjp.PatchGrid(6, 2)
    assert torch.equal(model.index_embed, model.pos_embed)


def test_resizing_a_swin_resamples_its_absolute_table():
    config = mjp.MJPConfig(absolute_positions="added")
    model = mjp.wrap(OTHERS["swin"].build(), config)
    unknown = model.unknown_position.clone()
    model.set_input_size(img_size=(128, 64), window_size=(4, 4))
    assert model.pos_embed.shape == (1, 32 * 16, 24)
    assert torch.equal(model.unknown_position, unknown)
    assert model(torch.randn(1, 3, 128, 64)).shape == (1, CLASSES)


def test_a_new_head_gradient_checkpointing_and_half_precision_work():
    model, images, plan = model_and_plan(VITS["plain"])
    model.reset_classifier(3)
    model.set_grad_checkpointing(True)
    model.train()
    model(images, plan=plan).sum().backward()
    assert model.unknown_position.grad is not None
    half = model.eval().to(torch.bfloat16)
    assert half(images.bfloat16(), plan=plan).dtype == torch.bfloat16
    assert torch.isfinite(half.localization_loss(plan))


def test_plain_tensors_of_the_model_move_with_it_to_another_device():
    model, images, plan = model_and_plan(VITS["plain"])
    moved = copy.deepcopy(model).to("meta")
    assert moved(images.to("meta"), plan=plan.to("meta")).device.type == "meta"


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


def test_an_adapter_can_be_constructed_like_the_class_it_extends():
    from mjp.models.vit import MJPVisionTransformer

    model = MJPVisionTransformer(mjp=mjp.VARIANTS["I"], num_classes=CLASSES, **TINY)
    assert model.locator.kind == "linear"
    assert model.unknown_position.std().item() == pytest.approx(0.02, rel=0.4)
    assert model(VITS["plain"].images()).shape == (4, CLASSES)


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
