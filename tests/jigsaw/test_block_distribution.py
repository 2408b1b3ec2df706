"""The sampler against the slow oracle: the same distribution of blocks and of masks."""

import math
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from scipy import stats

from mjp import PatchGrid, sample_plan
from mjp.jigsaw import blocks
from tests.jigsaw.oracle import draw_mask

SETTINGS = [((14, 14), 0.03), ((14, 14), 0.27), ((14, 14), 0.9), ((8, 8), 0.5), ((3, 17), 0.3)]
DRAWS = 1500
LEAST_P = 1e-3


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def pair(request):
    """Blocks and masks of the sampler and of the oracle, for one grid and ratio."""
    (rows, cols), ratio = request.param
    grid = PatchGrid(rows, cols)
    num_masked = round(ratio * grid.num_patches)
    draws = blocks.draw_for_blocks(grid, DRAWS, num_masked, torch.Generator().manual_seed(1))
    ours = [[] for _ in range(DRAWS)]
    for laid in blocks.lay_blocks(grid, num_masked, draws):
        for image in laid.accepted.nonzero().flatten().tolist():
            ours[image].append(tuple(laid.block[image].tolist()))
    masked = blocks.complete(grid, num_masked, laid, draws.tie_break)
    random = Random(2)
    oracle = [draw_mask(rows, cols, num_masked, random) for _ in range(DRAWS)]
    theirs = np.array([mask.masked for mask in oracle]).reshape(DRAWS, -1)
    return ours, masked.numpy(), [mask.blocks for mask in oracle], theirs


def same_categories(ours: list, theirs: list) -> float:
    """p-value of two samples of categories being from one distribution, rare ones pooled."""
    one, other = Counter(ours), Counter(theirs)
    common = [key for key in one | other if one[key] + other[key] >= 20]
    table = [[counts[key] for key in common] for counts in (one, other)]
    for row, sample in zip(table, (ours, theirs), strict=True):
        row.append(len(sample) - sum(row))
    table = np.array(table)
    table = table[:, table.sum(axis=0) > 0]
    return 1.0 if table.shape[1] < 2 else stats.chi2_contingency(table).pvalue


def test_as_many_blocks_are_laid(pair):
    ours, _, theirs, _ = pair
    assert same_categories([len(one) for one in ours], [len(one) for one in theirs]) > LEAST_P


@pytest.mark.parametrize("number", [0, 1])
def test_blocks_have_the_same_area_and_aspect_ratio(pair, number):
    ours, _, theirs, _ = pair
    ours = [one[number] for one in ours if len(one) > number]
    theirs = [one[number] for one in theirs if len(one) > number]
    if len(ours) < 30:
        pytest.skip("masks of this size are one block")

    def areas(chosen):
        return [high * wide for _, _, high, wide in chosen]

    def aspects(chosen):
        return [round(math.log(high / wide), 6) for _, _, high, wide in chosen]

    assert same_categories(areas(ours), areas(theirs)) > LEAST_P
    assert same_categories(aspects(ours), aspects(theirs)) > LEAST_P


def test_each_cell_is_masked_as_often(pair):
    _, ours, _, theirs = pair
    share = (ours.mean(axis=0) + theirs.mean(axis=0)) / 2
    spread = np.sqrt(np.maximum(share * (1 - share), 1e-9) * 2 / DRAWS)
    assert np.abs((ours.mean(axis=0) - theirs.mean(axis=0)) / spread).max() < 4.5


def test_neighbours_are_masked_together_as_often(pair):
    _, ours, _, theirs = pair
    # How many pairs of patches next to each other in the list are both masked, per image.
    pairs = [(sample[:, 1:] & sample[:, :-1]).sum(axis=1) for sample in (ours, theirs)]
    assert stats.ks_2samp(*pairs).pvalue > LEAST_P


def test_patches_are_counted_in_whole_numbers_whatever_autocast_does():
    grid = PatchGrid(48, 40)
    block = torch.tensor([[[0, 0, 48, 40]]], dtype=torch.int32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        count = blocks._cells(block, grid).sum(dim=(2, 3))
        inside = sample_plan(grid, 32, 0.9, torch.Generator().manual_seed(0))
    assert count.dtype == torch.int64
    assert count.item() == 1920
    outside = sample_plan(grid, 32, 0.9, torch.Generator().manual_seed(0))
    assert inside.masked.equal(outside.masked)


@pytest.mark.parametrize("ratio", [0.03, 0.5, 0.97])
def test_the_rule_ends_before_the_draws_run_out(ratio):
    grid = PatchGrid(24, 24)
    num_masked = round(ratio * grid.num_patches)
    draws = blocks.draw_for_blocks(grid, 300, num_masked, torch.Generator().manual_seed(3))
    rounds = sum(1 for _ in blocks.lay_blocks(grid, num_masked, draws))
    assert rounds < blocks.enough_blocks(grid, num_masked) or num_masked <= rounds
