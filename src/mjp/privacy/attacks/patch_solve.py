"""`patch_solve`: the picture from two gradients by linear algebra, whatever the network behind.

The gradient of the patch projection is the sum over patches of (gradient of the token) x (values of
the patch), and the gradient of a token is that of its position embedding: dE = Gᵀ X with dE and G
both shared, so X follows by least squares. It needs no label, no inverse of E, and does not care
for norms and residuals; it needs as many independent token gradients as there are patches.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Attack, Cases, Reading, Recovered
from mjp.privacy.update import Effort


class PatchSolve(Attack):
    about = "patches from the gradients of positions and patch embedding"

    def missing(self, public: PublicModel, reading: Reading) -> str | None:
        surface = public.surface
        if surface.positions is None:
            return (
                "the model has no table of position embeddings, whose gradient the attack starts "
                "from"
            )
        if surface.between is not None:
            return (
                f"there is {surface.between}, so that the gradient of a position embedding is not "
                "that of its patch"
            )
        if reading.tokens is None:
            return "the gradient of the position embeddings is not shared"
        if reading.patches is None:
            return "the gradient of the patch embedding is not shared"
        return None

    def doubts(self, public: PublicModel, reading: Reading) -> list[str]:
        patches, width = public.grid.num_patches, public.surface.width
        rank, needed = reading.facts["rank"], reading.facts["rank_needed"]
        update, notes = reading.update, []
        if patches > width:
            notes.append(
                f"{patches} patches are more than the width of {width}, so the equations leave "
                "some of the picture open"
            )
        elif rank != needed:
            notes.append(f"only {rank} of {needed} token gradients are independent")
        if reading.num_masked:
            notes.append(f"{reading.num_masked} patches hide behind the unknown embedding")
        if update.batch > 1:
            notes.append(f"{update.batch} images are summed up in one gradient")
        if update.local_steps > 1:
            notes.append(f"{update.local_steps} local steps are summed up in one update")
        return notes

    def run(self, public: PublicModel, cases: Cases, effort: Effort) -> Iterable[Recovered]:
        solved = solve(*equations([first for first, *_ in cases]))
        effort.tell(1.0)
        return [Recovered(image[None]) for image in public.pixels(public.join(solved))]


def equations(
    readings: Sequence[Reading],
) -> tuple[Float[Tensor, "batch patches dim"], Float[Tensor, "batch dim values"]]:
    """G and dE of updates that have both."""
    pairs = [(one.tokens, one.patches) for one in readings]
    tokens, patches = zip(*pairs, strict=True)
    return torch.stack(tokens), torch.stack(patches)


def solve(
    tokens: Float[Tensor, "batch patches dim"], patches: Float[Tensor, "batch dim values"]
) -> Float[Tensor, "batch patches values"]:
    """X of dE = Gᵀ X: of least squares, or of least size where that leaves it open."""
    equations = tokens.mT
    if equations.shape[1] >= equations.shape[2]:
        q, r = torch.linalg.qr(equations)
        floor = torch.finfo(r.dtype).tiny
        diagonal = r.diagonal(dim1=1, dim2=2)
        r = r + torch.diag_embed((diagonal == 0).to(r.dtype) * floor)
        found = torch.linalg.solve_triangular(r, q.mT @ patches, upper=True)
        if bool(torch.isfinite(found).all()):  # Else some token has no gradient at all.
            return found
    return torch.linalg.pinv(equations) @ patches
