"""Which of the paper's numbers stands beside which model."""

import numpy as np
import pytest

import mjp
from mjp.report import paper


def conditions(variant=None, ratio=None, architecture="deit_small_patch16_224", imagenet=True):
    facts = {"architecture": architecture, "imagenet": imagenet}
    if variant is not None:
        config = mjp.VARIANTS[variant]
        names = ("positions", "localization", "pixels")
        facts |= {f"mjp_{name}": getattr(config, name) for name in names}
        facts["mjp_ratio"] = config.ratio if ratio is None else ratio
    return facts


@pytest.mark.parametrize("variant", mjp.VARIANTS)
def test_each_variant_of_deit_s_has_its_own_row(variant):
    assert paper.classification(conditions(variant)) == paper.ABLATION[variant]


RESNET, TINY = "resnet50", "deit_tiny_patch16_224"


@pytest.mark.parametrize(
    ("look_up", "value", "facts", "expected"),
    [
        (paper.classification, "top1", conditions(), 79.8),
        (paper.robustness, "mce", conditions(), 54.6),
        (paper.regression, "one", conditions(), (0.945, 0.031)),
        (paper.classification, "consistency", conditions("J", 0.27), 93.1),
        (paper.classification, "", conditions("J", 0.5), None),
        (paper.classification, "", conditions("G", 0.27), None),
        (paper.robustness, "mce", conditions("J"), 51.6),
        (paper.robustness, "", conditions("J", 0.27), None),
        (paper.robustness, "", conditions("G"), None),
        (paper.regression, "two", conditions("I"), (0.042, 0.002)),
        (paper.regression, "", conditions("B"), None),
        (paper.regression, "", conditions(imagenet=False), None),
        (paper.classification, "", conditions(architecture=TINY), None),
        (paper.classification, "", conditions("J", imagenet=False), None),
        (paper.classification, "top1", conditions(architecture=RESNET), 79.3),
        (paper.classification, "top1", conditions("J", architecture=RESNET), 79.4),
        (paper.classification, "", conditions("J", 0.5, architecture=RESNET), None),
    ],
)
def test_a_model_has_the_row_of_its_settings_ratio_and_data_or_none(
    look_up, value, facts, expected
):
    row = look_up(facts)
    assert (getattr(row, value) if value else row) == expected


def test_the_printed_means_match_their_columns_but_for_one():
    plain, ours = paper.ROBUSTNESS[False], paper.ROBUSTNESS[True]
    assert np.mean(list(plain.errors.values())) == pytest.approx(plain.printed_mean, abs=0.05)
    assert np.mean(list(ours.errors.values())) == pytest.approx(43.24)
    assert ours.printed_mean == 41.5


def test_the_papers_privacy_rows():
    by = {(row.model, row.setting): row for row in paper.PRIVACY}
    assert len(by) == len(paper.PRIVACY) == 10
    third, twin = by["DeiT-S + MJP without E_unk", "a"], by["DeiT-S + MJP", "b"]
    assert (third.mse, third.psnr, third.lpips) == (twin.mse, twin.psnr, twin.lpips)
