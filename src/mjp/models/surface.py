"""`Surface`: where any model meets the picture, by the names of its parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from timm.layers import to_2tuple
from torch import Tensor, nn

from mjp.core.errors import ConfigError
from mjp.jigsaw import PatchGrid

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
    """Where a model meets the picture: names of its parts, None for those that it has not."""

    patch_embedding: str
    positions: str | None
    first_row: int  # Where the rows of the patches start in the table of positions.
    unknown: str | None  # MJP's unknown embedding.
    classifier: str | None
    grid: PatchGrid
    patch: tuple[int, int]
    layout: Layout
    width: int
    # What lies between patch embedding and position embedding, in words; None where the one is
    # added to the other, so that their gradients are the same.
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
    name, layer, patch = _patch_embedding(model, names.patch_embedding)
    width = len(layer.weight)
    grid = PatchGrid.of(*size, patch)
    embed: Any = getattr(model, "patch_embed", None)
    own = PatchGrid(*(getattr(embed, "grid_size", None) or (grid.rows, grid.cols)))
    positions, first_row = _positions(model, names.positions, own, width)
    between = None
    if not isinstance(getattr(embed, "norm", None), nn.Identity | None):
        between = "a norm after the patch embedding"
    elif positions and own != grid:
        between = f"a resampling of the position table from {own} to {grid}"
    return Surface(
        patch_embedding=name,
        positions=positions,
        first_row=first_row,
        unknown=None if getattr(model, "unknown_position", None) is None else "unknown_position",
        classifier=_classifier(model, names.classifier),
        grid=grid,
        patch=patch,
        layout=names.layout if isinstance(layer, nn.Linear) else "chw",
        width=width,
        between=between,
    )


def _named(name: str, parts: Mapping[str, Any], what: str) -> Any:
    """The part that a person named, of those that it can be."""
    if name not in parts:
        some = ", ".join([*parts][:5]) or "not there"
        raise ConfigError(f"{name!r} is no {what} of this model; its first are {some}")
    return parts[name]


def _patch_embedding(
    model: nn.Module, name: str
) -> tuple[str, nn.Conv2d | nn.Linear, tuple[int, int]]:
    """The layer that turns patches into tokens, by its name, and height and width of a patch."""
    kinds = (nn.Conv2d, nn.Linear)
    layers = {key: one for key, one in model.named_modules() if isinstance(one, kinds)}
    if name == "auto":
        name = next((key for key, one in layers.items() if isinstance(one, nn.Conv2d)), "")
        first: Any = layers.get(name)
        if first is None or first.kernel_size != first.stride or first.kernel_size == (1, 1):
            raise ConfigError(
                f"the patch embedding of this {type(model).__name__} was not found: its first "
                "convolution does not cut the image into patches; name a layer with "
                "--patch-embedding"
            )
    layer = _named(name, layers, "convolution or linear layer")
    if isinstance(layer, nn.Conv2d):
        plain = layer.kernel_size == layer.stride and layer.groups == 1
        if not plain or layer.in_channels != 3 or set(layer.padding) - {0}:
            raise ConfigError(
                f"{name} does not cut images of three channels into patches side by side: {layer}"
            )
        high, wide = layer.kernel_size
        return name, layer, (high, wide)
    square = round((layer.in_features / 3) ** 0.5)
    high, wide = to_2tuple(getattr(model, "patch_size", None) or square)
    if 3 * high * wide != layer.in_features:
        raise ConfigError(
            f"{name} takes {layer.in_features} values, which is no square patch of three channels"
        )
    return name, layer, (int(high), int(wide))


def _positions(model: nn.Module, name: str, grid: PatchGrid, width: int) -> tuple[str | None, int]:
    """The table of positions, and how many rows of other tokens stand before those of patches."""
    tables = {}
    for key, table in model.named_parameters():
        single = table.dim() == 2 or (table.dim() == 3 and table.shape[0] == 1)
        if single and table.shape[-1] == width and table.shape[-2] >= grid.num_patches:
            tables[key] = table.shape[-2]
    if name == "auto":
        name = next((key for key in tables if "pos" in key), "none")
    if name == "none":
        return None, 0
    what = f"table of the positions of {grid} patches of width {width}"
    return name, _named(name, tables, what) - grid.num_patches


def _classifier(model: nn.Module, name: str) -> str | None:
    linear = {key: key for key, one in model.named_modules() if isinstance(one, nn.Linear)}
    if name == "auto":
        described: Any = (getattr(model, "pretrained_cfg", None) or {}).get("classifier")
        last = ["none", *(key for key in linear if not key.startswith("locator"))][-1]
        name = next((key for key in (described, "head", "fc") if key in [*linear]), last)
    return None if name == "none" else _named(name, linear, "linear layer")


def position_embeddings(model: nn.Module) -> tuple[Tensor, PatchGrid]:
    """The position embedding of each patch, and their grid, in the layouts of timm's models."""
    raw = getattr(model, "pos_embed", None)
    size = tuple(getattr(getattr(model, "patch_embed", None), "grid_size", None) or ())
    if isinstance(raw, Tensor) and raw.dim() in (3, 4) and raw.shape[0] == 1:
        table = raw.detach()[0]
        if table.dim() == 3:  # A map: rows and columns last as in PiT, or first as in SAM.
            first = not size or tuple(table.shape[:2]) == size
            table = table if first else table.permute(1, 2, 0)
            return table.flatten(0, 1), PatchGrid(table.shape[0], table.shape[1])
        if size and len(table) >= size[0] * size[1]:
            # Class, distillation and register tokens have their rows before those of the patches.
            return table[len(table) - size[0] * size[1] :], PatchGrid(*size)
    raise ConfigError(
        f"this {type(model).__name__} has no table of absolute positions to look into: its patches "
        "are placed otherwise, or not at all"
    )
