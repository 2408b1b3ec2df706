"""`april`: the analytic attack that the paper measured its privacy with.

Where the first block has neither norm nor residual around its attention, tokens z reach the network
through q, k and v alone: ∂W = Δᵀ z and G = Δ W, so Gᵀ z = Wᵀ ∂W, with G the gradient of the
position embeddings. Solved for z; positions and bias are taken off, and the patch embedding is
inverted. On any other network the equation does not hold, and the attack says so in place of a
number.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from mjp.models.backbone import MJPBackbone
from mjp.privacy.attacks.patch_solve import PatchSolve, solve
from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Cases, Reading, Recovered
from mjp.privacy.update import Effort

QKV = "blocks.0.attn.qkv.weight"


class April(PatchSolve):
    about = "the paper's analytic attack, for a first block without norm"

    def missing(self, public: PublicModel, reading: Reading) -> str | None:
        model = public.model
        if (reason := super().missing(public, reading)) is not None:
            return reason
        if not isinstance(model, MJPBackbone) or model.mjp_config.first_block != "bare":
            return (
                "the first block has a norm and a residual around its attention, so the attack's "
                "equation does not hold; it is for networks built with first_block='bare'"
            )
        if reading.update.get(QKV) is None:
            return "the gradient of the first block's q, k and v is not shared"
        if public.surface.first_row != model.num_prefix_tokens:
            return "some tokens have no position embedding, so that their gradient is not seen"
        return None

    def doubts(self, public: PublicModel, reading: Reading) -> list[str]:
        values, width = public.surface.patch_values, public.surface.width
        notes = super().doubts(public, reading)
        if values > width:
            notes.append(
                f"a patch has {values} values and its token {width}"
                ", so the patch embedding cannot be inverted: details are lost"
            )
        return notes

    def run(self, public: PublicModel, cases: Cases, effort: Effort) -> Iterable[Recovered]:
        for first, *_ in cases:
            patches = recover(public, first)
            effort.tell(1 / len(cases))
            yield Recovered(public.pixels(public.join(patches[None])))


def recover(public: PublicModel, reading: Reading) -> Float[Tensor, "patches values"]:
    """The patches, as the patch embedding reads them."""

    def double(name: str) -> Tensor:
        return public.model.get_parameter(name).detach().double()

    surface = public.surface
    assert surface.positions is not None
    assert reading.tokens is not None
    first, gradients = surface.first_row, reading.update.gradients
    before = gradients[surface.positions].double().reshape(-1, surface.width)[:first]
    target = double(QKV).mT @ gradients[QKV].double()
    tokens = solve(torch.cat([before, reading.tokens])[None], target[None])[0, first:]
    tokens = tokens - double(surface.positions).reshape(-1, surface.width)[first:]
    if public.model.get_submodule(surface.patch_embedding).bias is not None:
        tokens = tokens - double(f"{surface.patch_embedding}.bias")
    matrix = double(f"{surface.patch_embedding}.weight").flatten(1)
    return tokens @ torch.linalg.pinv(matrix).mT
