"""`MJPBackbone`: what every wrapped model can do, whichever family it is of."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn
from torch.nn import functional as F

from mjp.core.errors import ConfigError
from mjp.jigsaw import JigsawPlan, PatchGrid, sample_plan
from mjp.models.config import MJPConfig
from mjp.models.locator import Locator, known_share, localization_loss

# The adapters are mixed into timm's classes, whose attributes a type checker cannot know.
TimmModel: Any = nn.Module
Images = Float[Tensor, "batch chan height width"]
PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")


class MJPBackbone(TimmModel):
    """Mixed into a timm model class, before it. Subclasses say where positions and patches are.

    Here the jigsaw moves pixels, as for a backbone that can see where a patch lies without being
    told. The model never draws randomness by itself: a forward call does what its plan says.
    """

    timm_class: ClassVar[Any]  # The class of timm's that is adapted.
    timm_modules: ClassVar[tuple[str, ...]]  # Whose architectures are of that class.
    family: ClassVar[str]  # What to call those architectures.
    num_feature_maps: ClassVar[int] = 3  # As many of the last as timm's own models give.
    # How the names of the parameters start that timm's model does not have.
    added_names: ClassVar[tuple[str, ...]] = ("unknown_position", "index_embed", "locator.")
    mjp_config: MJPConfig
    mjp_arguments: dict[str, Any]  # What the model was built with, as far as it is known.
    unknown_position: nn.Parameter | None
    locator: Locator | None

    @classmethod
    def of(cls, model: nn.Module, config: MJPConfig) -> "MJPBackbone":
        """This class in place of the model's own, with its parameters and submodules."""
        if "forward" in vars(model):
            raise ConfigError(
                "this model's forward was replaced on the instance, which wrapping would undo; "
                "wrap the model first"
            )
        wrapped = cls.__new__(cls)
        wrapped.__dict__.update(vars(model))
        # What is added or removed here is not to be added or removed there. Hooks stay shared, so
        # that the handles that callers have go on removing them.
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            wrapped.__dict__[name] = copy.copy(wrapped.__dict__[name])
        wrapped.__dict__["_compiled_call_impl"] = None  # Compiled from the forward of the other.
        wrapped._adopt(config)
        return wrapped

    def _adopt(self, config: MJPConfig) -> None:
        """Checks the configuration against the backbone and adds what it asks for."""
        if not isinstance(config, MJPConfig):
            raise ConfigError(f"config must be an MJPConfig, such as VARIANTS['J']; got {config!r}")
        if config.first_block == "bare" and not hasattr(self, "blocks"):
            raise ConfigError("first_block='bare' is for ViT, whose blocks are all alike")
        self.mjp_config = config
        self.mjp_arguments = {}
        self._prepare_positions()
        table = self.position_table()
        self.unknown_position = self.locator = None
        if table is not None and config.positions == "unknown":
            self.unknown_position = nn.Parameter(table.new_empty(1, 1, table.shape[1]))
        if table is not None and config.localization is not None:
            locator = Locator(config.localization, table.shape[1])
            self.locator = locator.to(table.device, table.dtype).train(self.training)
        self._init_added()

    def _init_added(self) -> None:
        """Initialises what MJP adds to the backbone."""
        if self.unknown_position is not None:
            nn.init.normal_(self.unknown_position, std=self.mjp_config.position_init_std)
        if self.locator is not None:
            self.locator.reset_parameters()
        if getattr(self, "index_embed", None) is not None:
            nn.init.zeros_(self.index_embed)
        if "pos_embed" in self.added_names:
            self.reset_positions()

    def init_weights(self, *args: Any, **kwargs: Any) -> None:
        """timm's initialisation, and that of what MJP adds; the position table as configured."""
        super().init_weights(*args, **kwargs)
        self._init_added()
        self.reset_positions()

    def _prepare_positions(self) -> None:
        """Changes the backbone's own position tables to what the configuration asks for."""
        raise NotImplementedError

    def position_table(self) -> Float[Tensor, "patches dim"] | None:
        """The position embeddings of the patches, or None for a backbone without them."""
        return None

    def grid_of(self, images: Images) -> PatchGrid:
        """The grid of the patches that a jigsaw moves in such images."""
        return PatchGrid.of(images.shape[2], images.shape[3], self.patch_shape())

    def patch_shape(self) -> tuple[int, int]:
        """Height and width in pixels of the patches that a jigsaw moves."""
        return self.mjp_config.jigsaw_patch, self.mjp_config.jigsaw_patch

    def fixed_grid(self) -> PatchGrid | None:
        """The one grid that a jigsaw can have; None where images of several sizes are taken."""
        return None

    def timm_arguments(self) -> dict[str, Any]:
        """What timm would have to be told to build this backbone, as far as it can be read off."""
        raise NotImplementedError

    def fit_weights(self, state: dict[str, Tensor], grid: PatchGrid | None) -> Mapping[str, Tensor]:
        """Weights of timm's as they are called and sized here; `grid` is that of their tables."""
        return state

    def prepare(self, images: Tensor, plan: JigsawPlan | None) -> tuple[Any, Tensor]:
        """The model and the images that timm's methods are given for the jigsaw of a plan."""
        if plan is None:
            return self, images
        plan.check_fits(images.shape[0], self.grid_of(images), images.device)
        return self, plan.apply(images)

    def forward(self, x: Tensor, *args: Any, plan: JigsawPlan | None = None, **more: Any) -> Any:
        """timm's forward pass; with a plan, of the jigsaw."""
        check_images(x)
        return self.forward_head(self.forward_features(x, *args, plan=plan, **more))

    def forward_features(
        self, x: Tensor, *args: Any, plan: JigsawPlan | None = None, **more: Any
    ) -> Tensor:
        """timm's; with a plan, token i is that of patch plan.source[i]."""
        check_plan(plan, args)
        return self.timm_class.forward_features(*self.prepare(x, plan), *args, **more)

    def forward_intermediates(
        self, x: Tensor, *args: Any, plan: JigsawPlan | None = None, **more: Any
    ) -> Any:
        """timm's; with a plan, place i of a feature map is that of patch plan.source[i]."""
        check_plan(plan, args)
        return self.timm_class.forward_intermediates(*self.prepare(x, plan), *args, **more)

    def draw_plan(self, images: Images, generator: torch.Generator) -> JigsawPlan | None:
        """A plan for this batch by the model's configuration; None for a batch left in order.

        The generator is on the CPU: the host decides, so that it never waits for the device.
        """
        check_images(images)
        if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
            where = getattr(generator, "device", type(generator).__name__)
            raise ConfigError(
                f"draw_plan decides on the host, so its generator must be on the cpu, not {where}"
            )
        config = self.mjp_config
        chance = torch.rand((), generator=generator, dtype=torch.float64).item()
        seed = int(torch.randint(2**62, (), generator=generator))
        shuffles = config.ratio > 0 or config.pixels == "shuffle"
        if not shuffles or chance >= config.probability:
            return None
        grid = self.grid_of(images)
        if round(config.ratio * grid.num_patches) == 0 and config.pixels == "keep":
            warnings.warn(
                f"a ratio of {config.ratio:g} masks none of the {grid.num_patches} patches of "
                "these images, so there is no jigsaw; use at least "
                f"{math.ceil(1000 / grid.num_patches) / 1000:g}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        pixels = self.patch_shape() if config.pixels == "shuffle" else None
        generator = torch.Generator(images.device).manual_seed(seed)
        return sample_plan(
            grid, len(images), config.ratio, generator, shape=config.shape, pixels=pixels
        )

    def localization_loss(self, plan: JigsawPlan | None) -> Float[Tensor, ""]:
        """DAL over each image's unmasked positions, all without a plan; 0 where not asked for."""
        # A zero that depends on the unknown embedding, which a batch without a plan leaves out:
        # DistributedDataParallel waits for every parameter's gradient.
        unknown = self.unknown_position
        loss = next(self.parameters()).new_zeros(()) if unknown is None else 0.0 * unknown.sum()
        table = self.position_table()
        if self.locator is None or table is None:
            return loss
        grid, fixed = self.position_grid(), self.fixed_grid()
        if plan is not None and fixed is not None:
            plan.check_fits(plan.batch, fixed, plan.device)
        masked = None if plan is None else plan.grid.mask_on(grid, plan.masked)
        target = grid.coordinates(table.device)
        share = known_share(masked, grid, table)
        return loss + localization_loss(self.locator(table, target, share), target, share)

    def reset_positions(self) -> None:
        """Draws the position table anew, with the configured standard deviation."""
        if getattr(self, "pos_embed", None) is not None:
            nn.init.normal_(self.pos_embed, std=self.mjp_config.position_init_std)

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: timm's, and all position embeddings."""
        timms: set[str] = getattr(super(), "no_weight_decay", set)()
        return {*timms, "pos_embed", "unknown_position", "index_embed"}

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's groups for layer-wise decay; new position embeddings belong to the stem."""
        groups = dict(super().group_matcher(coarse=coarse))
        groups["stem"] += r"|^pos_embed|^unknown_position|^index_embed"
        return groups

    def mjp_parts(self) -> str:
        """What of the configuration acts on this backbone, in words."""
        (high, wide), config = self.patch_shape(), self.mjp_config
        acting = "no table of absolute positions, so no unknown position, no localization"
        if self.position_table() is not None:
            acting = f"{config.positions} positions; localization {config.localization or 'off'}"
        return f"jigsaw of {high}x{wide} patches at ratio {config.ratio:g}; {acting}"


class PositionTables(MJPBackbone):
    """For a backbone with tables of absolute positions, each for one grid of patches."""

    pos_embed: Any

    @property
    def num_placed_prefix(self) -> int:
        """How many tokens before those of the patches have a row of their own in the tables."""
        return 0

    def position_table(self) -> Float[Tensor, "patches dim"] | None:
        return None if self.pos_embed is None else self.pos_embed[0, self.num_placed_prefix :]

    def position_grid(self) -> PatchGrid:
        """The grid that the rows of `position_table` lie on."""
        return PatchGrid(*self.patch_embed.grid_size)

    def resample(self, table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
        """A table of positions on another grid."""
        return resample_abs_pos_embed(
            table, new_size=new, old_size=old, num_prefix_tokens=self.num_placed_prefix
        )

    def set_input_size(self, *args: Any, **kwargs: Any) -> None:
        """timm's resizing of the position table, for all tables; the unknown row stays."""
        old = self.patch_embed.grid_size
        tables = {name: getattr(self, name, None) for name in ("pos_embed", "index_embed")}
        super().set_input_size(*args, **kwargs)
        new = self.patch_embed.grid_size
        # timm leaves a table alone that has as many rows as before, though they may lie otherwise.
        for name, table in tables.items():
            if table is not None and new != old:
                setattr(self, name, nn.Parameter(self.resample(table.data, old, new)))

    def resize_table(self, state: dict[str, Tensor], name: str, grid: PatchGrid | None) -> None:
        """Resamples a table of positions among weights that is for another grid than the model's.

        One whose grid is neither known nor square, or that has rows for other tokens than the
        model's, is left as it is, to be reported by its shape.
        """
        table, own, placed = state.get(name), getattr(self, name, None), self.num_placed_prefix
        if table is None or own is None or table.dim() != 3:
            return
        prefix = [state[key].shape[1] for key in PREFIX_TOKENS if key in state]
        if placed not in (0, sum(prefix)):
            return
        patches = table.shape[1] - placed
        side = math.isqrt(max(0, patches))
        if grid is None and side * side == patches > 0 and table.shape != own.shape:
            grid = PatchGrid(side, side)
        if grid is not None and grid.num_patches == patches and grid != self.position_grid():
            size = self.patch_embed.grid_size
            state[name] = self.resample(table, (grid.rows, grid.cols), size)


class Rebound:
    """A model with an attribute replaced, for one call of a method of its timm class.

    So a plan reaches the place in timm's forward that needs it, without state on the model (two
    threads may run one model with two plans) and without a copy of timm's code.
    """

    def __init__(self, model: nn.Module, name: str, replacement: Callable[..., Tensor]) -> None:
        self._model = model
        setattr(self, name, replacement)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def check_images(images: Tensor) -> None:
    """Raises unless this is a batch of images in floating point."""
    if not isinstance(images, Tensor) or images.dim() != 4 or not images.is_floating_point():
        given = type(images).__name__
        if isinstance(images, Tensor):
            given = f"{images.dtype} of shape {tuple(images.shape)}"
        raise ConfigError(
            "images must be a torch tensor in floating point, of shape (batch, chan, height, "
            f"width); got {given}"
        )


def check_plan(plan: object, args: tuple[Any, ...] = ()) -> None:
    """Raises if what was passed as the plan is none, or the plan was passed as something else."""
    if plan is not None and not isinstance(plan, JigsawPlan):
        raise ConfigError(f"plan must be a JigsawPlan or None, got {plan!r}")
    if any(isinstance(argument, JigsawPlan) for argument in args):
        raise ConfigError("pass the plan by its name: model(images, plan=plan)")


class PatchProjection(nn.Conv2d):
    """A convolution whose stride is its kernel, as one product: the same sums in another order.

    Many times as fast on a GPU, for training, where bit-equality with timm is not asked for.
    """

    def forward(self, images: Images) -> Float[Tensor, "batch dim rows cols"]:
        high, wide = self.kernel_size
        rows, cols = images.shape[2] // high, images.shape[3] // wide
        patches = PatchGrid(rows, cols).split(images[:, :, : rows * high, : cols * wide])
        embedded = F.linear(patches.flatten(0, 1).flatten(1), self.weight.flatten(1), self.bias)
        return embedded.reshape(len(images), rows, cols, -1).permute(0, 3, 1, 2)


def with_fast_patches(model: Any) -> Any:
    """The model, its patches projected by a product where it has such a projection."""
    projection = getattr(getattr(model, "patch_embed", None), "proj", None)
    if type(projection) is nn.Conv2d and projection.stride == projection.kernel_size:
        projection.__class__ = PatchProjection
    return model
