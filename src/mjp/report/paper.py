"""The paper's numbers (MJP, CVPR 2023), to be shown beside ours and labelled as the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mjp.core.records import Scalar


@dataclass(frozen=True)
class Classification:
    """A row of the paper's tables on ImageNet-1K: percent, percent, distance."""

    top1: float
    consistency: float
    diff_norm: float | None = None


@dataclass(frozen=True)
class Robustness:
    """The paper's robustness of a model, in percent.

    Args:
        errors: unnormalised error by corruption, from the supplement.
        printed_mean: the mean as printed there.
    """

    mce: float
    errors: Mapping[str, float]
    printed_mean: float
    imagenet_a: float
    aurra: float
    aupr: float


@dataclass(frozen=True)
class Regression:
    """Position from embedding: mean absolute error and its spread, 1-D and 2-D."""

    one: tuple[float, float]
    two: tuple[float, float]


@dataclass(frozen=True)
class Leak:
    """A row of the paper's table on gradient inversion: 999 ImageNet images, one at a time.

    Args:
        setting: a: gradient of the plain picture, compared with it; b: gradient of the jigsaw,
            compared with the jigsaw; c: gradient of the jigsaw, compared with the plain picture.
        accuracy: top-1 in percent, of the network before its first block was changed.
    """

    model: str
    setting: Literal["a", "b", "c"]
    accuracy: float
    mse: float
    fft2d: float
    psnr: float
    ssim: float
    lpips: float


CONSISTENCY_RATIO = 0.5
"""The ratio that the reference script evaluates consistency at by default; not stated in print."""

PLAIN: Mapping[str, Classification] = {
    "resnet50": Classification(79.3, 51.5, 11.77),
    "deit_small_patch16_224": Classification(79.8, 64.3, 16.21),
    "swin_tiny_patch4_window7_224": Classification(81.3, 41.5, 15.49),
}
"""By timm's name of the backbone."""

WITH_MJP: Mapping[str, Classification] = {
    "resnet50": Classification(79.4, 69.3, 7.11),
    "swin_tiny_patch4_window7_224": Classification(81.3, 66.9, 12.36),
}
"""With MJP; the ratio is not stated, so that of the paper's main model is taken."""

ABLATION: Mapping[str, Classification] = {
    "A": PLAIN["deit_small_patch16_224"],
    "B": Classification(77.5, 100.0),
    "C": Classification(74.9, 74.8),
    "D": Classification(80.0, 64.0, 16.56),
    "E": Classification(79.2, 73.8),
    "F": Classification(79.9, 79.6),
    "G": Classification(80.1, 83.8),
    "H": Classification(79.9, 83.4),
    "I": Classification(80.0, 83.8),
    "J": Classification(80.5, 82.9, 8.96),
}
"""DeiT-S, by variant; D's Diff. Norm. is that of the table over γ, at γ = 0."""

SETTINGS: Mapping[str, tuple[str, str | None, str, bool]] = {
    "A": ("own", None, "keep", False),
    "B": ("none", None, "keep", False),
    "C": ("own", None, "shuffle", True),
    "D": ("own", "mlp", "keep", False),
    "E": ("own", None, "keep", True),
    "F": ("indexed", None, "keep", True),
    "G": ("unknown", None, "keep", True),
    "H": ("unknown", "pca", "keep", True),
    "I": ("unknown", "linear", "keep", True),
    "J": ("unknown", "mlp", "keep", True),
}
"""Of each row of the ablation: positions, localization, pixels, and whether patches move."""

RATIOS: Mapping[Scalar, Classification] = {
    0.03: ABLATION["J"],
    0.09: Classification(80.3, 88.1, 6.36),
    0.15: Classification(80.4, 90.5, 5.23),
    0.21: Classification(80.2, 92.3, 4.39),
    0.27: Classification(80.3, 93.1, 3.97),
}
"""DeiT-S with MJP, by the ratio it was trained with."""

TIME_PERCENT = 2.0
"""How much longer an epoch takes with MJP, as the paper quotes it."""

MAIN_RATIO = 0.03
DEIT_S = "deit_small_patch16_224"

_CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)


def _errors(*errors: float) -> Mapping[str, float]:
    return dict(zip(_CORRUPTIONS, errors, strict=True))


ROBUSTNESS: Mapping[bool, Robustness] = {
    False: Robustness(
        54.6,
        _errors(41.0, 42.7, 42.8, 50.5, 59.4, 45.5, 36.1, 43.0, 42.4, 36.6),
        *(44.0, 19.2, 25.1, 20.9),
    ),
    True: Robustness(
        51.6,
        _errors(39.9, 41.8, 41.2, 49.9, 58.6, 47.4, 34.5, 43.3, 40.0, 35.8),
        *(41.5, 21.6, 29.8, 22.6),
    ),
}
"""DeiT-S without and with MJP. With MJP, the ten printed errors have a mean of 43.2, not 41.5."""

REGRESSION: Mapping[str, Regression] = {
    "A": Regression((0.945, 0.031), (0.076, 0.004)),
    "I": Regression((0.566, 0.013), (0.042, 0.002)),
    "J": Regression((1.301, 0.035), (0.134, 0.003)),
}
"""DeiT-S by variant: plain, MJP with the linear regressor, MJP."""


PRIVACY_RATIO = 0.27
"""The share of patches that the jigsaw of settings b and c moves."""

PRIVACY = (
    Leak("ViT-S", "a", 78.1, 0.0278, 0.0039, 19.27, 0.5203, 0.3623),
    Leak("DeiT-S", "a", 79.8, 0.0350, 0.0057, 18.94, 0.5182, 0.3767),
    Leak("DeiT-S without PEs", "a", 77.5, 0.0379, 0.0082, 20.22, 0.5912, 0.2692),
    Leak("DeiT-S + MJP", "a", 80.5, 0.1055, 0.0166, 11.52, 0.4053, 0.6545),
    Leak("ViT-S", "b", 18.7, 0.0327, 0.0016, 18.44, 0.6065, 0.2836),
    Leak("DeiT-S", "b", 36.0, 0.0391, 0.0024, 17.60, 0.5991, 0.3355),
    Leak("DeiT-S without PEs", "b", 77.5, 0.0379, 0.0025, 20.25, 0.6655, 0.2370),
    Leak("DeiT-S + MJP", "b", 62.9, 0.1043, 0.0059, 11.66, 0.4493, 0.6519),
    Leak("DeiT-S + MJP without E_unk", "a", 40.6, 0.1043, 0.0059, 11.66, 0.4493, 0.6519),
    Leak("DeiT-S + MJP", "c", 62.9, 0.1706, 0.0338, 8.07, 0.0875, 0.8945),
)
"""All ten rows. The ninth, row (3) of the paper, repeats the numbers of the eighth in print."""


def classification(conditions: Mapping[str, Scalar]) -> Classification | None:
    """The paper's row for a model that a record describes; None where it has none."""
    name, ratio = str(conditions.get("architecture")), conditions.get("mjp_ratio")
    if name != DEIT_S:
        rows = WITH_MJP if ratio == MAIN_RATIO else {} if ratio else PLAIN
        return rows.get(name) if conditions.get("imagenet") else None
    variant = _deit_s(conditions)
    if variant == "J":
        return RATIOS.get(ratio)
    is_plain = variant in ("A", "B", "C", "D")
    return ABLATION.get(variant) if is_plain or ratio == MAIN_RATIO else None


def robustness(conditions: Mapping[str, Scalar]) -> Robustness | None:
    """The paper's robustness, for a record of its DeiT-S without or with MJP."""
    variant = _deit_s(conditions)
    if variant == "J" and conditions.get("mjp_ratio") == MAIN_RATIO:
        return ROBUSTNESS[True]
    return ROBUSTNESS[False] if variant == "A" else None


def regression(conditions: Mapping[str, Scalar]) -> Regression | None:
    """The paper's regression errors, for a record of its DeiT-S."""
    return REGRESSION.get(_deit_s(conditions))


def _deit_s(conditions: Mapping[str, Scalar]) -> str:
    """The row of the ablation that a record's model is of, whatever its ratio; empty for others."""
    if conditions.get("architecture") != DEIT_S or not conditions.get("imagenet"):
        return ""
    if conditions.get("mjp_positions") is None:
        return "A"
    names = ("mjp_positions", "mjp_localization", "mjp_pixels")
    settings = (*map(conditions.get, names), bool(conditions.get("mjp_ratio")))
    return next((letter for letter, row in SETTINGS.items() if row == settings), "")
