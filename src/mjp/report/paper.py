"""The paper's numbers (MJP, CVPR 2023), to be shown beside ours and labelled as the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mjp.core.records import Scalar
from mjp.models.config import VARIANTS


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


CONSISTENCY_RATIO = 0.5
"""The ratio that the reference script evaluates consistency at by default; not stated in print."""

PLAIN: Mapping[str, Classification] = MappingProxyType(
    {
        "resnet50": Classification(79.3, 51.5, 11.77),
        "deit_small_patch16_224": Classification(79.8, 64.3, 16.21),
        "swin_tiny_patch4_window7_224": Classification(81.3, 41.5, 15.49),
    }
)
"""By timm's name of the backbone."""

WITH_MJP: Mapping[str, Classification] = MappingProxyType(
    {
        "resnet50": Classification(79.4, 69.3, 7.11),
        "swin_tiny_patch4_window7_224": Classification(81.3, 66.9, 12.36),
    }
)
"""With MJP; the ratio is not stated, so that of the paper's main model is taken."""

ABLATION: Mapping[str, Classification] = MappingProxyType(
    {
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
)
"""DeiT-S, by variant; D's Diff. Norm. is that of the table over γ, at γ = 0."""

RATIOS: Mapping[float, Classification] = MappingProxyType(
    {
        0.03: ABLATION["J"],
        0.09: Classification(80.3, 88.1, 6.36),
        0.15: Classification(80.4, 90.5, 5.23),
        0.21: Classification(80.2, 92.3, 4.39),
        0.27: Classification(80.3, 93.1, 3.97),
    }
)
"""DeiT-S with MJP, by the ratio it was trained with."""

MAIN_RATIO = 0.03
DEIT_S = "deit_small_patch16_224"

_CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)

ROBUSTNESS: Mapping[bool, Robustness] = MappingProxyType(
    {
        False: Robustness(
            mce=54.6,
            errors=dict(
                zip(
                    _CORRUPTIONS,
                    (41.0, 42.7, 42.8, 50.5, 59.4, 45.5, 36.1, 43.0, 42.4, 36.6),
                    strict=True,
                )
            ),
            printed_mean=44.0,
            imagenet_a=19.2,
            aurra=25.1,
            aupr=20.9,
        ),
        True: Robustness(
            mce=51.6,
            errors=dict(
                zip(
                    _CORRUPTIONS,
                    (39.9, 41.8, 41.2, 49.9, 58.6, 47.4, 34.5, 43.3, 40.0, 35.8),
                    strict=True,
                )
            ),
            printed_mean=41.5,
            imagenet_a=21.6,
            aurra=29.8,
            aupr=22.6,
        ),
    }
)
"""DeiT-S without and with MJP. With MJP, the ten printed errors have a mean of 43.2, not 41.5."""

REGRESSION: Mapping[str, Regression] = MappingProxyType(
    {
        "A": Regression((0.945, 0.031), (0.076, 0.004)),
        "I": Regression((0.566, 0.013), (0.042, 0.002)),
        "J": Regression((1.301, 0.035), (0.134, 0.003)),
    }
)
"""DeiT-S by variant: plain, MJP with the linear regressor, MJP."""


def classification(conditions: Mapping[str, Scalar]) -> Classification | None:
    """The paper's row for a model that a record describes; None where it has none."""
    name = str(conditions.get("architecture"))
    if not conditions.get("imagenet") or name not in PLAIN:
        return None
    if name != DEIT_S:
        ratio = conditions.get("mjp_ratio")
        with_mjp = WITH_MJP[name] if ratio == MAIN_RATIO else None
        return with_mjp if ratio else PLAIN[name]
    variant = variant_of(conditions)
    if variant == "J":
        return RATIOS.get(float(str(conditions.get("mjp_ratio"))))
    shuffles_a_part = variant in ("E", "F", "G", "H", "I")
    if variant is None or (shuffles_a_part and conditions.get("mjp_ratio") != MAIN_RATIO):
        return None
    return ABLATION[variant]


def robustness(conditions: Mapping[str, Scalar]) -> Robustness | None:
    """The paper's robustness, for a record of its DeiT-S without or with MJP."""
    if conditions.get("architecture") != DEIT_S or not conditions.get("imagenet"):
        return None
    variant = variant_of(conditions)
    if variant == "J" and conditions.get("mjp_ratio") == MAIN_RATIO:
        return ROBUSTNESS[True]
    return ROBUSTNESS[False] if variant == "A" else None


def regression(conditions: Mapping[str, Scalar]) -> Regression | None:
    """The paper's regression errors, for a record of its DeiT-S."""
    if conditions.get("architecture") != DEIT_S or not conditions.get("imagenet"):
        return None
    return REGRESSION.get(variant_of(conditions) or "")


def variant_of(conditions: Mapping[str, Scalar]) -> str | None:
    """The row of the paper's ablation that a record's model is of, whatever its ratio."""
    if conditions.get("mjp_positions") is None:
        return "A"
    told = tuple(conditions.get(f"mjp_{name}") for name in ("positions", "localization", "pixels"))
    shuffles = bool(conditions.get("mjp_ratio"))
    for letter, config in VARIANTS.items():
        own = (config.positions, config.localization, config.pixels)
        if own == told and shuffles == (config.ratio > 0):
            return letter
    return None
