"""The four panels of `mjp demo`: a photograph, and what three attackers rebuild of it."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mjp.core.errors import MjpError
from mjp.core.records import Record, read_records
from mjp.privacy import metrics
from mjp.privacy.pictures import picture_file
from mjp.report.demo import PANELS, PANELS_FILE
from mjp.report.grid import Panel, draw_panels
from mjp.report.table import number


def show_panels(out: Path, ratio: float) -> Record:
    """Draws `panels.png` from what the audits of both models kept, and gives its numbers."""
    defence = f"mjp={ratio:g}"
    shown = (
        ("A", "none", "patch_solve"),
        ("J", defence, "patch_solve"),
        ("J", defence, "adaptive_solve"),
    )
    found = [_found(out / "audit" / variant, *rest) for variant, *rest in shown]
    plain, mjp, adaptive = (record for record, _ in found)
    original = _read(picture_file(out / "audit" / "A", plain.conditions, "original", 0))
    truth = _tensor(original)
    mean, colour = metrics.baseline_images(truth)
    guess = max(float(metrics.psnr(one, truth)) for one in (mean, colour))
    psnrs = [number(record.values, "psnr") for record, _ in found]
    headings = ("the picture", "plain ViT", f"MJP, γ = {ratio:g}", "MJP, attacker knows it")
    below = ["stays on the device", *(f"rebuilt: {_decibels(psnr)}" for psnr in psnrs)]
    pictures = [original, *(picture for _, picture in found)]
    panels = [Panel(*three) for three in zip(headings, pictures, below, strict=True)]
    draw_panels(panels, out, Path(PANELS_FILE).stem)
    name = str(plain.conditions["image"])
    return Record(
        PANELS,
        {
            "photograph": name,
            "size": plain.conditions["image_size"],
            "ratio": ratio,
            "seed": plain.conditions["seed"],
            "plain_weights": plain.conditions["weights"],
            "mjp_weights": mjp.conditions["weights"],
        },
        {
            "plain_psnr": psnrs[0],
            "mjp_psnr": psnrs[1],
            "adaptive_psnr": psnrs[2],
            "adaptive_psnr_unmasked": number(adaptive.values, "psnr_unmasked"),
            "guess_psnr": guess,
        },
    )


def _found(folder: Path, defence: str, attack: str) -> tuple[Record, np.ndarray]:
    """What an attack got of the first picture: its record, and the picture."""
    for record in read_records(folder):
        if record.kind != "audit image":
            continue
        told = record.conditions
        if (told["defence"], told["attack"], told["number"]) == (defence, attack, 0):
            return record, _read(picture_file(folder, told, attack, 0))
    raise MjpError(f"{folder} does not hold {attack} under {defence}; run again with --fresh")


def _read(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"), dtype=np.float64) / 255


def _tensor(picture: np.ndarray) -> Tensor:
    return torch.from_numpy(picture).permute(2, 0, 1)[None]


def _decibels(psnr: float | None) -> str:
    return "nothing" if psnr is None else f"{psnr:.1f} dB"
