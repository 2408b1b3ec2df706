"""What every adapter holds: a new family of backbones inherits `AdapterContract`.

class TestSwin(AdapterContract):
    kinds = {"swin": Kind("swin_tiny_patch4_window7_224", TINY_SWIN, has_positions=False)}
"""

import copy
import pickle
from typing import ClassVar

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

import mjp
from mjp.models.factory import ADAPTERS
from tests.models.kinds import CLASSES, Kind

JIGSAW = mjp.MJPConfig(ratio=0.5, probability=1.0)
ONE_BLOCK = {"depth": 1}
"""For torch.compile, which would trace a second block for a second time."""


def outcome(model, images, labels, autocast):
    """Logits and all gradients of one step in training mode."""
    torch.manual_seed(1)
    model.train()
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=autocast):
        logits = model(images)
        loss = F.cross_entropy(logits.float(), labels)
    loss.backward()
    return logits, {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_equal_to_timms(kind: Kind, device: str, autocast: bool) -> None:
    """Logits and gradients equal timm's bit for bit, wherever timm's model equals itself.

    Some kernels (bicubic resampling on a GPU, bf16 convolutions on some CPUs) do not repeat.
    """
    plain = kind.build().to(device)
    twin = copy.deepcopy(plain)
    wrapped = mjp.wrap(copy.deepcopy(plain), mjp.MJPConfig())
    images, labels = kind.images().to(device), torch.randint(CLASSES, (4,)).to(device)
    logits, gradients = outcome(plain, images, labels, autocast)
    logits_again, gradients_again = outcome(twin, images, labels, autocast)
    if not torch.equal(logits_again, logits):
        pytest.skip("timm's own model does not repeat itself on this machine")
    ours, our_gradients = outcome(wrapped, images, labels, autocast)
    assert torch.equal(ours, logits)
    repeatable = [name for name in gradients if torch.equal(gradients[name], gradients_again[name])]
    assert len(repeatable) >= 0.9 * len(gradients)
    for name in repeatable:
        assert torch.equal(our_gradients[name], gradients[name]), name
    added = {name for name in our_gradients if name not in gradients}
    assert all(our_gradients[name] is None for name in added)
    assert bool(added) == kind.has_positions


def model_and_plan(kind: Kind, config=JIGSAW):
    """A wrapped model in evaluation mode, images, and a plan for them."""
    model = mjp.wrap(kind.build(), config).eval()
    images = kind.images()
    return model, images, model.draw_plan(images, torch.Generator().manual_seed(0))


def plan_for(model, images, ratio=0.5, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return mjp.sample_plan(model.grid_of(images), len(images), ratio, generator, **options)


def total_loss(model):
    def loss(images, plan):
        return model(images, plan=plan).square().mean() + model.localization_loss(plan)

    return loss


class AdapterContract:
    """A subclass names tiny models of its family."""

    kinds: ClassVar[dict[str, Kind]]

    def pytest_generate_tests(self, metafunc):
        if "kind" in metafunc.fixturenames:
            metafunc.parametrize("kind", self.kinds.values(), ids=self.kinds)

    @pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
    def test_logits_and_every_gradient_equal_timms_bitwise(self, kind, autocast):
        assert_equal_to_timms(kind, "cpu", autocast)

    def test_a_wrapped_model_shares_its_parameters_with_the_model_it_leaves_alone(self, kind):
        plain = kind.build()
        names = [name for name, _ in plain.named_parameters()]
        wrapped = mjp.wrap(plain, mjp.MJPConfig())
        assert [name for name, _ in plain.named_parameters()] == names
        ours = dict(wrapped.named_parameters())
        assert all(ours[name] is parameter for name, parameter in plain.named_parameters())
        assert isinstance(wrapped, type(plain))
        assert type(plain) in [adapter.timm_class for adapter in ADAPTERS]

    @pytest.mark.parametrize(
        "copied",
        [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
        ids=["deepcopy", "pickle"],
    )
    def test_copies_compute_the_same_and_share_nothing(self, kind, copied):
        model, images, plan = model_and_plan(kind)
        twin = copied(model)
        assert torch.equal(twin(images, plan=plan), model(images, plan=plan))
        assert torch.equal(twin.localization_loss(plan), model.localization_loss(plan))
        ours = {id(parameter) for parameter in model.parameters()}
        assert not any(id(parameter) in ours for parameter in twin.parameters())

    def test_intermediate_features_equal_timms(self, kind):
        plain = kind.build().eval()
        wrapped = mjp.wrap(plain, mjp.MJPConfig())
        images = kind.images()
        ours = wrapped.forward_intermediates(images, intermediates_only=True)
        theirs = plain.forward_intermediates(images, intermediates_only=True)
        assert len(ours) == len(theirs)
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))

    def test_features_only_gives_as_many_maps_of_the_same_size_as_timms(self, kind):
        arguments = {**kind.arguments, "features_only": True}
        if "depth" in arguments:
            arguments["depth"] = 4  # More than as many as are given by default.
        theirs = timm.create_model(kind.name, **arguments).eval()
        ours = timm.create_model(f"mjp_{kind.name}", **arguments).eval()
        images = kind.images(2)
        assert [one.shape for one in ours(images)] == [one.shape for one in theirs(images)]
        assert ours.feature_info.channels() == theirs.feature_info.channels()

    def test_a_saved_model_comes_back_bit_for_bit(self, kind, tmp_path):
        model = mjp.create_model(kind.name, JIGSAW, num_classes=CLASSES, **kind.arguments).eval()
        mjp.save(model, tmp_path / "model")
        again = mjp.load(tmp_path / "model").eval()
        images = kind.images()
        plan = model.draw_plan(images, torch.Generator().manual_seed(0))
        assert torch.equal(again(images, plan=plan), model(images, plan=plan))
        assert again.mjp_config == model.mjp_config
        files = sorted(path.name for path in (tmp_path / "model").iterdir())
        assert files == ["config.json", "model.safetensors"]

    def test_plain_timm_weights_load_and_the_head_can_be_kept(self, kind, tmp_path):
        plain = kind.build()
        save_file(plain.state_dict(), tmp_path / "plain.safetensors")
        model = mjp.wrap(kind.build(), mjp.MJPConfig())
        mjp.load_weights(model, tmp_path / "plain.safetensors")
        for name, value in plain.state_dict().items():
            assert torch.equal(model.state_dict()[name], value)
        model.reset_classifier(3)
        with pytest.raises(mjp.CheckpointError, match="head='keep'"):
            mjp.load_weights(model, tmp_path / "plain.safetensors")
        mjp.load_weights(model, tmp_path / "plain.safetensors", head="keep")

    @pytest.mark.unchecked
    def test_a_plan_that_is_not_for_these_images_is_refused(self, kind):
        model, images, plan = model_and_plan(kind)
        with pytest.raises(mjp.ConfigError, match="the plan is for 4 images, the batch has 3"):
            model(images[:3], plan=plan)
        other = mjp.JigsawPlan.identity(mjp.PatchGrid(7, 7), 4)
        words = r"the plan is on a 7x7 grid.*the images are cut into"
        with pytest.raises(mjp.ConfigError, match=words):
            model(images, plan=other)
        with pytest.raises(mjp.ConfigError, match=r"the plan is on meta, the images are on cpu"):
            model(images, plan=plan.to("meta"))

    @pytest.mark.unchecked
    def test_what_is_no_batch_of_images_or_no_plan_is_refused(self, kind):
        model, images, plan = model_and_plan(kind)
        for wrong in (images.to(torch.uint8), images[0], [images]):
            with pytest.raises(mjp.ConfigError, match="images must be a torch tensor in floating"):
                model(wrong)
        with pytest.raises(mjp.ConfigError, match=r"got torch.uint8 of shape \(4, 3"):
            model.draw_plan(images.to(torch.uint8), torch.Generator())
        with pytest.raises(mjp.ConfigError, match="its generator must be on the cpu, not"):
            model.draw_plan(images, None)
        for method in (model, model.forward_features, model.forward_intermediates):
            with pytest.raises(mjp.ConfigError, match="pass the plan by its name"):
                method(images, plan)
        with pytest.raises(mjp.ConfigError, match="plan must be a JigsawPlan or None, got True"):
            model(images, plan=True)

    @pytest.mark.unchecked
    @pytest.mark.usefixtures("fresh_compiler")
    def test_one_full_graph_serves_changing_plans(self, kind):
        # In evaluation mode: drop path and batch statistics would differ between two calls.
        model = mjp.wrap(kind.build(**(ONE_BLOCK if kind.has_positions else {})), JIGSAW).eval()
        loss = total_loss(model)
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        generator = torch.Generator().manual_seed(0)
        images = kind.images()
        compiled(images, model.draw_plan(images, generator)).backward()
        with torch.compiler.set_stance("fail_on_recompile"):
            for _ in range(3):
                plan = model.draw_plan(images, generator)
                model.zero_grad()
                compiled(images, plan).backward()
                named = model.named_parameters()
                ours = {name: p.grad.clone() for name, p in named if p.grad is not None}
                model.zero_grad()
                loss(images, plan).backward()
                for name, gradient in ours.items():
                    expected = model.get_parameter(name).grad
                    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6, msg=name)


class PixelJigsawContract(AdapterContract):
    """For families whose jigsaw moves the pixels of the image."""

    def test_the_jigsaw_is_that_of_the_pixels(self, kind):
        model, images, plan = model_and_plan(kind)
        assert plan.grid == mjp.PatchGrid(4, 2)
        assert torch.equal(model(images, plan=plan), model(plan.apply(images)))
        assert not torch.equal(model(images, plan=plan), model(images))
        assert model.localization_loss(plan) == 0
        assert "no table of absolute positions" in model.mjp_parts()

    def test_a_bare_first_block_is_for_vits(self, kind):
        with pytest.raises(mjp.ConfigError, match="first_block='bare' is for ViT"):
            mjp.wrap(kind.build(), mjp.MJPConfig(first_block="bare"))

    def test_an_image_that_is_no_whole_number_of_patches_is_refused(self, kind):
        model = mjp.wrap(kind.build(), JIGSAW)
        with pytest.raises(mjp.ConfigError, match="a 65x32 image cannot be cut into 16x16 patches"):
            model.draw_plan(torch.zeros(1, 3, 65, 32), torch.Generator())
