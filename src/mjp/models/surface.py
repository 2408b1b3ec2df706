"""`Surface`: where any model meets the picture, by the names of its parts."""

from dataclasses import dataclass
from typing import Any, Literal

from timm.layers import to_2tuple
from torch import Tensor, nn

from mjp.core.errors import ConfigError
from mjp.jigsaw import PatchGrid
from mjp.models.backbone import MJPBackbone

Layout = Literal["chw", "hwc"]


@dataclass(frozen=True)
class SurfaceNames:
    """Names of a model's parts; what is `auto` is looked for.

    Args:
        patch_embedding: module that turns patches into tokens, a convolution or a linear layer.
        positions: parameter that holds the position embeddings; `none` for a model without.
        classifier: linear module that gives the logits; `none` for a model without.
        layout: order of the values of a patch that a linear patch embedding takes.
    """

    patch_embedding: str = "auto"
    positions: str = "auto"
    classifier: str = "auto"
    layout: Layout = "chw"


@dataclass(frozen=True)
class Surface:
    """Where a model meets the picture.

    Args:
        positions: the table of position embeddings; None for a model without.
        first_row: where the rows of the patches start in it.
        unknown: MJP's unknown embedding; None for a model without.
        patch: height and width of a patch in pixels.
        between: what lies between patch embedding and position embedding, in words; None where the
            one is added to the other, so that their gradients are the same.
    """

    patch_embedding: str
    positions: str | None
    first_row: int
    unknown: str | None
    classifier: str | None
    grid: PatchGrid
    patch: tuple[int, int]
    layout: Layout
    width: int
    between: str | None = None

    @property
    def patch_values(self) -> int:
        """Numbers in a patch of three channels."""
        return 3 * self.patch[0] * self.patch[1]


def find_surface(
    model: nn.Module, size: tuple[int, int], names: SurfaceNames | None = None
) -> Surface:
    """The surface of a model for images of this size; an error that says what to name."""
    names = names or SurfaceNames()
    name, layer = _patch_embedding(model, names.patch_embedding)
    patch, width = _shape_of(model, name, layer)
    grid = PatchGrid.of(*size, patch)
    own = _own_grid(model) or grid
    positions, first_row = _positions(model, names.positions, own, width)
    unknown = "unknown_position" if getattr(model, "unknown_position", None) is not None else None
    return Surface(
        patch_embedding=name,
        positions=positions,
        first_row=first_row,
        unknown=unknown,
        classifier=_classifier(model, names.classifier),
        grid=grid,
        patch=patch,
        layout=names.layout if isinstance(layer, nn.Linear) else "chw",
        width=width,
        between=_between(model, grid, own if positions else grid),
    )


def _patch_embedding(model: nn.Module, name: str) -> tuple[str, nn.Conv2d | nn.Linear]:
    modules = dict(model.named_modules())
    if name != "auto":
        layer = modules.get(name)
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            fitting = [key for key, m in modules.items() if isinstance(m, nn.Conv2d | nn.Linear)]
            raise ConfigError(
                f"{name!r} is no convolution or linear layer of this model; its first are "
                f"{', '.join(fitting[:5])}"
            )
        return name, layer
    for name, layer in modules.items():
        if isinstance(layer, nn.Conv2d):
            if layer.kernel_size == layer.stride and layer.kernel_size != (1, 1):
                return name, layer
            break
    raise ConfigError(
        f"the patch embedding of this {type(model).__name__} was not found: its first convolution "
        "does not cut the image into patches; name a layer with --patch-embedding"
    )


def _shape_of(
    model: nn.Module, name: str, layer: nn.Conv2d | nn.Linear
) -> tuple[tuple[int, int], int]:
    if isinstance(layer, nn.Conv2d):
        plain = layer.kernel_size == layer.stride and layer.groups == 1
        if not plain or layer.in_channels != 3 or set(layer.padding) - {0}:
            raise ConfigError(
                f"{name} does not cut images of three channels into patches side by side: {layer}"
            )
        high, wide = layer.kernel_size
        return (high, wide), layer.out_channels
    given = getattr(model, "patch_size", None)
    if given is not None:
        high, wide = to_2tuple(given)
    else:
        high = wide = round((layer.in_features / 3) ** 0.5)
    if 3 * high * wide != layer.in_features:
        raise ConfigError(
            f"{name} takes {layer.in_features} values, which is no square patch of three channels"
        )
    return (int(high), int(wide)), layer.out_features


def _positions(model: nn.Module, name: str, grid: PatchGrid, width: int) -> tuple[str | None, int]:
    parameters = dict(model.named_parameters())
    if name == "none":
        return None, 0
    if name == "auto":
        fitting = [
            one
            for one, tensor in parameters.items()
            if "pos" in one and _rows(tensor, width) >= grid.num_patches
        ]
        if not fitting:
            return None, 0
        name = fitting[0]
    if name not in parameters:
        raise ConfigError(f"this model has no parameter {name!r} for its positions")
    rows = _rows(parameters[name], width)
    if rows < grid.num_patches:
        raise ConfigError(
            f"{name} of shape {tuple(parameters[name].shape)} is no table of the positions of "
            f"{grid} patches of width {width}"
        )
    # Class, distillation and register tokens have their rows before those of the patches.
    return name, rows - grid.num_patches


def _rows(table: Tensor, width: int) -> int:
    """How many rows of this width a table has; 0 where it is none."""
    shape = table.shape
    single = len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)
    return int(shape[-2]) if single and shape[-1] == width else 0


def _classifier(model: nn.Module, name: str) -> str | None:
    linear = {one: m for one, m in model.named_modules() if isinstance(m, nn.Linear)}
    if name == "none":
        return None
    if name != "auto":
        if name not in linear:
            raise ConfigError(f"{name!r} is no linear layer of this model")
        return name
    told = getattr(model, "pretrained_cfg", None) or {}
    told_name = told.get("classifier")
    for one in (told_name, "head", "fc"):
        if isinstance(one, str) and one in linear:
            return one
    own = [one for one in linear if not one.startswith("locator")]
    return own[-1] if own else None


def _own_grid(model: Any) -> PatchGrid | None:
    """The grid that a model's position table was made for, as far as it says."""
    size = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    return None if size is None else PatchGrid(*size)


def _between(model: Any, grid: PatchGrid, own: PatchGrid) -> str | None:
    embed = getattr(model, "patch_embed", None)
    norm = getattr(embed, "norm", None)
    if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity):
        return "a norm after the patch embedding"
    if own != grid:
        return f"a resampling of the position table from {own} to {grid}"
    return None


def position_embeddings(model: nn.Module) -> tuple[Tensor, PatchGrid]:
    """The position embedding of each patch, a row each, and the grid they lie on.

    For any model with such a table; an error that says so for one without.
    """
    if isinstance(model, MJPBackbone):
        own = model.position_table()
        found = None if own is None else (own.detach(), model.position_grid())
    else:
        found = _table_of(model)
    if found is None:
        raise ConfigError(
            f"this {type(model).__name__} has no table of absolute positions to look into: its "
            "patches are placed otherwise, or not at all"
        )
    return found


def _table_of(model: nn.Module) -> tuple[Tensor, PatchGrid] | None:
    """The table in the layouts that timm's models keep theirs in."""
    raw = getattr(model, "pos_embed", None)
    size = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if not isinstance(raw, Tensor) or raw.dim() not in (3, 4) or raw.shape[0] != 1:
        return None
    table = raw.detach()[0]
    if table.dim() == 3:  # A map: rows and columns last as in PiT, or first as in SAM.
        first = size is None or tuple(table.shape[:2]) == tuple(size)
        table = table if first else table.permute(1, 2, 0)
        return table.flatten(0, 1), PatchGrid(table.shape[0], table.shape[1])
    if size is None or table.shape[0] < size[0] * size[1]:
        return None
    # Class, distillation and register tokens have their rows before those of the patches.
    return table[table.shape[0] - size[0] * size[1] :], PatchGrid(size[0], size[1])
