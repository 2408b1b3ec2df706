"""The closed forms: exact where they should be, and what the prior adds where they are not."""

import pytest
import torch

import mjp
from mjp.privacy.attacks import adaptive_solve, attack_each, completion, separation
from mjp.privacy.defences import parse_defence
from mjp.privacy.metrics import psnr_where
from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Reading
from mjp.privacy.sharing import share
from tests.privacy.clients import decibels, pictures, plan, public

LABEL = torch.tensor([4])


def sent(model, images, jigsaw=None, **how):
    return share(model, model.normalized(images), LABEL, jigsaw, **how)


@pytest.mark.parametrize("name", ["astronaut", "rocket"])
def test_patch_solve_is_exact(name):
    images = pictures(name)
    model = public()
    assert decibels(mjp.attack("patch_solve", model, sent(model, images)).images, images) > 75
    double = public(dtype=torch.float64)
    found = mjp.attack("patch_solve", double, sent(double, images.double())).images
    assert decibels(found, images) > 130  # What is left is rounding to single precision.


def test_patch_solve_does_not_care_for_norms_registers_or_pooling():
    images = pictures("cat")
    for more in (
        {"reg_tokens": 3, "no_embed_class": True},
        {"class_token": False, "global_pool": "avg"},
        {"pre_norm": True},
    ):
        torch.manual_seed(0)
        arguments = {"img_size": (48, 64), "patch_size": 8, "depth": 2, "embed_dim": 96}
        plain = mjp.create_model(
            "vit_tiny_patch16_224", mjp.VARIANTS["A"], num_heads=4, **arguments, **more
        )
        model = PublicModel.of(plain.eval())
        assert decibels(mjp.attack("patch_solve", model, sent(model, images)).images, images) > 60


def test_clipping_changes_nothing_and_more_patches_than_width_are_warned_of():
    images, model = pictures("coffee"), public()
    defence = parse_defence("clip=0.01")
    clipped = defence.process(model, sent(model, images), torch.Generator())
    exact = decibels(mjp.attack("patch_solve", model, sent(model, images)).images, images)
    assert decibels(mjp.attack("patch_solve", model, clipped).images, images) > exact - 1
    narrow = public(width=44)
    result = mjp.attack("patch_solve", narrow, sent(narrow, images))
    assert result.applies
    assert "48 patches are more than the width of 44" in result.reason
    assert result.facts["rank"] <= 44


def test_the_localization_loss_is_taken_off():
    images, model = pictures("coffee"), public()
    update = sent(model, images, localization_weight=0.1)
    assert decibels(mjp.attack("patch_solve", model, update).images, images) > 55
    naive = mjp.SharedUpdate(update.gradients)  # Of an attacker who does not know of it.
    assert decibels(mjp.attack("patch_solve", model, naive).images, images) < 20


def test_april_is_exact_on_its_own_architecture_and_refuses_others():
    images = pictures("astronaut", dtype=torch.float64)
    wide = public(width=192, dtype=torch.float64, first_block="bare")
    result = mjp.attack("april", wide, sent(wide, images))
    assert decibels(result.images, images) > 100
    narrow = public(width=96, dtype=torch.float64, first_block="bare")
    result = mjp.attack("april", narrow, sent(narrow, images))
    assert "cannot be inverted" in result.reason
    assert decibels(result.images, images) < 30
    standard = public(width=192, dtype=torch.float64)
    result = mjp.attack("april", standard, sent(standard, images))
    assert not result.applies
    assert "norm and a residual" in result.reason


@pytest.mark.parametrize("ratio", [0.05, 0.15, 0.3])
def test_the_mask_is_read_off_and_the_unmasked_patches_come_back(ratio):
    images, model = pictures("astronaut"), public()
    jigsaw = plan(model, ratio)
    update = sent(model, images, jigsaw)
    naive = mjp.attack("patch_solve", model, update)
    known = mjp.attack("adaptive_solve", model, update)
    assert known.masked.equal(jigsaw.masked[0])
    after, before = (
        psnr_where(found.images, images, ~jigsaw.masked, model.grid) for found in (known, naive)
    )
    assert after > before + 5


@pytest.mark.parametrize(("width", "ratio"), [(40, 0.05), (40, 0.15), (44, 0.25)])
def test_more_patches_than_width_and_a_mask_leave_traces(width, ratio):
    images, model = pictures("astronaut"), public(width=width)
    jigsaw = plan(model, ratio)
    update = sent(model, images, jigsaw)
    found = mjp.attack("adaptive_solve", model, update)
    assert found.masked.equal(jigsaw.masked[0])
    assert f"48 patches are more than the width of {width}" in found.reason
    naive = mjp.attack("patch_solve", model, update)
    assert decibels(found.images, images) > decibels(naive.images, images) + 1.5
    several = [update, sent(model, images, plan(model, ratio, seed=1))]
    assert mjp.attack("adaptive_solve", model, several).images.isfinite().all()


def test_a_single_masked_patch_is_recovered_exactly():
    images, model = pictures("astronaut"), public()
    jigsaw = plan(model, 1 / 48)
    found = mjp.attack("adaptive_solve", model, sent(model, images, jigsaw)).images
    assert decibels(found, images) > 70


def test_the_equations_behind_it_hold():
    model = public(dtype=torch.float64)
    images = pictures("astronaut", dtype=torch.float64)
    jigsaw = plan(model, 0.2)
    one = adaptive_solve.partial(Reading(model, sent(model, images, jigsaw)))
    truth = model.split(model.normalized(images))[0]
    amounts = (truth - one.base) @ one.span.mT
    torch.testing.assert_close(one.base + amounts @ one.span, truth, atol=1e-5, rtol=0)
    torch.testing.assert_close(amounts @ one.row, one.right, atol=1e-4, rtol=0)


def test_the_permutation_makes_no_difference_to_the_attacker():
    images, model = pictures("coffee"), public()
    jigsaw = plan(model, 0.2)
    still = mjp.JigsawPlan(model.grid, jigsaw.masked, torch.arange(48)[None])
    one, two = (
        mjp.attack("adaptive_solve", model, sent(model, images, how)).images
        for how in (jigsaw, still)
    )
    torch.testing.assert_close(one, two, atol=2e-2, rtol=0)


def test_several_gradients_leave_next_to_nothing_open():
    images, model = pictures("astronaut"), public()
    plans = [plan(model, 0.3, seed=seed) for seed in range(5)]
    always = torch.stack([one.masked[0] for one in plans]).all(dim=0)
    assert not always.any()
    updates = [sent(model, images, one) for one in plans]
    found = mjp.attack("adaptive_solve", model, updates).images
    assert decibels(found, images) > 60
    alone = mjp.attack("adaptive_solve", model, updates[0]).images
    assert decibels(alone, images) < 30


@pytest.mark.parametrize(
    ("width", "text", "gain"), [(96, "bf16", 1), (96, "noise=1e-5", 1), (44, "none", 5)]
)
def test_the_prior_sees_through_rounding_and_noise_and_fills_in_missing_rank(width, text, gain):
    images, model = pictures("cat"), public(width)
    noise = torch.Generator().manual_seed(0)
    update = parse_defence(text).process(model, sent(model, images), noise)
    plain, known = (
        decibels(mjp.attack(name, model, update).images, images)
        for name in ("patch_solve", "adaptive_solve")
    )
    assert known > plain + gain


def test_many_observations_together_give_what_each_gives_alone():
    model = public()
    images = pictures("astronaut", "coffee")
    jigsaws = [plan(model, 0.1), plan(model, 0.2, seed=1)]
    updates = [sent(model, images[i : i + 1], jigsaws[i]) for i in range(2)]
    together = attack_each("adaptive_solve", model, [(one,) for one in updates])
    for one, result in zip(updates, together, strict=True):
        alone = mjp.attack("adaptive_solve", model, one).images
        torch.testing.assert_close(result.images, alone, atol=1e-3, rtol=0)


def test_differences_and_their_transpose_agree():
    generator = torch.Generator().manual_seed(0)
    picture = torch.randn(2, 3, 9, 7, generator=generator, dtype=torch.float64)
    parts = completion._differences(picture)
    others = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parts]
    one = sum((a * b).sum() for a, b in zip(parts, others, strict=True))
    other = (completion._undo_differences(others) * picture).sum()
    torch.testing.assert_close(one, other)
    brightness = picture.mean(dim=1)
    torch.testing.assert_close(parts[2][:, 0], brightness.diff(n=2, dim=2))


def test_mixed_patches_are_told_apart_and_put_into_place():
    # Patches of 16x16 of a photograph, known only by random mixtures of them.
    (image,) = pictures("coffee", size=(96, 128), dtype=torch.float64)
    grid = mjp.PatchGrid(6, 8)
    masked = torch.zeros(48, dtype=torch.bool)
    masked[[9, 10, 17, 30]] = True
    cells = grid.split(image[None])[0]
    truth = cells[masked].flatten(1)
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    span = torch.linalg.qr((mixing @ truth).mT).Q.mT
    row = torch.linalg.solve(truth @ span.mT, torch.ones(4, dtype=torch.float64))
    found = separation.separate(span, row, torch.zeros(768, dtype=torch.float64), (16, 16))
    nearest = torch.cdist(found.flatten(1), truth).argmin(dim=1)
    assert sorted(nearest.tolist()) == [0, 1, 2, 3]
    hidden = cells.clone()
    hidden[masked] = 0.5
    placed = separation.put_into_place(found, grid.join(hidden[None])[0], masked, grid)
    error = (placed - image).square()
    holes = grid.mask_on(mjp.PatchGrid(96, 128), masked[None]).reshape(96, 128)
    assert -10 * error[:, holes].mean().log10() > 20
    assert error[:, ~holes].max() == 0
    assert separation.separable(24, (16, 16))
    assert not separation.separable(25, (16, 16))


@pytest.mark.gpu
def test_the_gpu_recovers_what_the_cpu_does():
    from mjp.core.team import float32_precision

    images, model = pictures("astronaut"), public()
    with float32_precision("fp32"):
        there = PublicModel.of(model.model.cuda())
        update = share(there, there.normalized(images.cuda()), LABEL.cuda())
        found = mjp.attack("patch_solve", there, update).images
    assert decibels(found.cpu(), images) > 70
