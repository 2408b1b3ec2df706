"""The method on one photograph, as one picture: the first stage of `mjp demo`."""

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import timm
import torch
from PIL import Image, UnidentifiedImageError
from skimage.data import astronaut
from torch import Tensor

from mjp.core.errors import ConfigError
from mjp.core.records import Record
from mjp.core.seeds import generator_for
from mjp.jigsaw import JigsawPlan, PatchGrid, sample_plan
from mjp.models.config import MJPConfig
from mjp.models.factory import wrap
from mjp.report.demo import METHOD, METHOD_FILE

MODEL = "deit_tiny_patch16_224"
SIDE = 224
PATCH = 16
BLUE, ORANGE = "#0072b2", "#d55e00"


@dataclass(frozen=True)
class Findings:
    """What the demonstration measured, all of it on this machine."""

    plan: JigsawPlan
    jigsaw: Tensor
    restored: Tensor
    inverse_gap: float
    timm_logits: Tensor
    wrapped_logits: Tensor
    jigsaw_logits: Tensor
    permutation_effect: float
    position_gradient: Tensor


def show_method(out: Path, picture: Path | None, ratio: float, seed: int) -> Record:
    """Measures on one photograph, draws `method.png`, and gives the numbers.

    Args:
        picture: a person's own; None for a bundled one.
    """
    matplotlib.use("Agg")
    image = load_photograph(picture)
    findings = measure(image, ratio, seed)
    out.mkdir(parents=True, exist_ok=True)
    draw(image, findings, out / METHOD_FILE)
    name = "scikit-image astronaut" if picture is None else picture.name
    return summarise(findings, name, ratio, seed)


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


def measure(image: Tensor, ratio: float, seed: int) -> Findings:
    """Runs the jigsaw, timm's model, and the same model wrapped."""
    torch.manual_seed(seed)
    plain = timm.create_model(MODEL, num_classes=1000).eval()
    model = wrap(plain, MJPConfig(ratio=ratio, probability=1.0)).eval()
    plan = sample_plan(
        PatchGrid.of(SIDE, SIDE, PATCH), batch=1, ratio=ratio, generator=generator_for(seed, "demo")
    )
    jigsaw = plan.apply(image)
    restored = plan.invert(jigsaw)
    inputs = image * 2 - 1
    with torch.no_grad():
        timm_logits, wrapped_logits = plain(inputs), model(inputs)
        # Tokens moved for real, though the model knows that it changes nothing.
        moved = model.forward_head(model.forward_features(inputs, plan=plan))
    logits = model(inputs, plan=plan)
    torch.nn.functional.cross_entropy(logits, torch.tensor([0])).backward()
    return Findings(
        plan=plan,
        jigsaw=jigsaw,
        restored=restored,
        inverse_gap=(restored - image).abs().max().item(),
        timm_logits=timm_logits[0],
        wrapped_logits=wrapped_logits[0],
        jigsaw_logits=logits.detach()[0],
        permutation_effect=(moved - logits.detach()).abs().max().item(),
        position_gradient=model.pos_embed.grad[0, -plan.grid.num_patches :].norm(dim=1),
    )


def summarise(findings: Findings, image: str, ratio: float, seed: int) -> Record:
    """The numbers of the picture as a record."""
    masked = findings.plan.masked[0]
    gradient = findings.position_gradient
    difference = (findings.timm_logits - findings.wrapped_logits).abs().max().item()
    return Record(
        kind=METHOD,
        conditions={
            "model": MODEL,
            "weights": "random",
            "ratio": ratio,
            "seed": seed,
            "image": image,
            "torch": torch.__version__,
        },
        values={
            "patches_masked": int(masked.sum()),
            "patches": masked.numel(),
            "difference_between_inverse_and_photograph": findings.inverse_gap,
            "difference_from_timm_without_a_plan": difference,
            "difference_that_the_permutation_makes": findings.permutation_effect,
            "masked_positions_with_a_gradient": int((gradient[masked] != 0).sum()),
            "unmasked_positions_with_a_gradient": int((gradient[~masked] != 0).sum()),
        },
    )


def draw(image: Tensor, findings: Findings, path: Path) -> None:
    """Six panels: photograph, masked blocks, jigsaw, its inverse, identity, what leaks."""
    from matplotlib import pyplot as plt

    grid, masked = findings.plan.grid, findings.plan.masked
    style = {"font.size": 12, "axes.titlesize": 13, "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        figure, axes = plt.subplots(2, 3, figsize=(13.5, 9.4), layout="constrained")
        shade = grid.mask_on(PatchGrid(SIDE, SIDE), masked).reshape(1, 1, SIDE, SIDE)
        tint = torch.tensor([0.0, 0.45, 0.7]).reshape(1, 3, 1, 1)
        blocks = torch.where(shade, 0.4 * image + 0.6 * tint, image)
        share = f"{int(masked.sum())} of {masked.numel()} patches"
        _show(axes[0, 0], image, "the photograph")
        _show(axes[0, 1], blocks, f"masked blocks: {share}")
        _show(axes[0, 2], findings.jigsaw, "the jigsaw: masked patches shuffled")
        title = f"its inverse: difference {findings.inverse_gap:g}"
        _show(axes[1, 0], findings.restored, title)
        _draw_logits(axes[1, 1], findings)
        _draw_gradient(figure, axes[1, 2], findings)
        figure.suptitle(f"Masked Jigsaw Puzzle on {MODEL}, random weights", fontsize=15)
        figure.savefig(path, dpi=90, pil_kwargs={"optimize": True})
        plt.close(figure)


def _show(axis, image: Tensor, title: str) -> None:  # type: ignore[no-untyped-def]
    axis.imshow(image[0].permute(1, 2, 0).numpy())
    axis.set_title(title)
    axis.set_axis_off()


def _draw_logits(axis, findings: Findings) -> None:  # type: ignore[no-untyped-def]
    timms = findings.timm_logits
    for logits, color, label in (
        (findings.jigsaw_logits, ORANGE, "with the jigsaw"),
        (findings.wrapped_logits, BLUE, "without a plan"),
    ):
        axis.scatter(timms, logits - timms, s=9, color=color, label=label)
    largest = (findings.wrapped_logits - timms).abs().max().item()
    axis.set_title(
        f"wrapped model against timm's, 1000 logits:\nwithout a plan they differ by {largest:g}"
    )
    axis.set_xlabel("logit of timm's model")
    axis.set_ylabel("wrapped − timm's")
    axis.legend(loc="upper left", framealpha=0.9, markerscale=2)


def _draw_gradient(figure, axis, findings: Findings) -> None:  # type: ignore[no-untyped-def]
    grid, gradient = findings.plan.grid, findings.position_gradient
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
