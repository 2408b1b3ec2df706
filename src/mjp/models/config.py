"""`MJPConfig`: what is done to a backbone; and the paper's ablation, one configuration a row."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from tyro.conf import arg

from mjp.core.configuration import Shape, check_choice, check_ratio
from mjp.core.errors import ConfigError

Positions = Literal["unknown", "own", "indexed", "none"]
Localization = Literal["mlp", "linear", "pca"]


@dataclass(frozen=True)
class MJPConfig:
    """What is done to a backbone. The default is the paper's MJP (variant J).

    Args:
        ratio: γ, the share of patches that a jigsaw masks and shuffles.
        probability: the chance that a batch gets a jigsaw.
        shape: `block` masks random rectangles, `scatter` independent patches.
        pixels: `shuffle` also permutes the pixels inside every patch (variant C).
        positions: what a masked patch gets as its position embedding. `unknown`: one learned
            embedding shared by all of them. `own`: that of the place it came to lie in. `indexed`:
            as `own`, and a second learned table, as in the reference code, is added to all tokens.
            `none`: the backbone has no position table at all.
        localization: the regressor from position embedding to grid coordinate (DAL); None for none.
        position_init_std: how widely new position embeddings are drawn. The reference code's table
            has 1.0, through a default of its embedding layer; ViT's own is 0.02.
        absolute_positions: `added` gives a backbone that has no table of absolute positions (Swin)
            one; `as_built` leaves it as it is.
        jigsaw_patch: side in pixels of the patches that move, for backbones without such patches of
            their own (Swin, ResNet).
        first_block: `bare` takes the norm and the residual around the first attention away, which
            the analytic attack `april` needs; for audits, not for use.
    """

    ratio: float = 0.03
    probability: float = 0.5
    shape: Shape = "block"
    pixels: Literal["keep", "shuffle"] = "keep"
    positions: Positions = "unknown"
    localization: Localization | None = "mlp"
    position_init_std: float = 0.02
    absolute_positions: Literal["as_built", "added"] = "as_built"
    jigsaw_patch: int = 16
    first_block: Literal["as_built", "bare"] = "as_built"

    def __post_init__(self) -> None:
        check_ratio("ratio", self.ratio)
        check_ratio("probability", self.probability)
        check_choice("shape", self.shape, get_args(Shape))
        check_choice("pixels", self.pixels, ("keep", "shuffle"))
        check_choice("positions", self.positions, get_args(Positions))
        check_choice("localization", self.localization, (*get_args(Localization), None))
        check_choice("absolute_positions", self.absolute_positions, ("as_built", "added"))
        check_choice("first_block", self.first_block, ("as_built", "bare"))
        std = self.position_init_std
        if type(std) not in (int, float) or not 0 < std < math.inf:
            raise ConfigError(f"position_init_std must be a number above 0, got {std!r}")
        if type(self.jigsaw_patch) is not int or self.jigsaw_patch < 1:
            raise ConfigError(f"jigsaw_patch must be at least 1 pixel, got {self.jigsaw_patch!r}")
        if self.positions == "none" and self.localization is not None:
            raise ConfigError(
                "positions='none' leaves no position embedding to localize; set localization=None"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "MJPConfig":
        """The configuration with these fields; an unknown field is an error."""
        known = sorted(field.name for field in fields(cls))
        if unknown := sorted(set(values).difference(known)):
            raise ConfigError(
                f"MJPConfig has no field {', '.join(unknown)}; it has {', '.join(known)}"
            )
        return cls(**values)


VARIANTS: Mapping[str, MJPConfig] = MappingProxyType(
    {
        "A": MJPConfig(ratio=0.0, positions="own", localization=None),
        "B": MJPConfig(ratio=0.0, positions="none", localization=None),
        # As in MLP-Mixer's study, every patch is shuffled, not a block-wise part of them.
        "C": MJPConfig(ratio=1.0, pixels="shuffle", positions="own", localization=None),
        "D": MJPConfig(ratio=0.0, positions="own", localization="mlp"),
        "E": MJPConfig(positions="own", localization=None),
        "F": MJPConfig(positions="indexed", localization=None),
        "G": MJPConfig(localization=None),
        "H": MJPConfig(localization="pca"),
        "I": MJPConfig(localization="linear"),
        "J": MJPConfig(),
    }
)
"""The rows of the paper's ablation table; J is MJP."""

Models = Annotated[tuple[str, ...], arg(metavar="MODEL [MODEL …]")]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which models are looked at, and how."""

    model: Models
    """A folder (of a training run, or written by mjp.save or timm), a timm name, hf-hub:NAME,
    local-dir:PATH, or pretrained:NAME for a trained model of the package (mini-imagenet-plain,
    mini-imagenet-mjp). NAME@FILE takes the weights from a file, LABEL=MODEL gives it a name in the
    results. Several are set side by side."""
    size: tuple[int, int] | None = None
    """Height and width of the images, if not the model's own; position tables are resampled."""
    json: bool = False
    """Print records as JSON lines in place of tables."""
