"""`april`: the analytic attack that the paper measured its privacy with.

Where the first block has neither norm nor residual around its attention, tokens z reach the network
through q, k and v alone: ∂W = Δᵀ z and G = Δ W, so Gᵀ z = Wᵀ ∂W, with G the gradient of the
position embeddings. Solved for z; positions and bias are taken off, and the patch embedding is
inverted. On any other network the equation does not hold, and the attack says so in place of a
number.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mjp.models.backbone import MJPBackbone
from mjp.privacy.attacks.patch_solve import missing, solve, warning
from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Reading, facts, read
from mjp.privacy.update import AttackResult, Effort, Observation, SharedUpdate, refused

NAME = "april"
QKV = "blocks.0.attn.qkv.weight"


def run(public: PublicModel, observations: list[Observation], effort: Effort) -> list[AttackResult]:
    """Attacks what every client sent, one after the other."""
    results = []
    for one in observations:
        results.append(_attack(public, one[0]))
        effort.tell(1 / len(observations))
    return results


def _attack(public: PublicModel, update: SharedUpdate) -> AttackResult:
    reading = read(public, update)
    told = facts(public, update, reading)
    reason = missing(public, reading) or _unfit(public, update)
    if reason is not None:
        return refused(NAME, reason, told)
    notes = [warning(update, told, reading)]
    if public.surface.patch_values > public.surface.width:
        notes.append(
            f"a patch has {public.surface.patch_values} values and its token {public.surface.width}"
            ", so the patch embedding cannot be inverted: details are lost"
        )
    patches = recover(public, update, reading)
    pixels = public.pixels(public.join(patches[None])).clamp(0, 1).float()
    return AttackResult(
        NAME,
        applies=True,
        reason="; ".join(note for note in notes if note),
        facts=told,
        images=pixels,
        masked=reading.masked,
    )


def recover(
    public: PublicModel, update: SharedUpdate, reading: Reading
) -> Float[Tensor, "patches values"]:
    """The patches, as the patch embedding reads them."""
    surface = public.surface
    assert reading.tokens is not None
    table = update.get(surface.positions)
    assert table is not None
    before = table.double().reshape(-1, surface.width)[: surface.first_row]
    gradient = torch.cat([before, reading.tokens])
    weight = public.parameter(QKV).double()
    target = weight.mT @ update.gradients[QKV].double()
    tokens = solve(gradient[None], target[None])[0, surface.first_row :]
    assert surface.positions is not None
    places = public.parameter(surface.positions).double().reshape(-1, surface.width)
    tokens = tokens - places[surface.first_row :]
    bias = public.patch_bias()
    if bias is not None:
        tokens = tokens - bias.double()
    return tokens @ torch.linalg.pinv(public.patch_matrix().double()).mT


def _unfit(public: PublicModel, update: SharedUpdate) -> str | None:
    """Why the attack's equation does not hold for this model; None where it does."""
    model: Any = public.model
    config = model.mjp_config if isinstance(model, MJPBackbone) else None
    if config is None or config.first_block != "bare":
        return (
            "the first block has a norm and a residual around its attention, so the attack's "
            "equation does not hold; it is for networks built with first_block='bare'"
        )
    if update.get(QKV) is None:
        return "the gradient of the first block's q, k and v is not shared"
    if public.surface.first_row != model.num_prefix_tokens:
        return "some tokens have no position embedding, so that their gradient is not seen"
    return None
