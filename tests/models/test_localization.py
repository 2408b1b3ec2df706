import pytest
import torch

import mjp
from mjp.models.locator import known_share, localization_loss, principal_projection
from tests.models.contract import plan_for
from tests.models.kinds import VITS

GRID = mjp.PatchGrid(4, 2)
ALIKE = known_share(None, GRID, torch.zeros((), dtype=torch.float64))


def model_with(kind, **more):
    return mjp.wrap(VITS["plain"].build(**more), mjp.MJPConfig(localization=kind))


def slow_loss(predicted, masked):
    """The definition, one position at a time."""
    per_image = []
    for row_of_mask in masked.tolist():
        distances = []
        for index, is_masked in enumerate(row_of_mask):
            row, col = divmod(index, GRID.cols)
            if not is_masked:
                distances.append(abs(predicted[index][0] - row) + abs(predicted[index][1] - col))
        per_image.append(sum(distances) / len(distances) if distances else 0.0)
    return sum(per_image) / len(per_image)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_the_loss_is_the_mean_l1_distance_over_each_images_unmasked_positions(ratio):
    predicted = torch.randn(8, 2, dtype=torch.float64)
    masked = torch.rand(5, 8) < ratio
    masked[0] = True
    share = known_share(masked, GRID, predicted)
    ours = localization_loss(predicted, GRID.coordinates().double(), share)
    assert ours.item() == pytest.approx(slow_loss(predicted.tolist(), masked), rel=1e-12)


@pytest.mark.parametrize("kind", ["mlp", "linear", "pca"])
def test_gradients_reach_the_position_table_and_the_regressor_and_nothing_else(kind):
    model = model_with(kind)
    model.localization_loss(None).backward()
    named = model.named_parameters()
    with_gradient = {name for name, p in named if p.grad is not None and p.grad.abs().sum() > 0}
    regressor = {f"locator.{name}" for name, _ in model.locator.named_parameters()}
    assert with_gradient - regressor == {"pos_embed"}
    if kind == "linear":
        assert regressor <= with_gradient
    assert (model.pos_embed.grad[0, 0] == 0).all()  # The class token has no place on the grid.


@pytest.mark.parametrize("kind", ["mlp", "pca"])  # Through the directions of the latter too.
def test_positions_masked_in_every_image_get_exactly_zero_gradient(kind):
    model = model_with(kind)
    plan = mjp.sample_plan(GRID, 1, 0.5, torch.Generator().manual_seed(0))
    model.localization_loss(plan).backward()
    gradient = model.pos_embed.grad[0, 1:].abs().sum(dim=1)
    assert (gradient[plan.masked[0]] == 0).all()
    assert (gradient[~plan.masked[0]] > 0).all()


def separated_table(seed=0):
    """A table whose two leading principal directions are well apart from all others."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    place = GRID.coordinates().double() @ torch.randn(
        2, 6, generator=generator, dtype=torch.float64
    )
    return place * torch.tensor([3.0, 2, 1, 1, 1, 1]) + 0.3 * noise


def project(table, target=None, share=ALIKE):
    return principal_projection(
        table, GRID.coordinates().double() if target is None else target, share
    )


def test_the_projection_is_that_of_principal_component_analysis_around_the_grids_centre():
    from numpy.testing import assert_allclose
    from scipy.linalg import svd

    table = separated_table()
    centred = (table - table.mean(dim=0)).numpy()
    _, _, directions = svd(centred)
    ours = (project(table) - torch.tensor([1.5, 0.5])).numpy()
    assert_allclose(abs(ours), abs(centred @ directions[:2].T), rtol=1e-9)


def test_a_table_that_is_no_number_gives_no_number_and_no_error_of_the_solver():
    table = separated_table()
    for bad in (float("nan"), float("inf")):
        table[3, 2] = bad
        assert project(table).isnan().any()


def test_the_projection_is_differentiable():
    assert torch.autograd.gradcheck(project, separated_table().requires_grad_())


@pytest.mark.parametrize("wider", ["rows", "columns"])
def test_the_leading_direction_goes_to_the_coordinate_it_follows(wider):
    grid = mjp.PatchGrid(4, 14)
    row, col = grid.coordinates().double().unbind(dim=1)
    scale = {"rows": (9.0, 1.0), "columns": (1.0, 0.5)}[wider]
    share = known_share(None, grid, torch.zeros((), dtype=torch.float64))
    table = torch.zeros(56, 6, dtype=torch.float64) + 2
    table[:, 1] += scale[0] * row
    table[:, 4] -= scale[1] * col
    losses = []
    for _ in range(12):  # Noise that would turn a sign decided by rounding.
        noisy = table + 1e-6 * torch.randn(56, 6, dtype=torch.float64)
        projected = principal_projection(noisy, grid.coordinates(), share)
        losses.append(localization_loss(projected, grid.coordinates().double(), share).item())
        error = projected - torch.stack((row, col), 1) @ torch.diag(torch.tensor(scale).double())
        assert (error - error.mean(dim=0)).abs().max() < 1e-3
    assert max(losses) - min(losses) < 1e-3


def test_the_projection_stays_finite_where_eigenvalues_meet():
    table = torch.zeros(8, 6, dtype=torch.float64)
    table[:6] = torch.eye(6, dtype=torch.float64)  # Every variance the same.
    table.requires_grad_()
    project(table).abs().sum().backward()
    assert torch.isfinite(table.grad).all()
    wide = (0.02 * torch.randn(8, 100)).requires_grad_()  # Rank 7 of 100.
    project(wide, GRID.coordinates(), ALIKE.float()).abs().sum().backward()
    assert torch.isfinite(wide.grad).all()


def test_autocast_does_not_coarsen_the_coordinates():
    plan = mjp.sample_plan(GRID, 3, 0.5, torch.Generator().manual_seed(0))
    for kind in ("mlp", "linear", "pca"):
        model = model_with(kind)
        for given in (plan, None):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model.localization_loss(given)
            assert torch.equal(loss, model.localization_loss(given))


@pytest.mark.parametrize("masking", [True, False])
def test_every_parameter_gets_a_gradient_with_and_without_a_plan(masking):
    model, images = model_with("mlp"), VITS["plain"].images()
    plan = plan_for(model, images) if masking else None
    (model(images, plan=plan).square().sum() + model.localization_loss(plan)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert (model.unknown_position.grad == 0).all() == (not masking)


def test_a_plan_of_another_grid_is_refused_and_an_empty_batch_costs_nothing():
    model = model_with("mlp")
    with pytest.raises(mjp.ConfigError, match=r"the plan is on a 7x7 grid.*cut into 4x2"):
        model.localization_loss(mjp.JigsawPlan.identity(mjp.PatchGrid(7, 7), 4))
    assert model.localization_loss(mjp.JigsawPlan.identity(GRID, 0)) == 0


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.01), (0.5, 0.0075), (1.0, 0.005)])
def test_the_weight_falls_by_a_cosine_to_half(progress, weight):
    assert mjp.LocalizationWeight().at(progress) == pytest.approx(weight)
    with pytest.raises(mjp.ConfigError, match="progress must be"):
        mjp.LocalizationWeight().at(progress + 1.5)
