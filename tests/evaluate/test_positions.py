"""What position tables know: on tables whose answer is known."""

import numpy as np
import pytest
import timm
import torch

import mjp
from mjp.core.errors import ConfigError
from mjp.evaluate.positions import project, regress, spectrum, spectrum_values
from mjp.jigsaw import PatchGrid
from mjp.models.surface import position_embeddings
from tests.models.kinds import TINY_SWIN, VITS

GRID = PatchGrid(6, 9)


@pytest.fixture
def table():
    return np.random.default_rng(0).normal(size=(54, 20))


def test_a_table_that_holds_row_and_column_has_no_error_and_a_random_one_a_large_one(table):
    row, col = np.divmod(np.arange(54.0), 9)
    told = np.stack((row, col), axis=1) @ np.random.default_rng(1).normal(size=(2, 20))
    found = regress(told, GRID, range(1))
    assert found["mae_1d"] < 1e-9
    assert found["mae_2d"] < 1e-9
    assert regress(table, GRID, range(1))["mae_2d"] > 1


def test_the_units_are_patches_and_cells(table):
    row, col = np.divmod(np.arange(54.0), 9)
    only_columns = np.stack((col, np.zeros(54)), axis=1)
    found = regress(only_columns, GRID, range(1))
    # Rows are then told by their mean, which is 1.5 cells off; columns exactly.
    assert found["mae_row"] == pytest.approx(1.5, rel=0.1)
    assert found["mae_col"] < 1e-9
    assert found["mae_2d"] == pytest.approx(0.75, rel=0.1)
    assert found["mae_1d"] == pytest.approx(9 * 1.5, rel=0.1)
    assert np.abs(row - row.mean()).mean() == 1.5


def test_the_spectrum_in_numbers(table):
    shares = spectrum(table)
    assert (np.diff(shares) <= 0).all()
    values = spectrum_values(shares)
    assert values["variance_in_3"] == pytest.approx(shares[:3].sum())
    assert values["variance_in_3"] == pytest.approx(
        project(table, "pca", 3, 0).var(axis=0).sum() / table.var(axis=0).sum()
    )
    flat = spectrum_values(np.full(8, 1 / 8))
    assert flat["effective_rank"] == pytest.approx(8)
    assert flat["directions_for_90_percent"] == 8
    assert not spectrum(np.ones((9, 4))).any()


def test_umap_is_the_same_for_the_same_seed_and_keeps_neighbours_together():
    row, col = np.divmod(np.arange(64.0), 8)
    told = np.stack((row, col), axis=1) @ np.random.default_rng(0).normal(size=(2, 12))
    threads = torch.get_num_threads()
    points = project(told, "umap", 2, 0)
    assert torch.get_num_threads() == threads  # Numba changes it, and with it torch's sums.
    assert points.shape == (64, 2)
    assert (points == project(told, "umap", 2, 0)).all()
    near = np.linalg.norm(points[:-1] - points[1:], axis=1)[col[:-1] < 7].mean()
    far = np.linalg.norm(points - points[::-1], axis=1).mean()
    assert near < far / 2


def test_too_few_positions_are_refused(table):
    with pytest.raises(ConfigError, match="folds"):
        regress(table[:4], PatchGrid(2, 2), range(1))
    with pytest.raises(ConfigError, match="too few"):
        project(table[:3], "pca", 2, 0)


@pytest.mark.parametrize("kind", VITS)
def test_a_plain_models_table_is_the_one_that_wrapping_finds(kind):
    model = VITS[kind].build()
    table, grid = position_embeddings(model)
    wrapped = mjp.wrap(VITS[kind].build(), mjp.VARIANTS["A"])
    wrapped.load_state_dict(model.state_dict())
    other, other_grid = position_embeddings(wrapped)
    assert torch.equal(table, other)
    assert grid == other_grid == PatchGrid(4, 2)


def test_tables_of_other_families_are_found_or_said_to_be_missing():
    pit = timm.create_model("pit_ti_224")  # A map with the channels first.
    table, grid = position_embeddings(pit)
    assert (grid.rows, grid.cols) == (27, 27)
    assert torch.equal(table[28], pit.pos_embed[0, :, 1, 1])
    assert position_embeddings(timm.create_model("cait_xxs24_224"))[0].shape == (196, 192)
    swin = timm.create_model("swin_tiny_patch4_window7_224", **TINY_SWIN)
    for model in (timm.create_model("resnet18"), swin, mjp.wrap(swin, mjp.VARIANTS["A"])):
        with pytest.raises(ConfigError, match="no table of absolute positions"):
            position_embeddings(model)
