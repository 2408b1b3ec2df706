"""Which of the paper's numbers stands beside which model."""

import numpy as np
import pytest

import mjp
from mjp.report import paper


def conditions(variant=None, ratio=None, architecture="deit_small_patch16_224", imagenet=True):
    told = {"architecture": architecture, "imagenet": imagenet}
    if variant is None:
        return told
    config = mjp.VARIANTS[variant]
    return {
        **told,
        "mjp_ratio": config.ratio if ratio is None else ratio,
        "mjp_positions": config.positions,
        "mjp_localization": config.localization,
        "mjp_pixels": config.pixels,
    }


@pytest.mark.parametrize("variant", mjp.VARIANTS)
def test_each_variant_of_deit_s_has_its_own_row(variant):
    assert paper.classification(conditions(variant)) == paper.ABLATION[variant]


def test_a_plain_timm_model_is_variant_a():
    assert paper.classification(conditions()).top1 == 79.8
    assert paper.robustness(conditions()).mce == 54.6
    assert paper.regression(conditions()).one == (0.945, 0.031)


def test_mjp_is_looked_up_by_its_ratio():
    assert paper.classification(conditions("J", 0.27)).consistency == 93.1
    assert paper.classification(conditions("J", 0.5)) is None
    assert paper.classification(conditions("G", 0.27)) is None
    assert paper.robustness(conditions("J")).mce == 51.6
    assert paper.robustness(conditions("J", 0.27)) is None
    assert paper.robustness(conditions("G")) is None
    assert paper.regression(conditions("I")).two == (0.042, 0.002)
    assert paper.regression(conditions("B")) is None


def test_other_models_and_other_data_have_no_row():
    assert paper.classification(conditions(architecture="deit_tiny_patch16_224")) is None
    assert paper.classification(conditions("J", imagenet=False)) is None
    assert paper.regression(conditions(imagenet=False)) is None
    assert paper.classification(conditions(architecture="resnet50")).top1 == 79.3
    assert paper.classification(conditions("J", architecture="resnet50")).top1 == 79.4
    assert paper.classification(conditions("J", 0.5, architecture="resnet50")) is None


def test_the_printed_means_match_their_columns_but_for_one():
    plain, ours = paper.ROBUSTNESS[False], paper.ROBUSTNESS[True]
    assert np.mean(list(plain.errors.values())) == pytest.approx(plain.printed_mean, abs=0.05)
    assert np.mean(list(ours.errors.values())) == pytest.approx(43.24)
    assert ours.printed_mean == 41.5


def test_the_papers_privacy_rows():
    assert len(paper.PRIVACY) == 10
    by = {(row.model, row.setting): row for row in paper.PRIVACY}
    assert len(by) == 10
    assert by["DeiT-S", "a"].psnr == 18.94
    third, twin = by["DeiT-S + MJP without E_unk", "a"], by["DeiT-S + MJP", "b"]
    assert (third.mse, third.psnr, third.lpips) == (twin.mse, twin.psnr, twin.lpips)
