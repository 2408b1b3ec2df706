"""`JigsawPlan`: which patches are masked, and which patch comes to lie where."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.jigsaw.grid import PatchGrid

Images = Shaped[Tensor, "batch chan height width"]


@dataclass(frozen=True, eq=False)
class JigsawPlan:
    """A jigsaw for a batch of images, one mask and one permutation for each image.

    Args:
        masked: True where a patch is shuffled, so that its position is unknown.
        source: output patch i is input patch source[i]; a permutation of the masked patches among
            themselves. (Checked on the CPU; on a GPU, looking would make the host wait.)
        pixels: where set, output pixel k of every patch is its input pixel pixels[k] (variant C).
    """

    grid: PatchGrid
    masked: Bool[Tensor, "batch patches"]
    source: Int64[Tensor, "batch patches"]
    pixels: Int64[Tensor, "batch pixels"] | None = None

    def __post_init__(self) -> None:
        tensors = (("masked", torch.bool), ("source", torch.int64), ("pixels", torch.int64))
        for name, dtype in tensors:
            tensor = getattr(self, name)
            if tensor is None:
                continue
            columns = self.grid.num_patches if name != "pixels" else tensor.shape[-1]
            fits = tensor.dim() == 2 and tensor.shape == (self.masked.shape[0], columns)
            if not fits or tensor.dtype != dtype or tensor.device != self.device:
                raise ConfigError(
                    f"plan.{name} must be {dtype} on {self.device}, a row for each of "
                    f"{self.masked.shape[0]} images and {columns} columns; "
                    f"got {tensor.dtype} on {tensor.device} of shape {tuple(tensor.shape)}"
                )
        _check_order(self.masked, self.source)

    @classmethod
    def identity(
        cls, grid: PatchGrid, batch: int, device: torch.device | str = "cpu"
    ) -> "JigsawPlan":
        """The plan that masks and moves nothing."""
        masked = torch.zeros(batch, grid.num_patches, dtype=torch.bool, device=device)
        return cls(grid, masked, torch.arange(grid.num_patches, device=device).repeat(batch, 1))

    @property
    def batch(self) -> int:
        return self.masked.shape[0]

    @property
    def device(self) -> torch.device:
        return self.masked.device

    __iter__ = None  # A plan is no sequence of plans, though parts of it are plans.

    def __getitem__(self, images: slice | Tensor) -> "JigsawPlan":
        """The plan of some of the images, chosen by a slice or an index tensor."""
        if isinstance(images, int):
            raise ConfigError(f"one image of a plan is plan[{images}:{images + 1}]")
        pixels = None if self.pixels is None else self.pixels[images]
        return JigsawPlan(self.grid, self.masked[images], self.source[images], pixels)

    def to(self, device: torch.device | str) -> "JigsawPlan":
        """The same plan on another device."""
        pixels = None if self.pixels is None else self.pixels.to(device)
        return JigsawPlan(self.grid, self.masked.to(device), self.source.to(device), pixels)

    def apply(self, images: Images) -> Images:
        """Moves whole patches of each image to where the plan puts them."""
        return self._move(images, self.source, self.pixels)

    def invert(self, images: Images) -> Images:
        """Moves the patches back: `plan.invert(plan.apply(images))` equals `images`."""
        pixels = None if self.pixels is None else self.pixels.argsort(dim=1)
        return self._move(images, self.source.argsort(dim=1), pixels)

    def apply_to_tokens(
        self, tokens: Shaped[Tensor, "batch patches dim"]
    ) -> Shaped[Tensor, "batch patches dim"]:
        """Moves patch tokens; for a stride-P patch embedding the same as moving the pixels."""
        return take_patches(tokens, self.source)

    def check_fits(self, batch: int, grid: PatchGrid, device: torch.device) -> None:
        """Raises unless this plan is for so many images, on this grid, on this device."""
        if self.batch != batch:
            raise ConfigError(
                f"the plan is for {self.batch} images, the batch has {batch}; "
                "draw one plan for each batch"
            )
        # Rows and columns one by one: a compiled model may know them as symbols only.
        if self.grid.rows != grid.rows or self.grid.cols != grid.cols:
            raise ConfigError(
                f"the plan is on a {self.grid} grid of patches, the images are cut into {grid}; "
                "draw the plan on the grid of the images"
            )
        if self.device != device:
            raise ConfigError(
                f"the plan is on {self.device}, the images are on {device}; "
                f"draw it there or move it with plan.to('{device}')"
            )

    def _move(self, images: Tensor, source: Tensor, pixels: Tensor | None) -> Tensor:
        if images.dim() != 4:
            raise ConfigError(
                "a plan moves the patches of images of shape (batch, chan, height, width), "
                f"got {tuple(images.shape)}"
            )
        self.check_fits(images.shape[0], self.grid, images.device)
        patches = take_patches(self.grid.split(images), source)
        if pixels is not None:
            flat = patches.flatten(3)
            if flat.shape[3] != pixels.shape[1]:
                raise ConfigError(
                    f"the plan shuffles {pixels.shape[1]} pixels in a patch, but a patch of these "
                    f"images has {flat.shape[3]}"
                )
            patches = flat.take_along_dim(pixels[:, None, None, :], 3).reshape(patches.shape)
        moved = self.grid.join(patches)
        if images.stride(1) == 1 < images.shape[1]:
            return moved.contiguous(memory_format=torch.channels_last)
        return moved


def take_patches(
    patches: Shaped[Tensor, "batch patches *rest"], source: Int64[Tensor, "batch patches"]
) -> Shaped[Tensor, "batch patches *rest"]:
    """Gathers patch source[i] into place i, for each image."""
    return patches.take_along_dim(source.reshape(*source.shape, *[1] * (patches.dim() - 2)), 1)


def _check_order(masked: Tensor, source: Tensor) -> None:
    """Raises where some patch is lost, doubled, or moved though it is not masked."""
    if source.device.type != "cpu" or torch.compiler.is_compiling():
        return
    places = torch.arange(source.shape[1])
    try:
        permuted = torch.equal(source.sort(dim=1).values, places.expand_as(source))
        stays = bool(((source == places) | masked).all())
    except RuntimeError:  # Inside torch.func.vmap there are no values to look at.
        return
    if not (permuted and stays):
        raise ConfigError(
            "plan.source must permute the masked patches of each image among themselves and leave "
            "the others where they are"
        )
