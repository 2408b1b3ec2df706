"""The paper's numbers (MJP, CVPR 2023), to be shown beside ours and labelled as the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mjp.core.records import Scalar


@dataclass(frozen=True)
class Classification:
    """A row of the paper's tables on ImageNet-1K: percent, percent, distance."""

    top1: float
    consistency: float
    diff_norm: float


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
        "deit_small": Classification(79.8, 64.3, 16.21),
        "swin_tiny": Classification(81.3, 41.5, 15.49),
    }
)

WITH_MJP: Mapping[tuple[str, float], Classification] = MappingProxyType(
    {
        ("resnet50", 0.03): Classification(79.4, 69.3, 7.11),
        ("swin_tiny", 0.03): Classification(81.3, 66.9, 12.36),
        ("deit_small", 0.0): Classification(80.0, 64.0, 16.56),
        ("deit_small", 0.03): Classification(80.5, 82.9, 8.96),
        ("deit_small", 0.09): Classification(80.3, 88.1, 6.36),
        ("deit_small", 0.15): Classification(80.4, 90.5, 5.23),
        ("deit_small", 0.21): Classification(80.2, 92.3, 4.39),
        ("deit_small", 0.27): Classification(80.3, 93.1, 3.97),
    }
)
"""By backbone and training ratio; the paper gives ratios for DeiT-S only."""

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

REGRESSION: Mapping[str | None, Regression] = MappingProxyType(
    {
        None: Regression((0.945, 0.031), (0.076, 0.004)),
        "linear": Regression((0.566, 0.013), (0.042, 0.002)),
        "mlp": Regression((1.301, 0.035), (0.134, 0.003)),
    }
)
"""DeiT-S, and DeiT-S with MJP by its regressor."""


def backbone(architecture: str) -> str | None:
    """Which of the paper's backbones a timm architecture is."""
    for name, start in (
        ("resnet50", "resnet50"),
        ("deit_small", "deit_small_patch16_224"),
        ("swin_tiny", "swin_tiny_patch4_window7_224"),
    ):
        if architecture == start:
            return name
    return None


def classification(conditions: Mapping[str, Scalar]) -> Classification | None:
    """The paper's row for a model that a record describes; None where it has none."""
    name = backbone(str(conditions.get("architecture")))
    if name is None or not conditions.get("imagenet"):
        return None
    ratio = conditions.get("mjp_ratio")
    if conditions.get("mjp_positions") != "unknown" or not isinstance(ratio, float):
        return PLAIN[name]
    return WITH_MJP.get((name, ratio))


def robustness(conditions: Mapping[str, Scalar]) -> Robustness | None:
    """The paper's robustness of DeiT-S, for a record of one; None for any other model."""
    if backbone(str(conditions.get("architecture"))) != "deit_small":
        return None
    if not conditions.get("imagenet"):
        return None
    return ROBUSTNESS[conditions.get("mjp_positions") == "unknown"]


def regression(conditions: Mapping[str, Scalar]) -> Regression | None:
    """The paper's regression errors of DeiT-S, for a record of one."""
    if backbone(str(conditions.get("architecture"))) != "deit_small":
        return None
    if conditions.get("mjp_positions") != "unknown":
        return REGRESSION[None]
    return REGRESSION.get(str(conditions.get("mjp_localization")))
