import copy
import math
import sys

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm as gaussian

import mjp
from mjp.core.errors import ConfigError
from mjp.privacy import sharing
from mjp.privacy.defence_updates import Clip, PrivateSGD
from mjp.privacy.defences import PARTS, Defence, parse_defence
from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Reading
from mjp.privacy.update import SharedUpdate
from tests.models.kinds import CLASSES, OTHERS, TINY, VITS
from tests.privacy.contracts import DefenceContract

TABLE = "pos_embed"


def plain() -> PublicModel:
    return PublicModel.of(VITS["plain"].build().eval())


def wrapped(**arguments) -> PublicModel:
    model = mjp.wrap(VITS["plain"].build(), mjp.MJPConfig(ratio=0.5, **arguments))
    return PublicModel.of(model.eval())


def client(batch=1):
    labels = torch.randint(CLASSES, (batch,), generator=torch.Generator().manual_seed(1))
    return VITS["plain"].images(batch), labels


def source(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def masked_update(public, batch=1):
    """An update under MJP, and which rows of the position gradient are exact zeros."""
    plan = parse_defence("mjp=0.5").draw_plan(public, batch, source())
    update = sharing.share(public, *client(batch), plan)
    rows = update.gradients[TABLE][0, 1:]
    assert torch.equal((rows == 0).all(dim=1), plan.masked.all(dim=0))
    return update, plan.masked[0]


def flat(gradients) -> torch.Tensor:
    return torch.cat([one.double().flatten() for one in gradients.values()])


def sent() -> tuple[PublicModel, SharedUpdate]:
    """A public model, and an update of it."""
    public = plain()
    return public, sharing.share(public, *client())


def processed(text, public, update, seed=0) -> SharedUpdate:
    return parse_defence(text).process(public, update, source(seed))


# Parsing.


SINGLE = [
    "mjp=0.27",
    "mjp=0.27,0.5",
    "shuffle=0.27",
    "frozen",
    "unshared",
    "sincos",
    "fp16",
    "bf16",
    "prune=0.9",
    "clip=1",
    "noise=0.0001",
    "dp=1",
    "dp=0.5,2",
    "batch=4",
    "steps=4,0.01",
]


def test_every_part_is_tried_here():
    assert {text.split("=")[0] for text in SINGLE} == {*PARTS}


class TestEveryDefence(DefenceContract):
    @pytest.fixture(params=SINGLE)
    def text(self, request):
        return request.param


@pytest.mark.parametrize(
    ("loose", "canonical"),
    [
        (" MJP = 0.270 , 1 + clip=1.0 ", "mjp=0.27+clip=1"),
        ("dp=1.0,1.0", "dp=1"),
        ("clip=1e+3+noise=1e-6", "clip=1000+noise=1e-06"),
        ("clip=1e+20", "clip=1e20"),
    ],
)
def test_other_ways_to_write_a_number_mean_the_same(loose, canonical):
    assert str(parse_defence(loose)) == canonical
    assert parse_defence(loose) == parse_defence(canonical)


positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
chance = st.floats(min_value=0, max_value=1, exclude_min=True)


@given(chance, chance, positive, positive, positive, st.integers(1, 10**9))
def test_any_numbers_survive_the_round_trip(ratio, probability, norm, std, rate, n):
    text = f"mjp={ratio!r},{probability!r}+clip={norm!r}+noise={std!r}+batch={n}+steps={n},{rate!r}"
    defence = parse_defence(text)
    assert parse_defence(str(defence)) == defence
    jigsaw, clip, noise, _, steps = defence.parts
    assert (jigsaw.ratio, jigsaw.probability) == (ratio, probability)
    assert (clip.norm, noise.std, steps.steps) == (norm, std, n)
    assert (defence.images_per_update, defence.local_steps, defence.learning_rate) == (n, n, rate)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mjp=0.27+", "has a part without a name"),
        ("prun=0.9", "no defence 'prun'; did you mean prune"),
        ("none+clip=1", "none cannot be part of 'none\\+clip=1'"),
        ("mjp", "write mjp=<ratio>\\[,<probability>\\]"),
        ("frozen=1", "'frozen=1' is no defence; write frozen"),
        ("clip=one", "'one' in 'clip=one' is no number"),
        ("batch=2.5", "'2.5' in 'batch=2.5' is no whole number"),
        ("steps=0,0.1", "steps of steps must be a whole number of at least 1, got 0"),
        ("mjp=1.2", "ratio of mjp must be a number between 0 and 1, got 1.2"),
        ("mjp=0", "ratio of mjp must be above 0, got 0"),
        ("prune=1", "prune=1 leaves nothing to send"),
        ("clip=-1", "norm of clip must be a number of at least 0, got -1"),
        ("noise=inf", "must be a number of at least 0, got inf"),
        ("dp=0", "noise multiplier of dp must be above 0"),
        ("clip=1+clip=2", "clip is there twice, clip=1 and clip=2; choose one"),
        ("mjp=0.2+shuffle=0.2", "mjp and shuffle exclude each other: both shuffle"),
        ("frozen+unshared", "frozen and unshared exclude each other: each of them keeps"),
        ("fp16+bf16", "fp16 and bf16 exclude each other: the second rounding"),
        ("dp=1+clip=1", "dp and clip exclude each other: DP-SGD clips by itself"),
        ("noise=1+dp=1", "dp and noise exclude each other: DP-SGD adds noise by itself"),
        ("dp=1+steps=2,0.1", "dp and steps exclude each other: each noisy step"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_defence(text)


# The public model.


def test_mjp_around_a_plain_model_keeps_its_answers_without_a_plan():
    public, defence = plain(), parse_defence("mjp=0.5")
    images, _ = client(3)
    state = torch.get_rng_state()
    defended = defence.public(public)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(defended.logits(images), public.logits(images))
    assert type(public.model) is timm.models.VisionTransformer
    assert defended.surface.unknown == "unknown_position"
    assert public.surface.unknown is None
    again = defence.public(public)
    assert torch.equal(again.model.unknown_position, defended.model.unknown_position)
    assert 0.005 < defended.model.unknown_position.detach().std() < 0.05
    plan = defence.draw_plan(defended, 3, source())
    assert not torch.equal(defended.logits(images, plan), public.logits(images))
    with torch.no_grad():
        defended.model.pos_embed.zero_()
    assert public.model.pos_embed.any(), "the copy shares nothing with the model"


@pytest.mark.parametrize(
    ("text", "build", "notes"),
    [
        ("mjp=0.5", plain, ["unknown position is untrained"]),
        ("mjp=0.5", wrapped, []),
        ("mjp=0.25", wrapped, ["own ratio is 0.5, not 0.25"]),
        ("mjp=0.5+sincos", plain, ["unknown position", "not trained with sin-cos positions"]),
        ("clip=1", plain, []),
    ],
)
def test_notes_tell_what_was_not_trained(text, build, notes):
    for note, part in zip(parse_defence(text).notes(build()), notes, strict=True):
        assert part in note


@pytest.mark.parametrize("kind", ["plain", "distilled", "registers", "average pooling"])
def test_sincos_replaces_the_rows_of_the_patches_and_has_no_gradient(kind):
    public = PublicModel.of(VITS[kind].build().eval())
    defended = parse_defence("sincos").public(public)
    table = defended.model.pos_embed
    first = defended.surface.first_row
    assert not table.requires_grad
    assert public.model.pos_embed.requires_grad
    assert torch.equal(table[:, :first], public.model.pos_embed[:, :first])
    rows = table[0, first:]
    for place in range(8):  # Four rows of two patches, by the formula.
        row, col = divmod(place, 2)
        angles = [axis / 10000 ** (k / 12) for axis in (row, col) for k in range(12)]
        axes = torch.tensor(angles).reshape(2, 12)
        expected = torch.stack([axes.sin(), axes.cos()], dim=1).flatten()
        assert torch.allclose(rows[place], expected, atol=1e-6)
    update = parse_defence("sincos").share(defended, *client(), None, source())
    assert TABLE not in update.gradients
    assert "patch_embed.proj.weight" in update.gradients


def test_the_plain_variant_is_defended_as_timms_model_is():
    plain = VITS["plain"].build().eval()
    variant = mjp.wrap(copy.deepcopy(plain), mjp.VARIANTS["A"])
    defence = parse_defence("mjp=0.5")
    one, other = (defence.public(PublicModel.of(model)) for model in (plain, variant))
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name])
    assert one.model.mjp_config == other.model.mjp_config
    assert variant.unknown_position is None
    (note,) = defence.notes(PublicModel.of(variant))
    assert "was not trained with MJP" in note


class Other(timm.models.VisionTransformer):
    """A model that only somebody else knows."""


def swin():
    return mjp.wrap(OTHERS["swin"].build(), mjp.MJPConfig(absolute_positions="added"))


@pytest.mark.parametrize(
    ("text", "build", "message"),
    [
        ("mjp=0.5", swin, "MJPSwinTransformer is no ViT of timm"),
        ("mjp=0.5", lambda: wrapped(positions="own").model, "so no unknown position"),
        ("sincos", lambda: VITS["plain"].build(embed_dim=18), "multiple of 4, this model has 18"),
        (
            "mjp=0.5",
            lambda: Other(**TINY, patch_size=16, num_classes=CLASSES),
            "mjp cannot be put around this model: .*no adapter",
        ),
        ("mjp=0.05", VITS["plain"].build, "takes 0 of the 8 patches .* at least 0.125"),
        *(
            (text, lambda: VITS["plain"].build(pos_embed="none"), "is about the table of absolute")
            for text in ("mjp=0.5", "frozen", "unshared", "sincos")
        ),
    ],
)
def test_models_that_a_defence_does_not_fit_are_refused(text, build, message):
    public = PublicModel.of(build())
    with pytest.raises(ConfigError, match=message):
        parse_defence(text).public(public)


# Plans.


def test_each_image_gets_its_own_mask_of_the_ratio():
    plan = parse_defence("mjp=0.5").draw_plan(plain(), 16, source())
    assert plan.masked.sum(dim=1).tolist() == [4] * 16
    assert len({tuple(row) for row in plan.masked.tolist()}) > 1
    assert parse_defence("clip=1").draw_plan(plain(), 16, source()) is None
    assert parse_defence("mjp=0.125").draw_plan(plain(), 1, source()).masked.sum() == 1
    with pytest.raises(ConfigError, match=r"shuffle=0.125 takes 1 of the 8 .* at least 0.25"):
        parse_defence("shuffle=0.125").draw_plan(plain(), 1, source())


def test_each_client_decides_by_itself_whether_there_is_a_jigsaw():
    public, defence = plain(), parse_defence("mjp=0.5,0.25")
    plan = defence.draw_plan(public, 2, source(), clients=400)
    masked = plan.masked.any(dim=1).reshape(400, 2)
    assert torch.equal(masked[:, 0], masked[:, 1])
    assert 70 < masked[:, 0].sum() < 130
    still = ~masked.reshape(-1)
    assert torch.equal(plan.source[still], torch.arange(8).expand(int(still.sum()), 8))
    generator = source()
    alone = [defence.draw_plan(public, 1, generator) is not None for _ in range(400)]
    assert 70 < sum(alone) < 130


@pytest.mark.gpu
def test_a_plan_and_noise_for_a_model_on_the_gpu_come_from_a_generator_on_the_cpu():
    public = PublicModel.of(VITS["plain"].build().eval().cuda())
    defence = parse_defence("shuffle=0.5+noise=1e-3")
    images, labels = client()
    plan = defence.draw_plan(public, 1, source())
    assert plan.device.type == "cuda"
    defence.share(public, images.cuda(), labels.cuda(), plan, source())


# Sharing.


def test_a_shuffling_client_moves_the_pixels_and_hides_no_position():
    public, (images, labels) = wrapped(), client()
    defence = parse_defence("shuffle=0.5")
    plan = defence.draw_plan(public, 1, source())
    update = defence.share(public, images, labels, plan, source())
    moved, still = (sharing.share(public, one, labels) for one in (plan.apply(images), images))
    assert torch.equal(flat(update.gradients), flat(moved.gradients))
    assert not torch.equal(flat(update.gradients), flat(still.gradients))
    assert Reading(public, update).masked is None


def test_an_update_keeps_its_facts_and_gets_the_name_of_its_defence():
    public = wrapped()
    images, labels = client(2)
    defence = parse_defence("clip=1+batch=2+steps=3,0.01+fp16")
    update = defence.share(public, images, labels, None, source(), localization_weight=0.1)
    assert update.defence == "clip=1+batch=2+steps=3,0.01+fp16"
    assert (update.batch, update.local_steps, update.learning_rate) == (2, 3, 0.01)
    assert update.localization_weight == 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch=4", "update is of 2 images, but its defence says batch=4"),
        ("steps=4,0.01", "of 1 local steps at a learning rate of None, but .* steps=4,0.01"),
        ("dp=1", "this update is one of 2 images and 1 steps"),
        ("fp16", "pos_embed goes up to 100000, which fp16 cannot hold"),
    ],
)
def test_an_update_that_its_defence_cannot_be_of_is_refused(text, message):
    public, update = plain(), sharing.share(plain(), *client(2))
    if text == "fp16":
        update = SharedUpdate({TABLE: torch.full((1, 9, 48), 1e5)})
        assert processed("bf16", public, update).gradients[TABLE].max() > 9e4
    with pytest.raises(ConfigError, match=message):
        processed(text, public, update)


def test_a_client_that_does_not_do_what_its_defence_says_is_refused():
    public = plain()
    plan = parse_defence("shuffle=0.5").draw_plan(public, 1, source())
    for text, drawn, more, message in [
        ("clip=1", plan, {}, "clip=1 has no jigsaw, but a plan"),
        ("shuffle=0.5", None, {}, "shuffle=0.5 needs a plan"),
        ("frozen", None, {}, "frozen goes with another public model"),
        ("none", None, {"localization_weight": 0.1}, "needs a model with a locator"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse_defence(text).share(public, *client(), drawn, source(), **more)
    once = parse_defence("shuffle=0.5,0.5+clip=1").share(public, *client(), None, source())
    with pytest.raises(ConfigError, match="clip=1 already"):
        processed("noise=1", public, once)


def sgd(model, images, labels, steps, rate):
    """A plain training loop: the parameters before minus those after, over rate and steps."""
    model = copy.deepcopy(model)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return {
        name: (before[name] - one.detach()) / (rate * steps)
        for name, one in model.named_parameters()
        if one.requires_grad
    }


@pytest.mark.parametrize("text", [f"{one}steps=4,0.5" for one in ("", "frozen+", "unshared+")])
def test_local_steps_equal_a_plain_training_loop(text):
    defence = parse_defence(text)
    model = VITS["plain"].build().eval().double()
    public = defence.public(PublicModel.of(model))
    images, labels = client(2)
    images = images.double()
    update = defence.share(public, images, labels, None, source())
    expected = sgd(public.model, images, labels, 4, 0.5)
    assert (TABLE in expected) == ("frozen" not in text)
    if "unshared" in text:  # It is trained, and not sent.
        del expected[TABLE]
    assert update.gradients.keys() == expected.keys()
    for name, one in expected.items():
        assert torch.allclose(update.gradients[name], one, atol=1e-10), name
    once = sgd(public.model, images, labels, 1, 0.5)
    first = flat({name: once[name] for name in expected})
    assert (flat(update.gradients) - first).norm() > 1e-2 * first.norm()


# Processing.


@pytest.mark.parametrize("text", ["bf16", "clip=0.01+prune=0.3+fp16"])
def test_exact_zero_rows_of_mjp_stay_exact_zeros(text):
    public = wrapped()
    update, masked = masked_update(public)
    table = processed(text, public, update).gradients[TABLE][0, 1:]
    assert (table[masked] == 0).all()
    assert (table[~masked] != 0).any(dim=1).all()


def test_clipping_scales_everything_by_one_factor():
    public, update = sent()
    norm = flat(update.gradients).norm()
    clipped = processed("clip=0.25", public, update)
    assert norm > 0.25
    assert torch.isclose(flat(clipped.gradients).norm(), torch.tensor(0.25).double(), rtol=1e-6)
    for name, one in update.gradients.items():
        assert torch.allclose(clipped.gradients[name], one * float(0.25 / norm), rtol=1e-6)
    loose = processed("clip=1e9", public, update)
    assert torch.equal(flat(loose.gradients), flat(update.gradients))


def test_pruning_keeps_the_largest_entries_of_each_tensor():
    share = 0.7
    public, update = sent()
    pruned = processed(f"prune={share}", public, update)
    for name, one in update.gradients.items():
        kept = pruned.gradients[name]
        away = kept == 0
        assert away.sum() == max(round(share * one.numel()), (one == 0).sum()), name
        assert torch.equal(kept[~away], one[~away])
        if away.any() and not away.all():
            assert one[away].abs().max() <= one[~away].abs().min()


@pytest.mark.parametrize(
    ("text", "dtype", "error", "least"),
    [("fp16", torch.float16, 2.0**-11, 2.0**-25), ("bf16", torch.bfloat16, 2.0**-8, 0.0)],
)
def test_casting_rounds_and_leaves_the_tensors_in_its_type(text, dtype, error, least):
    public, update = sent()
    cast = processed(text, public, update)
    for name, one in update.gradients.items():
        assert cast.gradients[name].dtype == dtype
        difference = (cast.gradients[name].double() - one.double()).abs()
        assert (difference <= error * one.double().abs() + least).all(), name
    assert (flat(cast.gradients) - flat(update.gradients)).norm() > 0


@pytest.mark.parametrize("std", [1e-4, 3.0])
def test_noise_is_gaussian_of_its_standard_deviation(std):
    public, update = sent()
    noisy = processed(f"noise={std}", public, update)
    noise = flat(noisy.gradients) - flat(update.gradients)
    assert abs(noise.std() / std - 1) < 0.01
    assert abs(noise.mean() / std) < 0.02
    assert abs((noise.abs() < std).double().mean() - 0.6827) < 0.01
    other = processed(f"noise={std}", public, update, seed=1)
    assert not torch.equal(flat(other.gradients), flat(noisy.gradients))


def test_parts_act_in_the_order_they_are_written():
    public, update = sent()
    for text, least, most in [
        ("clip=0.5+prune=0.9", 0, 0.49),
        ("prune=0.9+clip=0.5", 0.499, 0.501),
        ("clip=0.5+noise=1", 10, math.inf),
        ("noise=1+clip=0.5", 0.499, 0.501),
    ]:
        assert least < flat(processed(text, public, update).gradients).norm() < most, text


# DP-SGD.


def slow_private_sum(public, images, labels, max_norm):
    """A second implementation: a backward pass an image, clipped, summed in a loop."""
    model = copy.deepcopy(public.model).double()
    total = None
    for image, label in zip(images.double(), labels, strict=True):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(image[None]), label[None]).backward()
        one = torch.cat([p.grad.flatten() for p in model.parameters()])
        one = one * min(1.0, max_norm / float(one.norm()))
        total = one if total is None else total + one
    return total


def test_clipping_and_mean_of_dp_equal_a_second_implementation():
    public, (images, labels) = plain(), client(3)
    each = [dict(one.gradients) for one in sharing.share_each(public, images, labels)]
    norms = sorted(float(flat(one).norm()) for one in each)
    max_norm = (norms[0] + norms[1]) / 2  # So that one is not clipped and two are.
    found = flat(PrivateSGD(1e-9, max_norm).mean(each, public, source()))
    expected = slow_private_sum(public, images, labels, max_norm) / 3
    assert (found - expected).norm() < 1e-4 * expected.norm()
    unclipped = flat(sharing.share(public, images, labels).gradients)
    assert (found - unclipped).norm() > 1e-2 * unclipped.norm()
    alone = flat(PrivateSGD(1e-9, norms[0] / 7).mean(each[:1], public, source()))
    assert abs(float(alone.norm()) / (norms[0] / 7) - 1) < 1e-4


@pytest.mark.parametrize(("multiplier", "max_norm", "batch"), [(1.0, 1.0, 1), (0.5, 0.2, 4)])
def test_noise_of_dp_is_multiplier_times_norm_over_batch(multiplier, max_norm, batch):
    public, (images, labels) = plain(), client(batch)
    defence = Defence((PrivateSGD(multiplier, max_norm),))
    update = defence.share(public, images, labels, None, source())
    mean = slow_private_sum(public, images, labels, max_norm) / batch
    noise = flat(update.gradients) - mean
    assert abs(float(noise.std()) / (multiplier * max_norm / batch) - 1) < 0.01
    assert (update.batch, update.defence) == (batch, str(defence))
    assert not hasattr(public.model.pos_embed, "grad_sample")
    assert public.model.pos_embed.grad is None


def test_dp_of_a_processed_single_image_is_dp_of_the_client():
    public, (images, labels) = plain(), client()
    one = processed("dp=0.5,0.1", public, sharing.share(public, images, labels))
    other = parse_defence("dp=0.5,0.1").share(public, images, labels, None, source())
    assert torch.allclose(flat(one.gradients), flat(other.gradients), atol=1e-6)


def test_parts_before_dp_act_on_each_image_and_parts_after_on_the_mean():
    public, (images, labels) = plain(), client(2)
    before = parse_defence("unshared+dp=1e-9,0.1+batch=2")
    update = before.share(public, images, labels, None, source())
    each = [dict(one.gradients) for one in sharing.share_each(public, images, labels)]
    for one in each:
        del one[TABLE]
    clipped = [flat(Clip(0.1).process(one, public, source())) for one in each]
    assert TABLE not in update.gradients
    assert torch.allclose(flat(update.gradients), sum(clipped) / 2, atol=1e-6)
    after = parse_defence("dp=1,0.1+bf16").share(public, images, labels, None, source())
    assert {one.dtype for one in after.gradients.values()} == {torch.bfloat16}
    with pytest.raises(ConfigError, match="is of 3 images, but its defence says batch=2"):
        before.share(public, *client(3), None, source())


def test_dp_under_mjp_hides_the_mask():
    public, defence = wrapped(), parse_defence("mjp=0.5+dp=1e-3,1")
    plan = defence.draw_plan(public, 1, source())
    update = defence.share(public, *client(), plan, source())
    assert (update.gradients[TABLE] != 0).all()


def exact_epsilon(multiplier, delta):
    """Of the Gaussian mechanism, by the formula of Balle and Wang (2018)."""

    def excess(eps):
        half = 1 / (2 * multiplier)
        return (
            gaussian.cdf(half - eps * multiplier)
            - math.exp(eps) * gaussian.cdf(-half - eps * multiplier)
            - delta
        )

    return brentq(excess, 0, 200)


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0])
def test_epsilon_of_a_single_update_is_that_of_the_gaussian_mechanism(multiplier):
    exact = exact_epsilon(multiplier, 1e-5)
    assert exact <= parse_defence(f"dp={multiplier}").epsilon() <= exact + 0.03


def test_epsilon_of_little_noise_needs_no_gigabytes():
    assert 1e5 < parse_defence("dp=0.001").epsilon() < math.inf
    assert parse_defence("clip=1+noise=1").epsilon() is None


def test_without_opacus_dp_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(ConfigError, match=r"needs opacus .*pip install 'mjp\[audit\]'"):
        parse_defence("dp=1").epsilon()
