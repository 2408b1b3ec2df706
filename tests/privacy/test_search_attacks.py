"""The search attacks: what they match, that they find it, and when they refuse."""

import math
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from scipy.optimize import minimize
from skimage import data
from torch import nn
from torch.nn.functional import interpolate

from mjp.jigsaw import sample_plan
from mjp.models.config import MJPConfig
from mjp.models.factory import wrap
from mjp.privacy.attacks import attack, attack_each
from mjp.privacy.attacks.descent import descend
from mjp.privacy.attacks.matching import Matching, Settings, patch_borders, total_variation
from mjp.privacy.attacks.norms import WrittenOutNorms
from mjp.privacy.attacks.search import SEARCHES
from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Reading
from mjp.privacy.sharing import share
from mjp.privacy.update import Effort, SharedUpdate

SIZE, PATCH, CLASSES = (16, 24), 4, 7
L2 = Settings(about="", objective="l2", optimizer="adam", steps=5, learning_rate=0.1)
COSINE = replace(L2, objective="cosine")


def build(seed=0, **more):
    torch.manual_seed(seed)
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=SIZE,
        patch_size=PATCH,
        depth=2,
        embed_dim=48,
        num_heads=3,
        num_classes=CLASSES,
        **more,
    ).eval()


@pytest.fixture(scope="module")
def public():
    return PublicModel.of(build())


@pytest.fixture(scope="module")
def expressive():
    """Weights of a size that training gives them, so that patches differ in their gradients."""
    model = build()
    for name, parameter in model.named_parameters():
        if name == "pos_embed":
            parameter.data *= 25
        elif name.startswith("blocks") and parameter.dim() == 2:
            parameter.data *= 3
    return PublicModel.of(model)


@pytest.fixture(scope="module")
def jigsaw():
    config = MJPConfig(ratio=0.25, position_init_std=0.5)
    model = wrap(build(), config)
    model.reset_positions()
    return PublicModel.of(model)


@pytest.fixture(scope="module")
def photo():
    whole = torch.tensor(data.astronaut()[:256, 96:480]).permute(2, 0, 1)[None] / 255
    return interpolate(whole, SIZE, mode="area")


def shared(public, photo, label=3, **more):
    batch = len(photo)
    labels = torch.tensor([label] * batch) if isinstance(label, int) else torch.tensor(label)
    return share(public, public.normalized(photo), labels, **more)


def without(update, *parts):
    kept = {n: g for n, g in update.gradients.items() if not n.startswith(parts)}
    return SharedUpdate(kept, batch=update.batch)


def psnr(found, truth):
    return -10 * math.log10(float((found - truth).square().mean()))


def mismatch(public, update, images, settings=L2, **believed):
    """How far images are from an update; for an attacker who believes other labels or masks."""
    matching = Matching(settings, public, [Reading(public, update)], restarts=1)
    for name, value in believed.items():
        setattr(matching, name, value)
    return float(matching.mismatch(public.normalized(images).flatten()[None])[0])


@pytest.mark.parametrize("balance", ["whole", "layers"])
@pytest.mark.parametrize("settings", [L2, COSINE], ids=["l2", "cosine"])
def test_the_true_image_matches_and_another_does_not(public, photo, settings, balance):
    update, settings = shared(public, photo), replace(settings, balance=balance)
    assert mismatch(public, update, photo, settings) < 1e-9
    assert mismatch(public, update, photo.flip(3), settings) > 1e-6
    assert mismatch(public, update, photo, settings, labels=torch.tensor([[2]])) > 1e-2


def test_the_local_steps_of_a_batch_are_imitated(public, photo):
    batch = torch.cat([photo, photo.flip(2)])
    update = shared(public, batch, [1, 3], local_steps=3, learning_rate=0.1)
    right = mismatch(public, update, batch)
    assert right < 1e-9
    one_step = SharedUpdate(update.gradients, batch=2)
    assert mismatch(public, one_step, batch) > 1e3 * max(right, 1e-12)


def test_under_a_mask_the_shuffled_image_matches_without_its_order(jigsaw, photo):
    generator = torch.Generator().manual_seed(0)
    plan = sample_plan(jigsaw.grid, batch=1, ratio=0.25, generator=generator)
    update = shared(jigsaw, photo, plan=plan, localization_weight=0.1)
    for images in (photo, plan.apply(photo)):
        assert mismatch(jigsaw, update, images) < 1e-9
    assert mismatch(jigsaw, update, photo, masked=None) > 1e-2  # An attacker that ignores the mask.


@pytest.mark.parametrize("weights", ["position_cosine", "total_variation"])
def test_the_gradient_of_the_loss_is_that_of_finite_differences(photo, weights):
    public = PublicModel.of(build().double())
    update = shared(public, photo.double())
    settings = replace(COSINE, noise=0.3, **{weights: 0.5})
    matching = Matching(settings, public, [Reading(public, update)], restarts=2)
    rows = matching.start(0, "test")
    _, gradient = matching.evaluate(rows)
    way = torch.randn(rows.shape, dtype=rows.dtype, generator=torch.Generator().manual_seed(1))
    ahead, behind = (matching.evaluate(rows + s * way)[0] for s in (1e-7, -1e-7))
    torch.testing.assert_close(
        (gradient * way).sum(dim=1), (ahead - behind) / 2e-7, rtol=1e-3, atol=1e-8
    )


@pytest.mark.parametrize(("name", "steps"), [("invert", 200), ("april_opt", 100)])
def test_a_photograph_is_found_again(expressive, photo, name, steps):
    result = attack(name, expressive, shared(expressive, photo), effort=Effort(steps=steps))
    baseline = psnr(photo.mean(dim=(2, 3), keepdim=True), photo)
    assert psnr(result.images, photo) > baseline + 3
    assert result.labels.tolist() == [3]
    assert result.facts["matching_loss"] < 0.05 * result.facts["matching_loss_at_start"]


@pytest.mark.parametrize("name", SEARCHES)
def test_every_attack_gets_closer(public, photo, name):
    facts = attack(name, public, shared(public, photo), effort=Effort(steps=12)).facts
    assert facts["matching_loss"] < facts["matching_loss_at_start"]
    assert facts["steps"] == 12
    assert facts["restarts"] == SEARCHES[name].restarts


@pytest.mark.parametrize("name", SEARCHES)
def test_without_the_classifier_only_dlg_finds_the_label(public, photo, name):
    update = without(shared(public, photo, label=5), "head")
    result = attack(name, public, update, effort=Effort(steps=25))
    assert result.applies == (name == "dlg")
    if result.applies:
        assert result.labels.tolist() == [5]
    else:
        assert "classifier" in result.reason


def test_april_opt_needs_the_positions_and_invert_does_not(public, photo):
    update = without(shared(public, photo), "pos_embed")
    refused = attack("april_opt", public, update, effort=Effort(steps=1))
    assert not refused.applies
    assert "position" in refused.reason
    assert attack("invert", public, update, effort=Effort(steps=1)).applies


def test_restarts_begin_elsewhere_and_the_best_match_is_taken(public, photo):
    update = shared(public, photo)
    one, three, other = (
        attack("invert", public, update, effort=Effort(steps=4, restarts=restarts, seed=seed))
        for restarts, seed in ((1, 7), (3, 7), (1, 8))
    )
    assert not torch.allclose(one.images, other.images, atol=1e-3)
    assert three.facts["restarts"] == 3
    assert three.facts["matching_loss"] <= one.facts["matching_loss"] * (1 + 1e-4)


def test_updates_attacked_together_do_not_see_each_other(photo):
    public = PublicModel.of(build().double())
    one, other = photo.double(), photo.flip(2).double()
    plain = shared(public, one), shared(public, other, label=1)
    batch = shared(public, torch.cat([one, other]), [1, 3])
    refused = without(plain[0], "head")
    told = []
    effort = Effort(steps=6, restarts=2, tell=told.append)
    observations = [(plain[0],), (refused,), (batch,), (plain[1],)]
    together = attack_each("idlg", public, observations, effort=effort)
    assert [result.applies for result in together] == [True, False, True, True]
    assert [len(result.images) for result in together if result.applies] == [1, 2, 1]
    assert sum(told) == pytest.approx(1)
    alone = attack("idlg", public, plain[1], effort=Effort(steps=6, restarts=2))
    torch.testing.assert_close(together[3].images, alone.images)


def test_an_mjp_client_is_attacked_with_the_mask_it_leaks(jigsaw, photo):
    generator = torch.Generator().manual_seed(0)
    plan = sample_plan(jigsaw.grid, batch=1, ratio=0.25, generator=generator)
    update = shared(jigsaw, photo, plan=plan)
    result = attack("april_opt", jigsaw, update, effort=Effort(steps=60))
    assert torch.equal(result.masked, plan.masked[0])
    assert result.facts["matching_loss"] < 0.2 * result.facts["matching_loss_at_start"]
    plain = attack("april_opt", jigsaw, shared(jigsaw, photo), effort=Effort(steps=2))
    assert plain.masked is None


def test_an_update_in_half_precision_is_matched_in_single(public, photo):
    update = shared(public, photo)
    rough = SharedUpdate({n: g.bfloat16() for n, g in update.gradients.items()})
    result = attack("invert", public, rough, effort=Effort(steps=10))
    assert result.facts["gradient_precision"] == "bfloat16"
    assert result.facts["matching_loss"] < result.facts["matching_loss_at_start"]
    assert 0 < mismatch(public, rough, photo) < 1e-3


def test_the_public_model_stays_as_it_is(photo):
    model = build(drop_path_rate=0.5, proj_drop_rate=0.5, attn_drop_rate=0.5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    public = PublicModel.of(model)
    assert attack("invert", public, shared(public, photo), effort=Effort(steps=2)).applies
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_lbfgs_finds_the_minimum_in_the_box_that_scipy_finds():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 12, 12, dtype=torch.float64, generator=generator)
    curves = root @ root.mT + 0.1 * torch.eye(12, dtype=torch.float64)
    goals = torch.randn(3, 12, dtype=torch.float64, generator=generator)

    def evaluate(rows):
        slopes = torch.einsum("cij,cj->ci", curves, rows - goals)
        return (slopes * (rows - goals)).sum(dim=1) / 2, slopes

    found = descend(
        torch.zeros(3, 12, dtype=torch.float64),
        evaluate,
        (goals.new_full((12,), -0.5), goals.new_full((12,), 0.5)),
        "lbfgs",
        [1.0] * 300,
        lambda: None,
    )
    for curve, goal, one in zip(curves.numpy(), goals.numpy(), found.numpy(), strict=True):
        oracle = minimize(
            lambda x, c=curve, g=goal: ((x - g) @ c @ (x - g) / 2, c @ (x - g)),
            np.zeros(12),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-0.5, 0.5)] * 12,
            options={"ftol": 1e-15, "gtol": 1e-10},
        )
        np.testing.assert_allclose(one, oracle.x, atol=1e-4)


def test_penalties_are_those_of_a_slow_count(public, photo):
    pixels, (rows, cols) = photo[0].numpy(), SIZE
    across = {c: np.abs(pixels[:, :, c] - pixels[:, :, c - 1]).mean() for c in range(1, cols)}
    down = {r: np.abs(pixels[:, r] - pixels[:, r - 1]).mean() for r in range(1, rows)}
    varied = np.mean([*across.values()]) + np.mean([*down.values()])
    assert float(total_variation(photo[None])) == pytest.approx(varied, rel=1e-5)
    blocks = interpolate(interpolate(photo, (4, 6), mode="area"), SIZE, mode="nearest")
    jumps = [
        np.mean([np.abs(np.diff(blocks[0].numpy(), axis=axis)).take(at, axis=axis).mean()])
        for axis, side in ((1, rows), (2, cols))
        for at in range(PATCH - 1, side - 1, PATCH)
    ]
    expected = np.mean(jumps[:3]) + np.mean(jumps[3:])
    found = float(patch_borders(blocks[None], public.grid))
    assert found == pytest.approx(expected, rel=1e-5)
    ramp = torch.linspace(0, 1, cols).expand(1, 1, 3, rows, cols)
    assert float(patch_borders(ramp, public.grid)) == pytest.approx(0, abs=1e-6)


def test_consistency_draws_restarts_together(public, photo):
    apart = []
    for weight in (0.0, 100.0):
        settings = replace(SEARCHES["gradvit"], consistency=weight, noise=0.5)
        matching = Matching(settings, public, [Reading(public, shared(public, photo))], restarts=3)
        start, rates = matching.start(0, "test"), [0.05] * 10
        rows = descend(start, matching.evaluate, matching.box(), "adam", rates, lambda: None)
        apart.append(float((rows - rows.mean(dim=0)).square().mean()))
    assert apart[1] < 0.5 * apart[0]


def test_norms_written_out_are_the_norms_of_torch():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 5, 3, 2, dtype=torch.float64, generator=generator)
    for norm in (nn.LayerNorm((3, 2)), nn.BatchNorm2d(5), nn.BatchNorm2d(5).eval()):
        norm.double()
        for parameter in norm.parameters():
            nn.init.normal_(parameter, generator=generator)
        expected = norm(images)
        with WrittenOutNorms():
            torch.testing.assert_close(norm(images), expected)
