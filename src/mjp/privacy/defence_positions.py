"""The parts of a defence that act on what the gradient tells of places: jigsaws and the table."""

import copy
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from timm.layers import build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Generator, Tensor, nn

from mjp.core.errors import ConfigError, UnsupportedModelError
from mjp.jigsaw import JigsawPlan, sample_plan
from mjp.models.backbone import MJPBackbone
from mjp.models.config import MJPConfig
from mjp.models.factory import wrap
from mjp.models.surface import SurfaceNames, find_surface
from mjp.privacy.defence_parts import Gradients, Part, number
from mjp.privacy.public import PublicModel


@dataclass(frozen=True)
class Jigsaw(Part):
    """Shuffles some of the patches of each image."""

    kind = "jigsaw"
    reason = "both shuffle the patches, and mjp hides their places as well"
    least: ClassVar[int] = 1
    """Of so many patches it takes one to do anything."""
    ratio: float = number(
        "γ, share of the patches", least=0.0, most=1.0, example=0.03, control=(0.0, 0.9)
    )
    probability: float = number(
        "Chance that there is a jigsaw", least=0.0, most=1.0, example=1.0, default=1.0
    )

    @property
    def often(self) -> str:
        """How often it happens, for a title."""
        rare = self.probability < 1
        return f", in {100 * self.probability:g} % of the updates" if rare else ""

    def draw(
        self, public: PublicModel, batch: int, clients: int, generator: Generator
    ) -> JigsawPlan | None:
        """One plan for the images of all clients; None where no client has a jigsaw."""
        Jigsaw.prepare(self, public)
        chances = torch.rand(clients, generator=generator, dtype=torch.float64)
        seed = int(torch.randint(2**62, (), generator=generator))
        happens = chances < self.probability
        if not bool(happens.any()):
            return None
        source = torch.Generator(public.device).manual_seed(seed)
        plan = sample_plan(public.grid, batch * clients, self.ratio, source)
        shuffled = happens.to(public.device).repeat_interleave(batch)[:, None]
        order = torch.arange(public.grid.num_patches, device=public.device)
        moved = torch.where(shuffled, plan.source, order)
        return JigsawPlan(plan.grid, plan.masked & shuffled, moved)

    def prepare(self, public: PublicModel) -> PublicModel:
        patches = public.grid.num_patches
        taken = round(self.ratio * patches)
        if taken < self.least:
            enough = math.ceil(1000 * self.least / patches) / 1000
            raise ConfigError(
                f"{self} takes {taken} of the {patches} patches of this model's images, which "
                f"changes nothing; use a ratio of at least {enough:g}"
            )
        return public


@dataclass(frozen=True)
class MaskedJigsaw(Jigsaw):
    """Blocks of patches are shuffled and all get one and the same unknown position."""

    name = "mjp"
    label = "Masked jigsaw puzzle (MJP)"
    words = "MJP, {ratio_percent:g} % of the patches{self.often}"
    clause = (
        "shuffles {ratio_percent:g} % of the patches and gives all of them one unknown "
        "position; which ones they are is seen from the zero rows of the position gradient, "
        "and the other patches leak but for what they share with the shuffled ones"
    )

    def prepare(self, public: PublicModel) -> PublicModel:
        table_of(public, self)
        super().prepare(public)
        model = public.model
        if not isinstance(model, VisionTransformer):
            raise ConfigError(
                f"mjp hides the positions of a ViT's patches; this {type(model).__name__} is no "
                "ViT of timm, so use shuffle"
            )
        if _knows_no_jigsaw(model):
            return self._wrapped(public)
        if model.unknown_position is None:
            raise ConfigError(
                f"this model has positions={model.mjp_config.positions!r}, so no unknown position; "
                "use shuffle, or a model with positions='unknown'"
            )
        return public

    def notes(self, public: PublicModel) -> tuple[str, ...]:
        if _knows_no_jigsaw(public.model):
            return (
                "The model was not trained with MJP: its unknown position is untrained, so the "
                "accuracy of the defended model is not known.",
            )
        trained = public.model.mjp_config.ratio
        if trained != self.ratio:
            return (f"The model's own ratio is {trained:g}, not {self.ratio:g}.",)
        return ()

    def _wrapped(self, public: PublicModel) -> PublicModel:
        config = MJPConfig(ratio=self.ratio, probability=self.probability, localization=None)
        surface, model = public.surface, copy.deepcopy(public.model)
        devices = [public.device] if public.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=devices):
                ours = isinstance(model, MJPBackbone)
                model = type(model).of(model, config) if ours else wrap(model, config)
        except UnsupportedModelError as error:
            raise ConfigError(f"mjp cannot be put around this model: {error}") from error
        # Always the same draw: client and attacker have the same public model.
        draw = torch.randn(1, 1, surface.width, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            model.get_parameter("unknown_position").copy_(config.position_init_std * draw)
        names = SurfaceNames(
            surface.patch_embedding,
            surface.positions or "none",
            surface.classifier or "none",
            surface.layout,
        )
        return replace(public, model=model, surface=find_surface(model, public.size, names))


def _knows_no_jigsaw(model: nn.Module) -> bool:
    """Whether this is timm's model, or ours with the same positions and no jigsaw (variant A)."""
    if not isinstance(model, MJPBackbone):
        return True
    config = model.mjp_config
    moves = config.ratio > 0 or config.pixels == "shuffle"
    return config.positions == "own" and config.first_block == "as_built" and not moves


@dataclass(frozen=True)
class Shuffle(Jigsaw):
    """Blocks of patches are shuffled; every place keeps its position."""

    name = "shuffle"
    label = "Shuffle only"
    least = 2
    words = "{ratio_percent:g} % of the patches shuffled{self.often}"
    clause = (
        "shuffles {ratio_percent:g} % of the patches before the model sees them; the "
        "shuffled picture leaks as any other, and is a puzzle to solve"
    )

    def arrange(self, images: Tensor, plan: JigsawPlan | None) -> tuple[Tensor, JigsawPlan | None]:
        return (images, None) if plan is None else (plan.apply(images), None)


@dataclass(frozen=True)
class WithheldPositions(Part):
    """The gradient of the position table is not sent."""

    kind = "positions"
    reason = "each of them keeps the position table's gradient from being sent"
    feeds = False
    training = "model"

    def prepare(self, public: PublicModel) -> PublicModel:
        table_of(public, self)
        return public

    def process(self, gradients: Gradients, public: PublicModel, generator: Generator) -> Gradients:
        return {name: one for name, one in gradients.items() if name != public.surface.positions}


@dataclass(frozen=True)
class UnsharedPositions(WithheldPositions):
    """The gradient of the position table stays with the client."""

    name = "unshared"
    label = "Position gradient not shared"
    words = "position gradient not shared"
    clause = (
        "keeps the gradient of the position table to the client; all other gradients are exact,"
        " for a search to match"
    )


@dataclass(frozen=True)
class FrozenPositions(WithheldPositions):
    """The position table is not trained."""

    name = "frozen"
    label = "Frozen positions"
    words = "positions frozen"
    clause = (
        "does not train the position table, so that it has no gradient; all other gradients "
        "are exact, for a search to match"
    )

    def prepare(self, public: PublicModel) -> PublicModel:
        return _frozen(public, table_of(public, self))


@dataclass(frozen=True)
class SincosPositions(WithheldPositions):
    """Fixed positions in place of learned ones."""

    name = "sincos"
    label = "Fixed sin-cos positions"
    feeds = True
    words = "fixed sin-cos positions"
    clause = (
        "has fixed sin-cos positions in place of learned ones, so that there is no gradient of "
        "them; all other gradients are exact, for a search to match"
    )

    def prepare(self, public: PublicModel) -> PublicModel:
        return _frozen(public, self._changed(public))

    def notes(self, public: PublicModel) -> tuple[str, ...]:
        if torch.equal(table_of(public, self), self._changed(public)):
            return ()
        return (
            "The model was not trained with sin-cos positions: they replace its own, so the "
            "accuracy of the defended model is not known.",
        )

    def _changed(self, public: PublicModel) -> Tensor:
        """The table with sin-cos rows for the patches; class and register tokens keep theirs."""
        grid, width = public.grid, public.surface.width
        if width % 4:
            raise ConfigError(
                f"sin-cos positions take a width that is a multiple of 4, this model has {width}; "
                "use frozen"
            )
        own = getattr(getattr(public.model, "patch_embed", None), "grid_size", None)
        if own is not None and tuple(own) != (grid.rows, grid.cols):
            raise ConfigError(
                f"the position table of this model lies on a grid of {own[0]}x{own[1]}, its images "
                f"on {grid}; use sincos with images of the model's own size"
            )
        rows = build_sincos2d_pos_embed([grid.rows, grid.cols], width, interleave_sin_cos=True)
        table = table_of(public, self).detach().clone(memory_format=torch.contiguous_format)
        table.view(-1, width)[public.surface.first_row :] = rows.to(table.device, table.dtype)
        return table


def table_of(public: PublicModel, part: Part) -> nn.Parameter:
    """The position table, as the parameter it is; an error that names the part where none is."""
    name = public.surface.positions
    if name is None:
        raise ConfigError(
            f"{part.name} is about the table of absolute positions, which this "
            f"{type(public.model).__name__} has not; use another defence, or name the table with "
            "SurfaceNames(positions=...)"
        )
    table: nn.Parameter = public.model.get_parameter(name)
    return table


def _frozen(public: PublicModel, table: Tensor) -> PublicModel:
    """The public model with this table, which is not trained: a copy, or the same if it is so."""
    name = str(public.surface.positions)
    before = public.model.get_parameter(name)
    if torch.equal(before, table) and not before.requires_grad:
        return public
    model = copy.deepcopy(public.model)
    model.get_parameter(name).requires_grad_(False).copy_(table.detach())
    return replace(public, model=model)
