"""The pictures that an audit kept, and grids of them. Imports no torch."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mjp.core.records import Record, Scalar
from mjp.privacy.assessment import ELSEWHERE
from mjp.report.grid import Panel, draw_grid
from mjp.report.table import number, split, text_of

LOST = "the picture is gone"


def file_name(*parts: object) -> str:
    """A name for a file, of letters, digits, dots and dashes only."""
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", str(part)).strip("_.") or "_" for part in parts)


def picture_name(conditions: Mapping[str, Scalar], what: str, place: int) -> str:
    """Where in its folder an audit keeps a picture.

    Args:
        what: `original`, `client` for what the model was fed, or the attack that rebuilt it.
    """
    name = file_name(conditions["weights"], conditions["defence"], what, place)
    return f"pictures/{name}.png"


def read_picture(path: Path) -> np.ndarray | None:
    """A picture that the audit kept, in [0, 1]; None where it is gone or broken."""
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"), dtype=np.float64) / 255
    except (OSError, ValueError, Image.DecompressionBombError):
        return None


def draw_grids(records: Sequence[Record], folder: Path, most: int = 16) -> list[Path]:
    """A grid of the first pictures for each model and defence, `grid-1.png` and so on."""
    for old in folder.glob("grid-*.png"):
        old.unlink()
    images = [record for record in records if record.kind == "audit image"]
    shown = [r for r in images if isinstance(n := r.conditions.get("number"), int) and n < most]
    grids: list[Path] = []
    for group in (group for rows in split(shown, "model") for group in split(rows, "defence")):
        # Attacks that apply to none of the pictures are told of in a table.
        some = {r.conditions["attack"] for r in group if number(r.values, "psnr") is not None}
        rows = split([r for r in group if r.conditions["attack"] in some], "number")
        told = group[0].conditions
        title = f"{told.get('model')}: {told.get('defence_title')}"
        panels = [_panels(row, folder) for row in rows]
        labels = [text_of(row[0].conditions, "image").rpartition("/")[2] for row in rows]
        grids += draw_grid(panels, labels, title, folder, f"grid-{len(grids) + 1}")
    return grids


def _panels(records: list[Record], folder: Path) -> list[Panel]:
    """A picture as it was, as the model was fed it, and as each attack rebuilt it."""
    first = records[0]
    place = int(str(first.conditions["number"]))

    def picture(what: str) -> np.ndarray | None:
        return read_picture(folder / picture_name(first.conditions, what, place))

    moved = f"{first.values.get('masked_patches')} patches moved"
    panels = [
        Panel("the picture", picture("original"), "", LOST),
        Panel("what the client's model is fed", picture("client"), moved, LOST),
    ]
    for record in records:
        attack = text_of(record.conditions, "attack")
        psnr, client = (number(record.values, name) for name in ("psnr", "client_psnr"))
        if psnr is None:
            panels.append(Panel(attack, None, "", "does not apply"))
            continue
        caption = f"{psnr:.1f} dB"
        if client is not None and client > psnr + ELSEWHERE:
            caption += f" ({client:.1f} against what was fed)"
        panels.append(Panel(attack, picture(attack), caption, LOST))
    return panels
