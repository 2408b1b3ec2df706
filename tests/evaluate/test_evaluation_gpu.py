"""Evaluation on a GPU: nothing waits for it, and it finds what the CPU finds."""

import numpy as np
import pytest
import torch

from mjp.core.team import Team
from mjp.data.source import FolderSource
from mjp.evaluate.accuracy import JigsawScorer
from tests.data.pictures import write_folder
from tests.evaluate.subjects import ALONE, blocks, rows_of, settings, subject

pytestmark = [pytest.mark.gpu, pytest.mark.unchecked]

SETTINGS = settings(0.25, 0.5, draws=2)


def test_scoring_a_block_does_not_wait_for_the_device(tmp_path):
    write_folder(tmp_path / "set", count=9)
    source, team = FolderSource(tmp_path / "set"), Team(0, 1, torch.device("cuda"))
    for variant in ("A", "J"):
        one = subject(variant).on(team.device)
        scorer = JigsawScorer(one, SETTINGS, torch.arange(3, device="cuda"))
        (block,) = blocks(source, one.view, team)
        with torch.inference_mode():
            scorer.score(block, lambda _: None)  # Constants are copied and kernels built once.
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.inference_mode():
                scorer.score(block, lambda _: None)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_clean_images_are_judged_as_on_the_cpu(tmp_path):
    write_folder(tmp_path / "set", count=30)
    source = FolderSource(tmp_path / "set")
    found = []
    for team in (ALONE, Team(0, 1, torch.device("cuda"))):
        one = subject("J").on(team.device)
        scorer = JigsawScorer(one, SETTINGS, torch.arange(3, device=team.device))
        found.append(rows_of(scorer, source, one.view, team))
    top1, moved = (
        [rows.values[:, columns] for rows in found] for columns in (0, slice(4, None, 3))
    )
    assert (top1[0] == top1[1]).mean() > 0.95
    assert found[1].readable.all()
    # Jigsaws are drawn by the device's own generator; only their distribution is the same.
    assert np.abs(moved[0].mean() - moved[1].mean()) < 0.2 * moved[0].mean()
