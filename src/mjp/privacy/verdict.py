"""What the numbers of an attack mean, in words that need no expert."""

from typing import Literal

Level = Literal["recovered", "recognisable", "traces", "failed", "does not apply"]

RECOVERED = 30.0
"""dB from which a reconstruction can hardly be told from the picture at a glance."""
RECOGNISABLE = 20.0
"""dB from which people and things in it are recognised."""
MARGIN = 1.0
"""dB that an attack has to be above the trivial guess to count as one."""


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


def verdict(
    level: Level,
    psnr: float | None,
    baseline: float,
    *,
    knows_defence: bool,
    part: str = "",
    share: float = 1.0,
) -> str:
    """A sentence on what an attacker gets.

    Args:
        part: `unmasked` where the number is of the patches that no mask hides; `shuffled` where
            it is of the picture as the client had shuffled it.
        share: of the picture that no mask hides.
    """
    who = "An attacker who knows the defence" if knows_defence else "An attacker"
    if psnr is None:
        return "This attack does not apply here, which says nothing about others."
    outside = f" outside the mask ({share:.0%} of it)".replace("%", " %")
    of = {"": "", "unmasked": outside, "shuffled": ", its patches in shuffled order"}[part]
    told = {
        "recovered": f"{who} recovers the picture{of}: {psnr:.0f} dB.",
        "recognisable": f"{who} recovers a recognisable picture{of}: {psnr:.0f} dB.",
        "traces": f"{who} recovers traces of the picture{of}: {psnr:.0f} dB, "
        f"where a plain guess gives {baseline:.0f}.",
        "failed": f"The solver failed: {psnr:.0f} dB, no better than the plain guess of "
        f"{baseline:.0f}. That is no proof of privacy.",
    }
    return told[level]
