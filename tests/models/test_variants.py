"""Each row of the paper's ablation, by what distinguishes it from the others; drawing of plans."""

import dataclasses
import shutil

import pytest
import torch
from timm.optim import param_groups_layer_decay

import mjp
from tests.models.contract import ONE_BLOCK, plan_for, total_loss
from tests.models.kinds import VITS

IMAGES = VITS["plain"].images


def variant(letter, **more):
    model = mjp.wrap(VITS["plain"].build(**more).double(), mjp.VARIANTS[letter]).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in ("pos_embed", "index_embed", "unknown_position"):
                parameter.normal_()  # As if trained: none of them zero.
    return model


def drawn(config, tries=40):
    """Plans from one seed, or none, for batches of small images."""
    model = mjp.wrap(VITS["plain"].build(), config)
    generator, images = torch.Generator().manual_seed(0), IMAGES()
    return [model.draw_plan(images, generator) for _ in range(tries)]


def test_there_are_ten_and_j_is_the_default():
    assert "".join(mjp.VARIANTS) == "ABCDEFGHIJ"
    assert mjp.VARIANTS["J"] == mjp.MJPConfig()
    assert len(set(mjp.VARIANTS.values())) == 10
    with pytest.raises(TypeError):
        mjp.VARIANTS["A"] = mjp.MJPConfig()


@pytest.mark.parametrize(
    ("letter", "parts", "regressor", "shuffles"),
    [
        ("A", set(), None, False),
        ("B", {"pos_embed"}, None, False),
        ("C", set(), None, True),
        ("D", {"locator"}, "mlp", False),
        ("E", set(), None, True),
        ("F", {"index_embed"}, None, True),
        ("G", {"unknown_position"}, None, True),
        ("H", {"unknown_position"}, "pca", True),
        ("I", {"unknown_position", "locator"}, "linear", True),
        ("J", {"unknown_position", "locator"}, "mlp", True),
    ],
)
def test_what_a_variant_adds_whether_it_shuffles_and_that_it_comes_back(
    letter, parts, regressor, shuffles, tmp_path
):
    model, plain = variant(letter), VITS["plain"].build()
    mjp.save(model, tmp_path)
    again = mjp.load(tmp_path)
    assert again.mjp_config == mjp.VARIANTS[letter]
    assert again.state_dict().keys() == model.state_dict().keys()
    names = {name for name, _ in model.named_parameters()} ^ {
        n for n, _ in plain.named_parameters()
    }
    assert {name.split(".")[0] for name in names} == parts
    assert getattr(model.locator, "kind", None) == regressor
    assert (model.localization_loss(None) > 0) == (regressor is not None)
    plans = drawn(
        dataclasses.replace(mjp.VARIANTS[letter], ratio=min(1.0, 8 * mjp.VARIANTS[letter].ratio))
    )
    assert (10 < sum(plan is not None for plan in plans) < 30) if shuffles else not any(plans)


def test_b_has_no_positions_so_its_prediction_ignores_the_order_of_patches():
    model = variant("B")
    images = IMAGES(dtype=torch.float64)
    plan = plan_for(model, images, ratio=1.0)
    torch.testing.assert_close(model(plan.apply(images)), model(images), rtol=0, atol=1e-12)
    torch.testing.assert_close(model(images, plan=plan), model(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("letter", "pixels"), [("C", 16), ("E", None)])
def test_c_and_e_see_the_moved_pixels_under_the_positions_of_the_places(letter, pixels):
    model, images = variant(letter), IMAGES(dtype=torch.float64)
    plan = plan_for(model, images, ratio=1.0, pixels=pixels)
    torch.testing.assert_close(model(images, plan=plan), model(plan.apply(images)))
    assert (model(images, plan=plan) - model(images)).abs().max() > 1e-6
    drawn_plan = next(plan for plan in drawn(mjp.VARIANTS["C"]) if plan is not None)
    assert drawn_plan.masked.all()
    assert drawn_plan.pixels.shape == (4, 16 * 16)


def test_f_adds_a_second_table_to_all_tokens_with_and_without_a_plan():
    model = variant("F")
    images = IMAGES(dtype=torch.float64)
    both = variant("E")
    both.load_state_dict(
        {name: value for name, value in model.state_dict().items() if name != "index_embed"}
    )
    with torch.no_grad():
        both.pos_embed += model.index_embed
    plan = plan_for(model, images)
    torch.testing.assert_close(model(images), both(images))
    torch.testing.assert_close(model(images, plan=plan), both(images, plan=plan))


def test_g_gives_masked_patches_one_unknown_position_and_localizes_nothing():
    model = variant("G")
    images = IMAGES(dtype=torch.float64)
    plan = plan_for(model, images, ratio=1.0)
    before = model(images, plan=plan)
    with torch.no_grad():
        model.pos_embed[:, 1:] = 0  # Nobody looks at these when all patches are masked.
    torch.testing.assert_close(model(images, plan=plan), before, rtol=0, atol=0)


def test_the_second_table_is_not_decayed_and_belongs_to_the_stem():
    model = variant("F")
    groups = param_groups_layer_decay(model, 0.05, model.no_weight_decay(), layer_decay=0.5)
    group_of = {parameter: group for group in groups for parameter in group["params"]}
    assert group_of[model.index_embed] is group_of[model.pos_embed]
    assert group_of[model.index_embed]["weight_decay"] == 0


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ratio": 1.5}, "ratio must be a number between 0 and 1, got 1.5"),
        ({"probability": -0.1}, "probability must be a number between 0 and 1"),
        ({"positions": "unk"}, "positions must be one of unknown, own, indexed, none; got 'unk'"),
        ({"localization": "nln"}, "localization must be one of mlp, linear, pca, None"),
        ({"positions": "none"}, "leaves no position embedding to localize"),
        ({"position_init_std": 0.0}, "position_init_std must be a number above 0"),
        ({"jigsaw_patch": 0}, "jigsaw_patch must be at least 1 pixel"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(arguments, words):
    with pytest.raises(mjp.ConfigError, match=words):
        mjp.MJPConfig(**arguments)


@pytest.mark.parametrize(
    ("probability", "low", "high"), [(1.0, 1, 1), (0.0, 0, 0), (0.25, 0.17, 0.33)]
)
def test_a_batch_gets_a_jigsaw_with_the_configured_probability(probability, low, high):
    plans = drawn(mjp.MJPConfig(ratio=0.3, probability=probability), tries=200)
    assert low <= sum(plan is not None for plan in plans) / 200 <= high
    # The same batches whatever the ratio, and the same plans from the same seed.
    more = drawn(mjp.MJPConfig(ratio=0.9, probability=probability), tries=200)
    assert [plan is None for plan in plans] == [plan is None for plan in more]
    again = drawn(mjp.MJPConfig(ratio=0.3, probability=probability), tries=200)
    for one, other in zip(plans, again, strict=True):
        assert one is None or torch.equal(one.source, other.source)


def test_drawing_leaves_the_global_generator_alone_and_so_does_the_model():
    model = mjp.wrap(VITS["plain"].build(), mjp.MJPConfig(ratio=0.5, probability=1.0))
    images = VITS["plain"].images()
    state = torch.get_rng_state()
    plan = model.draw_plan(images, torch.Generator())
    model(images, plan=plan)
    model.localization_loss(plan)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_ratio_too_small_for_the_grid_is_said_instead_of_masking_nothing_in_silence():
    model = mjp.wrap(VITS["plain"].build(), mjp.MJPConfig(probability=1.0))
    with pytest.warns(RuntimeWarning, match=r"masks none of the 8 patches.*use at least 0.125"):
        assert model.draw_plan(VITS["plain"].images(), torch.Generator()) is None


@pytest.mark.parametrize("letter", ["A", "C", "D", "E", "G", "H", "I", "J"])
def test_every_variant_that_keeps_its_positions_starts_out_as_timms_model(letter):
    plain = VITS["plain"].build().eval()
    wrapped = mjp.wrap(plain, mjp.VARIANTS[letter])
    images = VITS["plain"].images()
    assert torch.equal(wrapped(images), plain(images))


@pytest.mark.unchecked
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("letter", "ABCDEFGHIJ")
def test_every_variant_traces_as_one_graph(letter):
    model = mjp.wrap(VITS["plain"].build(**ONE_BLOCK), mjp.VARIANTS[letter])
    images = VITS["plain"].images()
    pixels = 16 if letter == "C" else None
    plan = plan_for(model, images, pixels=pixels)
    loss = total_loss(model)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images, plan), loss(images, plan))
    torch.testing.assert_close(compiled(images, None), loss(images, None))


@pytest.mark.unchecked
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler for the CPU needs g++")
def test_masked_positions_get_exactly_zero_gradient_in_generated_code_too():
    # Without blocks, whose code takes twice as long; the average has every position matter.
    model = mjp.wrap(VITS["plain"].build(depth=0, global_pool="avg"), mjp.VARIANTS["G"])
    compiled = torch.compile(model, fullgraph=True)
    images = VITS["plain"].images()
    plan = mjp.sample_plan(mjp.PatchGrid(4, 2), 4, 0.5, torch.Generator().manual_seed(0))
    plan = mjp.JigsawPlan(plan.grid, plan.masked[:1].repeat(4, 1), plan.source[:1].repeat(4, 1))
    compiled(images, plan=plan).square().mean().backward()
    gradient = model.pos_embed.grad[0, 1:].abs().sum(dim=1)
    assert (gradient[plan.masked[0]] == 0).all()
    assert (gradient[~plan.masked[0]] > 0).all()
