"""What an attacker reads off an update before any attack: the preflight."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.core.records import Scalar
from mjp.jigsaw import JigsawPlan
from mjp.models.backbone import MJPBackbone
from mjp.privacy.public import PublicModel
from mjp.privacy.update import SharedUpdate


@dataclass(frozen=True, eq=False)
class Reading:
    """What stands in an update, in double precision.

    Args:
        tokens: G, the gradient of each patch's position embedding, which for a single image is that
            of its token; None where it is not shared.
        patches: the gradient of the patch projection; None where it is not shared.
        bias: the gradient of its bias.
        unknown: the gradient of MJP's unknown embedding, where some patch has it.
        masked: the patches without a gradient of their own: MJP's mask. None where there is none.
        rounding: the smallest step relative to 1 of the numbers that were sent.
    """

    tokens: Float[Tensor, "patches dim"] | None
    patches: Float[Tensor, "dim values"] | None
    bias: Float[Tensor, " dim"] | None
    unknown: Float[Tensor, " dim"] | None
    masked: Bool[Tensor, " patches"] | None
    rounding: float

    @property
    def num_masked(self) -> int:
        return 0 if self.masked is None else int(self.masked.sum())


def read(public: PublicModel, update: SharedUpdate) -> Reading:
    """Reads an update, with what the model makes public of the client's loss taken off."""
    surface = public.surface
    check_fits(public, update)
    table = update.get(surface.positions)
    tokens = None if table is None else table.double().reshape(-1, surface.width)
    tokens = None if tokens is None else tokens[surface.first_row :]
    weight = update.get(f"{surface.patch_embedding}.weight")
    bias = update.get(f"{surface.patch_embedding}.bias")
    unknown = update.get(surface.unknown)
    unknown = None if unknown is None or not unknown.any() else unknown.double().flatten()
    masked = None
    if tokens is not None and unknown is not None:
        zero = (tokens == 0).all(dim=1)
        masked = zero if bool(zero.any()) and not bool(zero.all()) else None
    if tokens is not None and update.localization_weight:
        tokens = tokens - _localization_gradient(public, update, masked)
    return Reading(
        tokens=tokens,
        patches=None if weight is None else weight.double().flatten(1),
        bias=None if bias is None else bias.double(),
        unknown=unknown,
        masked=masked,
        rounding=torch.finfo(_dtype(update)).eps,
    )


def check_fits(public: PublicModel, update: SharedUpdate) -> None:
    """Raises unless the update is one of this model."""
    shapes = {name: tuple(one.shape) for name, one in public.model.named_parameters()}
    for name, gradient in update.gradients.items():
        if name not in shapes:
            raise ConfigError(
                f"the update has a gradient of {name!r}, which this model has no parameter of"
            )
        if tuple(gradient.shape) != shapes[name]:
            raise ConfigError(
                f"the gradient of {name} has shape {tuple(gradient.shape)}, the parameter "
                f"{shapes[name]}; the update is of another model"
            )
        if not bool(torch.isfinite(gradient).all()):
            raise ConfigError(f"the gradient of {name} has values that are no numbers")


def facts(public: PublicModel, update: SharedUpdate, reading: Reading) -> dict[str, Scalar]:
    """The preflight: what decides whether an attack can work, for records."""
    surface = public.surface
    found: dict[str, Scalar] = {
        "patches": surface.grid.num_patches,
        "width": surface.width,
        "patch_values": surface.patch_values,
        "batch": update.batch,
        "local_steps": update.local_steps,
        "positions_shared": reading.tokens is not None,
        "patch_embedding_shared": reading.patches is not None,
        "masked_patches_seen": reading.num_masked,
        "gradient_precision": _precision(update),
        "first_block": _first_block(public),
    }
    if reading.tokens is not None:
        own = reading.tokens if reading.masked is None else reading.tokens[~reading.masked]
        values = torch.linalg.svdvals(own)
        floor = values[0] * torch.finfo(_dtype(update)).eps
        found |= {
            "rank": int((values > floor).sum()),
            "rank_needed": own.shape[0],
            "condition": float(values[0] / values[-1]) if values[-1] > 0 else float("inf"),
        }
    return found


def infer_labels(public: PublicModel, update: SharedUpdate) -> Int64[Tensor, " batch"] | None:
    """The classes of the images, from the classifier's gradient; None where it is not shared.

    With cross-entropy the gradient of a class's logit is below 0 only for classes that are there:
    of one image it tells the class exactly, of a batch the most negative ones, as often as their
    gradient says.
    """
    name = public.surface.classifier
    if name is None:
        return None
    gradient = update.get(f"{name}.bias")
    if gradient is None:
        weight = update.get(f"{name}.weight")
        if weight is None:
            return None
        gradient = weight.double().sum(dim=1)
    left = gradient.double().clone()
    found = []
    for _ in range(update.batch):
        best = int(left.argmin())
        found.append(best)
        left[best] += 1 / update.batch
    return torch.tensor(sorted(found), device=gradient.device)


def _localization_gradient(
    public: PublicModel, update: SharedUpdate, masked: Tensor | None
) -> Float[Tensor, "patches dim"]:
    """What the localization loss adds to the gradient of the positions: anyone can compute it."""
    model = public.model
    if not isinstance(model, MJPBackbone) or model.locator is None:
        raise ConfigError("the update says that its loss localizes, but the model has no locator")
    plan = None
    if masked is not None:
        order = torch.arange(len(masked), device=masked.device)
        plan = JigsawPlan(public.grid, masked[None], order[None])
    table = model.get_parameter(public.surface.positions)
    with torch.enable_grad():
        loss = update.localization_weight * model.localization_loss(plan)
        (found,) = torch.autograd.grad(loss, [table])
    return found.double().reshape(-1, public.surface.width)[public.surface.first_row :]


def _dtype(update: SharedUpdate) -> torch.dtype:
    return next(iter(update.gradients.values())).dtype


def _precision(update: SharedUpdate) -> str:
    return str(_dtype(update)).removeprefix("torch.")


def _first_block(public: PublicModel) -> str:
    config = getattr(public.model, "mjp_config", None)
    return "bare" if config is not None and config.first_block == "bare" else "as built"
