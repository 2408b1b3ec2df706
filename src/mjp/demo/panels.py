"""The four panels of `mjp demo`: a photograph, and what three attackers rebuild of it."""

from pathlib import Path

import numpy as np
import torch

from mjp.core.errors import MjpError
from mjp.core.records import Record, read_records
from mjp.demo.sections import PANELS, PANELS_FILE
from mjp.privacy import metrics
from mjp.privacy.pictures import picture_file, read_picture
from mjp.report.grid import Panel, draw_panels
from mjp.report.table import number


def show_panels(out: Path, ratio: float) -> Record:
    """Draws `panels.png` from what the audits of both models kept, and gives its numbers."""
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
    draw_panels(panels, out, Path(PANELS_FILE).stem)
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
    file = picture_file(folder, record.conditions, what, 0)
    picture = read_picture(file)
    if picture is None:
        raise MjpError(f"{file} cannot be read; run again with --fresh")
    return picture
