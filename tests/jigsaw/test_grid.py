import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mjp import ConfigError, PatchGrid


def test_patches_count_along_rows_from_the_top_left():
    grid = PatchGrid(rows=2, cols=3)
    images = torch.arange(2 * 3).reshape(1, 1, 2, 3)
    assert grid.split(images).flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert grid.coordinates().tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


@given(
    rows=st.integers(1, 5),
    cols=st.integers(1, 5),
    high=st.integers(1, 4),
    wide=st.integers(1, 4),
    batch=st.integers(0, 3),
)
def test_join_undoes_split_and_each_patch_is_a_rectangle_of_pixels(rows, cols, high, wide, batch):
    grid = PatchGrid(rows, cols)
    images = torch.randn(batch, 2, rows * high, cols * wide)
    patches = grid.split(images)
    assert torch.equal(grid.join(patches), images)
    for index in range(grid.num_patches):
        row, col = divmod(index, cols)
        rectangle = images[..., row * high : (row + 1) * high, col * wide : (col + 1) * wide]
        assert torch.equal(patches[:, index], rectangle)


def test_on_a_finer_grid_a_patch_is_masked_where_its_coarse_patch_is():
    coarse, fine = PatchGrid(1, 2), PatchGrid(2, 6)
    spread = coarse.mask_on(fine, torch.tensor([[True, False]])).reshape(2, 6)
    assert spread.tolist() == [[True, True, True, False, False, False]] * 2
    mask = torch.tensor([[True, False, False]])  # Where grids do not divide, the corner decides.
    assert PatchGrid(1, 3).mask_on(PatchGrid(1, 2), mask).tolist() == [[True, False]]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((225, 224, 16), "a 225x224 image cannot be cut into 16x16 patches; resize it to 224x224"),
        ((8, 224, 16), "smaller than one 16x16 patch"),
        ((8, 8, 0), "patch_size must be at least one pixel"),
        ((8, 8, (2, 2, 2)), "patch_size must be at least one pixel"),
    ],
)
def test_an_image_that_cannot_be_cut_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        PatchGrid.of(*arguments)


@pytest.mark.unchecked
@pytest.mark.parametrize("rows", [0, -1, 2.0, True])
def test_a_grid_of_no_patches_is_refused(rows):
    with pytest.raises(ConfigError, match="at least one of its rows"):
        PatchGrid(rows=rows, cols=2)


def test_images_of_another_size_than_the_grids_are_refused_with_a_size_that_works():
    with pytest.raises(ConfigError, match=r"30x32 image cannot be cut into a 4x2 grid.*32x32"):
        PatchGrid(4, 2).split(torch.zeros(1, 3, 30, 32))
