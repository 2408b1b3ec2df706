"""The pictures that `mjp demo` draws itself: the method on a photograph, and four panels."""

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

from mjp.core.errors import ConfigError, MjpError
from mjp.core.records import Record, read_records
from mjp.core.seeds import generator_for
from mjp.demo.sections import METHOD, METHOD_FILE, PANELS, PANELS_FILE
from mjp.jigsaw import PatchGrid, sample_plan
from mjp.models.config import MJPConfig
from mjp.models.factory import wrap
from mjp.privacy import metrics
from mjp.privacy.pictures import picture_name, read_picture
from mjp.report.grid import Panel, draw_grid
from mjp.report.style import COLORS, RAMP, bare, styled, write
from mjp.report.table import number

MODEL = "deit_tiny_patch16_224"
SIDE, PATCH = 224, 16


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
    masked = plan.masked[0]
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
    inverse_gap = _gap(restored, image)
    shade = grid.mask_on(PatchGrid(SIDE, SIDE), plan.masked).reshape(1, 1, SIDE, SIDE)
    tint = torch.tensor([0.0, 0.45, 0.7]).reshape(1, 3, 1, 1)
    pictures = {
        "the photograph": image,
        f"masked blocks: {int(masked.sum())} of {masked.numel()} patches": torch.where(
            shade, 0.4 * image + 0.6 * tint, image
        ),
        "the jigsaw: masked patches shuffled": jigsaw,
        f"its inverse: difference {inverse_gap:g}": restored,
    }
    with styled() as subplots:
        figure, axes = subplots(2, 3, figsize=(13.5, 9.4))
        for axis, (title, shown) in zip(axes.flat, pictures.items(), strict=False):
            axis.imshow(shown[0].permute(1, 2, 0).numpy())
            axis.set_title(title)
            bare(axis)
        _draw_logits(axes[1, 1], timm_logits, wrapped_logits, logits)
        _draw_gradient(figure, axes[1, 2], gradient.reshape(grid.rows, grid.cols))
        figure.suptitle(f"Masked Jigsaw Puzzle on {MODEL}, random weights", fontsize=15)
        write(figure, out, Path(METHOD_FILE).stem, dpi=90, vectors=False)
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


def _draw_logits(axis: Any, timm_logits: Tensor, wrapped: Tensor, jigsaw: Tensor) -> None:
    for logits, color, label in (
        (jigsaw, COLORS[1], "with the jigsaw"),
        (wrapped, COLORS[0], "without a plan"),
    ):
        axis.scatter(timm_logits, logits - timm_logits, s=9, color=color, label=label)
    axis.set(
        title="wrapped model against timm's, 1000 logits:\nwithout a plan they differ by "
        f"{_gap(wrapped, timm_logits):g}",
        xlabel="logit of timm's model",
        ylabel="wrapped − timm's",
    )
    axis.legend(loc="upper left", frameon=True, framealpha=0.9, markerscale=2)


def _draw_gradient(figure: Any, axis: Any, gradient: Tensor) -> None:
    colors = matplotlib.colormaps[RAMP].with_extremes(bad=COLORS[1])
    shown = np.ma.masked_equal(gradient.numpy(), 0)
    picture = axis.imshow(shown, cmap=colors, norm="log" if shown.count() else None)
    zeros = int((gradient == 0).sum())
    axis.set(
        title=f"gradient of each position embedding:\nexactly 0 at {zeros} places (orange)",
        xticks=range(0, gradient.shape[1], 2),
        yticks=range(0, gradient.shape[0], 2),
        xlabel="column",
        ylabel="row",
    )
    bar = figure.colorbar(picture, ax=axis, shrink=0.8, label="L2 norm", format="%g")
    bar.ax.yaxis.set_minor_formatter("{x:g}")


def show_panels(out: Path, ratio: float) -> Record:
    """Draws `panels.png`, a photograph and what three attackers rebuilt of it, from what the audits
    of both models kept; and gives its numbers."""
    defence = f"mjp={ratio:g}"
    shown = {
        "plain ViT": ("A", "none", "patch_solve"),
        f"MJP, γ = {ratio:g}": ("J", defence, "patch_solve"),
        "MJP, attacker knows it": ("J", defence, "adaptive_solve"),
    }
    records = [_find(out / "audit" / variant, *rest) for variant, *rest in shown.values()]
    plain, mjp, adaptive = records
    original = _picture(out / "audit" / "A", plain, "original")
    panels = [Panel("the picture", original, "stays on the device")]
    for (title, (variant, _, attack)), record in zip(shown.items(), records, strict=True):
        psnr = number(record.values, "psnr")
        below = f"rebuilt: {'nothing' if psnr is None else f'{psnr:.1f} dB'}"
        panels.append(Panel(title, _picture(out / "audit" / variant, record, attack), below))
    draw_grid([panels], [""], "", out, Path(PANELS_FILE).stem)
    truth = torch.from_numpy(original).permute(2, 0, 1)[None]
    guesses = [float(metrics.psnr(guess, truth)) for guess in metrics.baseline_images(truth)]
    return Record(
        PANELS,
        {
            "photograph": plain.conditions["image"],
            "size": plain.conditions["image_size"],
            "ratio": ratio,
            "seed": plain.conditions["seed"],
            "plain_weights": plain.conditions["weights"],
            "mjp_weights": mjp.conditions["weights"],
        },
        {
            "plain_psnr": plain.values["psnr"],
            "mjp_psnr": mjp.values["psnr"],
            "adaptive_psnr": adaptive.values["psnr"],
            "adaptive_psnr_unmasked": adaptive.values["psnr_unmasked"],
            "guess_psnr": max(guesses),
        },
    )


def _find(folder: Path, defence: str, attack: str) -> Record:
    """What an attack got of the first picture."""
    for record in read_records(folder):
        names = (record.conditions.get(name) for name in ("defence", "attack", "number"))
        if record.kind == "audit image" and tuple(names) == (defence, attack, 0):
            return record
    raise MjpError(f"{folder} does not hold {attack} under {defence}; run again with --fresh")


def _picture(folder: Path, record: Record, what: str) -> np.ndarray:
    file = folder / picture_name(record.conditions, what, 0)
    picture = read_picture(file)
    if picture is None:
        raise MjpError(f"{file} cannot be read; run again with --fresh")
    return picture
