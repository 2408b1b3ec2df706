"""The table of absolute positions of any model that has one."""

from torch import Tensor, nn

from mjp.core.errors import ConfigError
from mjp.jigsaw import PatchGrid
from mjp.models.backbone import MJPBackbone


def position_embeddings(model: nn.Module) -> tuple[Tensor, PatchGrid]:
    """The position embedding of each patch, a row each, and the grid they lie on.

    For any model with such a table; an error that says so for one without.
    """
    if isinstance(model, MJPBackbone):
        own = model.position_table()
        found = None if own is None else (own.detach(), model.position_grid())
    else:
        found = _found(model)
    if found is None:
        raise ConfigError(
            f"this {type(model).__name__} has no table of absolute positions to look into: its "
            "patches are placed otherwise, or not at all"
        )
    return found


def _found(model: nn.Module) -> tuple[Tensor, PatchGrid] | None:
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
