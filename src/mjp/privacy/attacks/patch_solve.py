"""`patch_solve`: the picture from two gradients by linear algebra, whatever the network behind.

The gradient of the patch projection is the sum over patches of (gradient of the token) x (values of
the patch), and the gradient of a token is that of its position embedding: dE = Gᵀ X with dE and G
both shared, so X follows by least squares. It needs no label, no inverse of E, and does not care
for norms and residuals; it needs as many independent token gradients as there are patches.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Reading, facts, read
from mjp.privacy.update import AttackResult, Effort, Observation, SharedUpdate, refused

NAME = "patch_solve"


def run(public: PublicModel, observations: list[Observation], effort: Effort) -> list[AttackResult]:
    """Solves for the patches of every image, all together."""
    readings = [read(public, one[0]) for one in observations]
    told = [facts(public, one[0], r) for one, r in zip(observations, readings, strict=True)]
    reasons = [missing(public, r) for r in readings]
    open_ones = [place for place, reason in enumerate(reasons) if reason is None]
    images = {}
    if open_ones:
        solved = solve(
            torch.stack([readings[place].tokens for place in open_ones]),  # type: ignore[misc]
            torch.stack([readings[place].patches for place in open_ones]),  # type: ignore[misc]
        )
        pixels = public.pixels(public.join(solved)).clamp(0, 1).float()
        images = dict(zip(open_ones, pixels, strict=True))
    effort.tell(1.0)
    return [
        AttackResult(
            NAME,
            applies=True,
            reason=warning(observations[place][0], told[place], readings[place]),
            facts=told[place],
            images=images[place][None],
            masked=readings[place].masked,
        )
        if reason is None
        else refused(NAME, reason, told[place])
        for place, reason in enumerate(reasons)
    ]


def solve(
    tokens: Float[Tensor, "batch patches dim"], patches: Float[Tensor, "batch dim values"]
) -> Float[Tensor, "batch patches values"]:
    """X of dE = Gᵀ X: of least squares, or of least size where that leaves it open."""
    equations = tokens.mT
    if equations.shape[1] < equations.shape[2]:
        return torch.linalg.pinv(equations) @ patches
    q, r = torch.linalg.qr(equations)
    floor = torch.finfo(r.dtype).tiny
    diagonal = r.diagonal(dim1=1, dim2=2)
    r = r + torch.diag_embed((diagonal == 0).to(r.dtype) * floor)
    found = torch.linalg.solve_triangular(r, q.mT @ patches, upper=True)
    if bool(torch.isfinite(found).all()):
        return found
    return torch.linalg.pinv(equations) @ patches  # Some token has no gradient at all.


def missing(public: PublicModel, reading: Reading) -> str | None:
    """Why the equation cannot even be written down; None where it can."""
    surface = public.surface
    if surface.positions is None:
        return (
            "the model has no table of position embeddings, whose gradient the attack starts from"
        )
    if surface.between is not None:
        return (
            f"there is {surface.between}, so that the gradient of a position embedding is not that "
            "of its patch"
        )
    if reading.tokens is None:
        return "the gradient of the position embeddings is not shared"
    if reading.patches is None:
        return "the gradient of the patch embedding is not shared"
    return None


def warning(update: SharedUpdate, told: dict, reading: Reading) -> str:  # type: ignore[type-arg]
    """What makes the solution doubtful, in words."""
    notes = []
    if told["patches"] > told["width"]:
        notes.append(
            f"{told['patches']} patches are more than the width of {told['width']}, so the "
            "equations leave some of the picture open"
        )
    elif told["rank"] < told["rank_needed"]:
        notes.append(
            f"only {told['rank']} of {told['rank_needed']} token gradients are independent"
        )
    if reading.num_masked:
        notes.append(f"{reading.num_masked} patches hide behind the unknown embedding")
    if update.batch > 1:
        notes.append(f"{update.batch} images are summed up in one gradient")
    if update.local_steps > 1:
        notes.append(f"{update.local_steps} local steps are summed up in one update")
    return "; ".join(notes)
