"""All figures of an audit, from its records and the pictures that it kept."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mjp.core.records import Record, Scalar
from mjp.privacy.ledger import file_name
from mjp.report.audit import draw_defences, draw_ratio_curve, draw_tradeoff
from mjp.report.audit_grid import GridRow, Panel, draw_grid

LOST = "the picture is gone"


def picture_file(folder: Path, conditions: Mapping[str, Scalar], what: str, number: int) -> Path:
    """Where a picture of an audit is kept."""
    name = file_name(conditions["weights"], conditions["defence"], what, number)
    return folder / "pictures" / f"{name}.png"


def draw_audit(
    records: Sequence[Record], names: Sequence[str], folder: Path, out: Path
) -> dict[str, Path]:
    """All figures, by the names that the page knows them by.

    Args:
        names: of the pictures to show, by their numbers.
        folder: of the audit, where the pictures are.
        out: where figures go.
    """
    figures: dict[str, Path] = {}
    for name, make in (
        ("defences", draw_defences),
        ("tradeoff", draw_tradeoff),
        ("ratio", draw_ratio_curve),
    ):
        for path in make(records, out):
            if path.suffix == ".svg":
                figures[name] = path
    if names:
        figures |= _grids(records, names, folder, out)
    return figures


def _grids(
    records: Sequence[Record], names: Sequence[str], folder: Path, out: Path
) -> dict[str, Path]:
    """A grid of pictures for each model and defence."""
    found: dict[str, Path] = {}
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.kind == "audit image" and int(str(record.conditions["number"])) < len(names):
            key = (str(record.conditions["model"]), str(record.conditions["defence"]))
            groups.setdefault(key, []).append(record)
    for (model, _), every in groups.items():
        # Attacks that apply to none of the pictures are told of in a table.
        some = {r.conditions["attack"] for r in every if isinstance(r.values.get("psnr"), float)}
        own = [r for r in every if r.conditions["attack"] in some]
        if not own:
            continue
        rows = [
            _row(number, name, [r for r in own if r.conditions["number"] == number], folder)
            for number, name in enumerate(names)
        ]
        title = f"{model}: {own[0].conditions['defence_title']}"
        for path in draw_grid([r for r in rows if r], out, f"grid-{len(found) + 1}"):
            found[title] = path
    return found


def _row(number: int, name: str, records: list[Record], folder: Path) -> GridRow | None:
    if not records:
        return None
    facts = records[0].conditions
    moved = f"{records[0].values.get('masked_patches')} patches moved"
    original, client = (
        _picture(picture_file(folder, facts, what, number)) for what in ("original", "client")
    )
    panels = [
        Panel(original, "", LOST, heading="the picture"),
        Panel(client, moved, LOST, heading="what the client's model is fed"),
    ]
    for record in records:
        attack = str(record.conditions["attack"])
        psnr = record.values.get("psnr")
        if not isinstance(psnr, float):
            panels.append(Panel(None, "", heading=attack))
            continue
        caption = f"{psnr:.1f} dB"
        client_psnr = record.values.get("client_psnr")
        if isinstance(client_psnr, float) and client_psnr > psnr + 3:
            caption += f" ({client_psnr:.1f} against what was fed)"
        found = _picture(picture_file(folder, facts, attack, number))
        panels.append(Panel(found, caption, LOST, heading=attack))
    return GridRow(name.rpartition("/")[2], panels)


def _picture(path: Path) -> np.ndarray | None:
    """A picture that the audit kept; None where it is gone or broken."""
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"), dtype=np.float64) / 255
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
