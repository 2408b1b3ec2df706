"""What an audit found, over all pictures: means, intervals, extremes, verdicts."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from mjp.core.bootstrap import estimates
from mjp.core.records import Record, Scalar
from mjp.core.seeds import seed_for
from mjp.privacy.verdict import level_of, verdict

WITH_INTERVAL = ("psnr", "ssim")
MEANS = (
    *("mse", "fft2d", "lpips", "psnr_masked", "psnr_unmasked", "guess_unmasked", "mask_recovered"),
    *("masked_patches", "patches"),
    *("client_mse", "client_psnr", "client_ssim", "client_fft2d", "client_lpips"),
    *("identified_pixels", "identified_features"),
)
MOST_OF_IT = 0.5
"""Share of the patches from which what is outside a mask counts as the picture."""
MEDIANS = ("rank", "rank_needed", "condition", "seconds")


def summarize(
    conditions: Mapping[str, Scalar],
    values: Sequence[Mapping[str, Scalar]],
    baselines: Mapping[str, float],
    gallery: int,
) -> Record:
    """One record of what an attack got under a defence, from those of every picture.

    Args:
        baselines: PSNR of trivial guesses on the same pictures, by name.
    """
    applied = [one for one in values if one.get("applies")]
    seed = seed_for(int(str(conditions.get("seed", 0))), "audit bootstrap")
    found: dict[str, Scalar] = {"images": len(values), "applied": len(applied)}
    reasons = [str(one["reason"]) for one in values if one.get("reason")]
    found["reason"] = statistics.mode(reasons) if reasons else ""
    for name in WITH_INTERVAL:
        found |= _interval(name, _column(applied, name), seed)
    for name in MEANS:
        column = _column(applied, name)
        found[name] = float(np.mean(column)) if column else None
    for name in MEDIANS:
        column = _column(values, name)
        found[name] = float(np.median(column)) if column else None
    psnrs = _column(applied, "psnr")
    found["psnr_lowest"] = min(psnrs) if psnrs else None
    found["psnr_highest"] = max(psnrs) if psnrs else None
    found |= {f"baseline_{name}_psnr": value for name, value in baselines.items()}
    found["gallery"] = gallery
    return Record("audit", conditions, {**found, **_words(conditions, found, baselines)})


def _words(
    conditions: Mapping[str, Scalar],
    found: Mapping[str, Scalar],
    baselines: Mapping[str, float],
) -> dict[str, Scalar]:
    """Level and verdict, of what came back best: the picture, its unmasked part, or its jigsaw."""
    own, unmasked, client = (found.get(n) for n in ("psnr", "psnr_unmasked", "client_psnr"))
    told, part = (own, "") if isinstance(own, float) else (None, "")
    best = max(baselines.values())
    share = _share_unmasked(found)
    # Every patch, in the wrong order, is more than the patches that stayed.
    for part_of, other in (("shuffled", client), ("unmasked", unmasked)):
        if part_of == "unmasked" and share < MOST_OF_IT:
            continue
        if told is not None and isinstance(other, float) and other > told + 3:
            told, part = other, part_of
    guess = found.get("guess_unmasked")
    if part == "unmasked" and isinstance(guess, float):
        best = max(best, guess)
    level = level_of(told, best)
    knows = bool(conditions.get("knows_defence")) and conditions.get("defence") != "none"
    return {
        "level": level,
        "verdict": verdict(level, told, best, knows_defence=knows, part=part, share=share),
    }


def _share_unmasked(found: Mapping[str, Scalar]) -> float:
    """Of the patches, as far as it was recorded."""
    masked, patches = found.get("masked_patches"), found.get("patches")
    if not isinstance(masked, float) or not isinstance(patches, float) or not patches:
        return 1.0
    return 1 - masked / patches


def _interval(name: str, column: list[float], seed: int) -> dict[str, Scalar]:
    if not column:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    (found,) = estimates(np.array(column)[:, None], seed)
    return dict(found.values(name))


def _column(values: Sequence[Mapping[str, Scalar]], name: str) -> list[float]:
    """The finite numbers that pictures have of this name."""
    column = [one.get(name) for one in values]
    return [float(one) for one in column if isinstance(one, int | float) and np.isfinite(one)]
