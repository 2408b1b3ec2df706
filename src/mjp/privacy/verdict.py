"""How grave it is what came back: a level, and words that need no expert. Imports no torch."""

import math
from collections.abc import Mapping
from typing import Literal

from mjp.core.records import Scalar

Level = Literal["recovered", "recognisable", "traces", "failed", "does not apply"]

RECOVERED = 30.0
"""dB from which a reconstruction can hardly be told from the picture at a glance."""
RECOGNISABLE = 20.0
"""dB from which people and things in it are recognised."""
MARGIN = 1.0
"""dB that an attack has to be above the trivial guess to count as one."""
ELSEWHERE = 3.0
"""dB by which what is found of a part has to be better than the whole to stand for it."""
MOST_OF_IT = 0.5
"""Share of the patches from which what is outside a mask counts as the picture."""


def level_of(psnr: float | None, baseline: float) -> Level:
    """How much was recovered.

    Args:
        psnr: None where the attack does not apply.
        baseline: of the best trivial guess on the same images.
    """
    if psnr is None:
        return "does not apply"
    if psnr < baseline + MARGIN:
        return "failed"
    if psnr >= RECOVERED:
        return "recovered"
    return "recognisable" if psnr >= RECOGNISABLE else "traces"


VERDICTS: Mapping[Level, str] = {
    "recovered": "{who} recovers the picture{of}: {psnr:.0f} dB.",
    "recognisable": "{who} recovers a recognisable picture{of}: {psnr:.0f} dB.",
    "traces": "{who} recovers traces of the picture{of}: {psnr:.0f} dB, where a plain guess gives "
    "{baseline:.0f}.",
    "failed": "The solver failed: {psnr:.0f} dB, no better than the plain guess of {baseline:.0f}. "
    "That is no proof of privacy.",
    "does not apply": "This attack does not apply here, which says nothing about others.",
}
"""What each level means, in words that need no expert."""


def judged(summary: Mapping[str, Scalar], baseline: float, knows: bool) -> dict[str, Scalar]:
    """Level and verdict, of what came back best: the picture, its jigsaw, or its unmasked part."""
    psnr, shuffled, unmasked, guess, masked, patches = (
        value if isinstance(value := summary.get(name), float) else math.nan
        for name in (
            *("psnr", "client_psnr", "psnr_unmasked", "guess_unmasked"),
            *("masked_patches", "patches"),
        )
    )
    share, of = 1 - masked / patches, ""
    # Every patch, in the wrong order, is more than the patches that stayed.
    if shuffled > psnr + ELSEWHERE:
        psnr, of = shuffled, ", its patches in shuffled order"
    if unmasked > psnr + ELSEWHERE and share >= MOST_OF_IT:
        psnr, of = unmasked, f" outside the mask ({share:.0%} of it)".replace("%", " %")
        baseline = guess if guess > baseline else baseline
    level = level_of(None if math.isnan(psnr) else psnr, baseline)
    who = "An attacker who knows the defence" if knows else "An attacker"
    words = VERDICTS[level].format(who=who, of=of, psnr=psnr, baseline=baseline)
    return {"level": level, "verdict": words}
