"""`PatchGrid`: the only place where pixels and patches are converted into each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from mjp.core.errors import ConfigError


@dataclass(frozen=True)
class PatchGrid:
    """A grid of patches. Patch 0 is top left; patches count along rows first."""

    rows: int
    cols: int

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("cols", self.cols)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"a grid needs at least one of its {name}, got {name}={value!r}")

    @classmethod
    def of(cls, height: int, width: int, patch_size: int | tuple[int, int]) -> "PatchGrid":
        """The grid of an image, or an error if its sides are no multiple of the patch's."""
        high, wide = pair_of_sides("patch_size", patch_size)
        if height < high or width < wide:
            raise ConfigError(
                f"a {height}x{width} image is smaller than one {high}x{wide} patch; "
                "use a larger image or smaller patches"
            )
        if height % high or width % wide:
            raise ConfigError(
                f"a {height}x{width} image cannot be cut into {high}x{wide} patches; "
                f"resize it to {height // high * high}x{width // wide * wide}"
            )
        return cls(rows=height // high, cols=width // wide)

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols}"

    @property
    def num_patches(self) -> int:
        return self.rows * self.cols

    def patch_shape(self, height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels of one patch of an image of this size."""
        if height % self.rows or width % self.cols:
            high, wide = max(1, round(height / self.rows)), max(1, round(width / self.cols))
            raise ConfigError(
                f"a {height}x{width} image cannot be cut into a {self} grid of patches; resize it "
                f"to {high * self.rows}x{wide * self.cols}"
            )
        return height // self.rows, width // self.cols

    def split(
        self, images: Shaped[Tensor, "batch chan height width"]
    ) -> Shaped[Tensor, "batch patches chan patch_height patch_width"]:
        """Cuts images into patches."""
        batch, chan, height, width = images.shape
        high, wide = self.patch_shape(height, width)
        cells = images.reshape(batch, chan, self.rows, high, self.cols, wide)
        return cells.permute(0, 2, 4, 1, 3, 5).reshape(batch, self.num_patches, chan, high, wide)

    def join(
        self, patches: Shaped[Tensor, "batch patches chan patch_height patch_width"]
    ) -> Shaped[Tensor, "batch chan height width"]:
        """Puts patches together again; the inverse of `split`."""
        batch, _, chan, high, wide = patches.shape
        cells = patches.reshape(batch, self.rows, self.cols, chan, high, wide)
        images = cells.permute(0, 3, 1, 4, 2, 5)
        return images.reshape(batch, chan, self.rows * high, self.cols * wide)

    def coordinates(self, device: torch.device | None = None) -> Float[Tensor, "patches 2"]:
        """Row and column of every patch, counted from 0."""
        rows = torch.arange(self.rows, dtype=torch.float32, device=device)
        cols = torch.arange(self.cols, dtype=torch.float32, device=device)
        return torch.cartesian_prod(rows, cols).reshape(self.num_patches, 2)

    def mask_on(
        self, other: "PatchGrid", masked: Bool[Tensor, "batch patches"]
    ) -> Bool[Tensor, "batch other_patches"]:
        """A mask of this grid on another one: a patch there is masked where the one here is.

        On a finer grid each patch here covers several there. Where the grids do not divide each
        other, the patch here that holds the top left corner of the one there decides.
        """
        if other == self:
            return masked
        rows = torch.arange(other.rows, device=masked.device) * self.rows // other.rows
        cols = torch.arange(other.cols, device=masked.device) * self.cols // other.cols
        cells = masked.reshape(-1, self.rows, self.cols)[:, rows[:, None], cols]
        return cells.reshape(-1, other.num_patches)


def pair_of_sides(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width from one count for both or one for each."""
    sides = (size, size) if isinstance(size, int) else size
    counts = isinstance(sides, Sequence) and len(sides) == 2
    if not counts or not all(type(side) is int and side >= 1 for side in sides):
        raise ConfigError(f"{name} must be at least one pixel in both directions, got {size!r}")
    return sides[0], sides[1]
