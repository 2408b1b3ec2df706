"""The method on one photograph, as one picture: the first stage of `mjp demo`."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import timm
import torch
from PIL import Image, UnidentifiedImageError
from skimage.data import astronaut
from torch import Tensor
from torch.nn import functional as F

from mjp.core.errors import ConfigError
from mjp.core.records import Record
from mjp.core.seeds import generator_for
from mjp.demo.sections import METHOD, METHOD_FILE
from mjp.jigsaw import JigsawPlan, PatchGrid, sample_plan
from mjp.models.config import MJPConfig
from mjp.models.factory import wrap

MODEL = "deit_tiny_patch16_224"
SIDE, PATCH = 224, 16
BLUE, ORANGE = "#0072b2", "#d55e00"


def show_method(out: Path, picture: Path | None, ratio: float, seed: int) -> Record:
    """Measures on one photograph, draws `method.png`, and gives the numbers.

    Args:
        picture: a person's own; None for a bundled one.
    """
    image = load_photograph(picture)
    torch.manual_seed(seed)
    plain = timm.create_model(MODEL, num_classes=1000).eval()
    model: Any = wrap(plain, MJPConfig(ratio=ratio, probability=1.0)).eval()
    grid = PatchGrid.of(SIDE, SIDE, PATCH)
    plan = sample_plan(grid, batch=1, ratio=ratio, generator=generator_for(seed, "demo"))
    jigsaw = plan.apply(image)
    restored = plan.invert(jigsaw)
    inputs = image * 2 - 1
    with torch.no_grad():
        timm_logits, wrapped_logits = plain(inputs)[0], model(inputs)[0]
        # Tokens moved for real, though the model knows that it changes nothing.
        moved_logits = model.forward_head(model.forward_features(inputs, plan=plan))[0]
    logits = model(inputs, plan=plan)
    F.cross_entropy(logits, torch.tensor([0])).backward()
    logits = logits.detach()[0]
    gradient = model.pos_embed.grad[0, -grid.num_patches :].norm(dim=1)
    inverse_gap = (restored - image).abs().max().item()
    out.mkdir(parents=True, exist_ok=True)
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with matplotlib.rc_context({"font.size": 12, "axes.titlesize": 13, "svg.fonttype": "none"}):
        figure, axes = plt.subplots(2, 3, figsize=(13.5, 9.4), layout="constrained")
        _draw_pictures(axes.flat[:4], image, plan, jigsaw, restored, inverse_gap)
        _draw_logits(axes[1, 1], timm_logits, wrapped_logits, logits)
        _draw_gradient(figure, axes[1, 2], grid, gradient)
        figure.suptitle(f"Masked Jigsaw Puzzle on {MODEL}, random weights", fontsize=15)
        figure.savefig(out / METHOD_FILE, dpi=90, pil_kwargs={"optimize": True})
        plt.close(figure)
    masked = plan.masked[0]
    return Record(
        METHOD,
        {
            "model": MODEL,
            "weights": "random",
            "ratio": ratio,
            "seed": seed,
            "image": "scikit-image astronaut" if picture is None else picture.name,
            "torch": torch.__version__,
        },
        {
            "patches_masked": int(masked.sum()),
            "patches": masked.numel(),
            "difference_between_inverse_and_photograph": inverse_gap,
            "difference_from_timm_without_a_plan": _gap(timm_logits, wrapped_logits),
            "difference_that_the_permutation_makes": _gap(moved_logits, logits),
            "masked_positions_with_a_gradient": int((gradient[masked] != 0).sum()),
            "unmasked_positions_with_a_gradient": int((gradient[~masked] != 0).sum()),
        },
    )


def load_photograph(path: Path | None) -> Tensor:
    """A picture as (1, 3, 224, 224) in [0, 1]: the caller's, or one that scikit-image carries."""
    try:
        picture = Image.fromarray(astronaut()) if path is None else Image.open(path).convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ConfigError(f"{path} cannot be read as a picture: {error}") from error
    shorter = min(picture.size)
    left, top = (picture.width - shorter) // 2, (picture.height - shorter) // 2
    box = (left, top, left + shorter, top + shorter)
    picture = picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255


def _gap(first: Tensor, second: Tensor) -> float:
    return (first - second).abs().max().item()


def _draw_pictures(
    axes: Any, image: Tensor, plan: JigsawPlan, jigsaw: Tensor, restored: Tensor, gap: float
) -> None:
    """Photograph, masked blocks, jigsaw and its inverse."""
    masked = plan.masked
    shade = plan.grid.mask_on(PatchGrid(SIDE, SIDE), masked).reshape(1, 1, SIDE, SIDE)
    tint = torch.tensor([0.0, 0.45, 0.7]).reshape(1, 3, 1, 1)
    panels = {
        "the photograph": image,
        f"masked blocks: {int(masked.sum())} of {masked.numel()} patches": torch.where(
            shade, 0.4 * image + 0.6 * tint, image
        ),
        "the jigsaw: masked patches shuffled": jigsaw,
        f"its inverse: difference {gap:g}": restored,
    }
    for axis, (title, picture) in zip(axes, panels.items(), strict=True):
        axis.imshow(picture[0].permute(1, 2, 0).numpy())
        axis.set_title(title)
        axis.set_axis_off()


def _draw_logits(axis: Any, timm_logits: Tensor, wrapped: Tensor, jigsaw: Tensor) -> None:
    for logits, color, label in (
        (jigsaw, ORANGE, "with the jigsaw"),
        (wrapped, BLUE, "without a plan"),
    ):
        axis.scatter(timm_logits, logits - timm_logits, s=9, color=color, label=label)
    axis.set_title(
        "wrapped model against timm's, 1000 logits:\nwithout a plan they differ by "
        f"{_gap(wrapped, timm_logits):g}"
    )
    axis.set_xlabel("logit of timm's model")
    axis.set_ylabel("wrapped − timm's")
    axis.legend(loc="upper left", framealpha=0.9, markerscale=2)


def _draw_gradient(figure: Any, axis: Any, grid: PatchGrid, gradient: Tensor) -> None:
    colors = matplotlib.colormaps["cividis"].with_extremes(bad=ORANGE)
    shown = np.ma.masked_equal(gradient.reshape(grid.rows, grid.cols).numpy(), 0)
    picture = axis.imshow(shown, cmap=colors, norm="log" if shown.count() else None)
    zeros = int((gradient == 0).sum())
    axis.set_title(f"gradient of each position embedding:\nexactly 0 at {zeros} places (orange)")
    axis.set_xticks(range(0, grid.cols, 2))
    axis.set_yticks(range(0, grid.rows, 2))
    axis.set_xlabel("column")
    axis.set_ylabel("row")
    figure.colorbar(picture, ax=axis, shrink=0.8, label="L2 norm")
