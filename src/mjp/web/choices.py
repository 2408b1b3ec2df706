"""What a visitor can choose from: defences with their numbers in bounds, attacks, samples."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from mjp.core.errors import ConfigError
from mjp.privacy.attacking import ATTACKS
from mjp.privacy.defences import Defence, parse_defence
from mjp.web.refusing import RefusedError

LONGEST_DEFENCE = 80
"""Characters of a defence's text."""


@dataclass(frozen=True)
class Number:
    """A number that belongs to a defence, and what it may be.

    Args:
        scale: `linear` or `log`: how a slider runs over it.
    """

    label: str
    least: float
    most: float
    start: float
    scale: str = "linear"


@dataclass(frozen=True)
class Choice:
    """A defence in words; without a number it is written as its name."""

    label: str
    about: str
    number: Number | None = None


_SHARE = Number("γ, share of the patches", 0.0, 0.9, 0.03)

DEFENCES: Mapping[str, Choice] = MappingProxyType(
    {
        "none": Choice("None", "The gradients are sent as they are."),
        "mjp": Choice(
            "Masked jigsaw puzzle (MJP)",
            "Blocks of patches are shuffled and all get one and the same unknown position.",
            _SHARE,
        ),
        "shuffle": Choice(
            "Shuffle only",
            "Blocks of patches are shuffled; every place keeps its position.",
            _SHARE,
        ),
        "unshared": Choice(
            "Position gradient not shared", "The gradient of the position table stays at home."
        ),
        "frozen": Choice("Frozen positions", "The position table is not trained."),
        "sincos": Choice("Fixed sin-cos positions", "Fixed positions in place of learned ones."),
        "fp16": Choice("Sent in 16 bits (fp16)", "Gradients are rounded to 11 significant bits."),
        "bf16": Choice("Sent in 16 bits (bf16)", "Gradients are rounded to 8 significant bits."),
        "prune": Choice(
            "Pruning",
            "The smallest entries of each gradient are set to zero.",
            Number("Share that is set to zero", 0.01, 0.999, 0.9),
        ),
        "clip": Choice(
            "Clipping",
            "The whole gradient is scaled down to a norm.",
            Number("Norm", 1e-4, 100.0, 1.0, "log"),
        ),
        "noise": Choice(
            "Gaussian noise",
            "Noise is added to every entry.",
            Number("Standard deviation", 1e-9, 1.0, 1e-5, "log"),
        ),
        "dp": Choice(
            "DP-SGD",
            "The gradient is clipped to norm 1 and noise is added, with a guarantee.",
            Number("Noise multiplier", 1e-3, 100.0, 1.0, "log"),
        ),
    }
)
"""What the page offers, by the name of its part."""

BOUNDS: Mapping[str, tuple[tuple[float, float], ...]] = MappingProxyType(
    {
        "mjp": ((0, 1), (0, 1)),
        "shuffle": ((0, 1), (0, 1)),
        "prune": ((0, 1),),
        "clip": ((1e-9, 1e9),),
        "noise": ((1e-15, 1e6),),
        "dp": ((1e-6, 1e6), (1e-6, 1e6)),
        "steps": ((1, 8), (1e-9, 10)),
    }
)
"""Least and most of every number in a defence's text."""

REFUSED = MappingProxyType({"batch": "it takes several pictures; use mjp audit"})
"""Parts that make no sense for a single picture."""

SAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "astronaut": "Astronaut",
        "coffee": "Coffee",
        "cat": "Cat",
        "retina": "Retina scan",
        "rocket": "Rocket",
        "flower": "Flower",
    }
)
"""Bundled photographs, and what they are called."""

ABOUT_ATTACKS: Mapping[str, str] = MappingProxyType(
    {
        "april": "The paper's own attack. It needs a first block without norm and residual; "
        "elsewhere it says that it does not apply.",
        "patch_solve": "Solves two shared gradients for the picture, exactly, in one go. It does "
        "not know of any defence.",
        "adaptive_solve": "The same by an attacker who knows the defence: finds the mask, and "
        "fills in what is hidden by what photographs look like.",
        "invert": "Looks for a picture whose gradient points the same way (Inverting Gradients).",
        "dlg": "Looks for a picture and a class with the same gradient (DLG).",
        "idlg": "As DLG, with the class read off the gradient first (iDLG).",
        "april_opt": "Matches gradients, and the direction of the positions' gradient.",
        "gradvit": "Matches gradients, smooths patch borders, lets several starts agree (GradViT).",
    }
)


def checked_defence(text: str) -> Defence:
    """The defence of a request's text, once every name and number in it is found in order."""
    if len(text) > LONGEST_DEFENCE:
        raise RefusedError(422, f"A defence has at most {LONGEST_DEFENCE} characters.")
    if not text.isascii() or not text.isprintable():
        raise RefusedError(
            422, "A defence is written in plain letters, such as mjp=0.27 or clip=1."
        )
    try:
        defence = parse_defence(text)
    except ConfigError as error:
        raise RefusedError(422, f"The defence cannot be had: {error}.") from error
    for part in defence.parts:
        if part.name in REFUSED:
            raise RefusedError(422, f"{part.name} is not offered here: {REFUSED[part.name]}.")
        bounds = BOUNDS.get(part.name, ())
        for field, (least, most) in zip(fields(part), bounds, strict=True):
            value = getattr(part, field.name)
            if not least <= value <= most:
                raise RefusedError(
                    422,
                    f"The {field.name.replace('_', ' ')} of {part.name} must be between "
                    f"{least:g} and {most:g}, got {value:g}.",
                )
    return defence


def checked_attack(name: str) -> str:
    """The attack of a request, if there is one of this name."""
    if name not in ATTACKS:
        raise RefusedError(422, f"There is no such attack. There are: {', '.join(ATTACKS)}.")
    return name
