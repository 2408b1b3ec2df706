"""`mjp probe attention`: where the last self-attention of models looks, on pictures."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.markup import escape
from rich.table import Table

from mjp import __version__
from mjp.commands.evaluating import check_crop, claim, finish, numbers
from mjp.commands.options import ProbeAttentionOptions
from mjp.commands.terminal import choose_device, meter
from mjp.core.errors import DataError
from mjp.core.ranges import check_count
from mjp.core.records import Record
from mjp.data.source import Sample, pictures_under
from mjp.evaluate.attention import AttentionMaps, attention_grid, attention_maps, last_attention
from mjp.models.opening import open_models
from mjp.models.subject import Subject
from mjp.report.attention import draw_heads, draw_overview


def run(options: ProbeAttentionOptions) -> None:
    """Looks, draws, prints how widely each model looks."""
    check_count("most", options.most)
    check_crop(options.crop)
    files = _pictures(options.images)[: options.most]
    claim(options.out)
    device = choose_device(options.device)
    subjects = []
    for label, model in open_models(options.model, options.size).items():
        last_attention(model)  # Raises for models without a global one.
        subject = Subject.of(label, model, size=options.size, crop=options.crop)
        subjects.append(subject.on(device))
    names = _names(files)
    seen: dict[str, dict[str, np.ndarray]] = {subject.label: {} for subject in subjects}
    maps: dict[str, dict[str, AttentionMaps]] = {subject.label: {} for subject in subjects}
    with meter("looking", len(files)) as tell:
        for name, file in zip(names, files, strict=True):
            picture = _read(file)
            for subject in subjects:
                shown, found = _look(subject, picture, device)
                seen[subject.label][name] = shown
                maps[subject.label][name] = found
            tell(1)
    records = [
        _record(subject, name, maps[subject.label][name]) for subject in subjects for name in names
    ]
    draw = partial(_draw, names, seen, maps, options.out)
    finish(options, records, [_table(subjects, maps)], draw)


def _draw(
    names: list[str],
    seen: dict[str, dict[str, np.ndarray]],
    maps: dict[str, dict[str, AttentionMaps]],
    out: Path,
) -> list[Path]:
    means = {
        label: {name: one.mean[0].cpu().numpy() for name, one in found.items()}
        for label, found in maps.items()
    }
    paths = draw_overview(seen, means, out)
    with meter("drawing", len(names)) as tell:
        for name in names:
            paths += draw_heads(
                name,
                {label: one[name] for label, one in seen.items()},
                {label: one[name].heads[0].cpu().numpy() for label, one in maps.items()},
                out,
                f"attention-{name}",
            )
            tell(1)
    return paths


def _pictures(where: Path) -> list[Path]:
    where = where.expanduser()
    if where.is_file():
        return [where]
    if not where.is_dir():
        raise DataError(f"there is no picture or folder {where}")
    found = pictures_under(where)
    if not found:
        raise DataError(f"{where} holds no pictures")
    return found


def _names(files: list[Path]) -> list[str]:
    """The files' names without their ends; numbered where one was there before."""
    names: list[str] = []
    for file in files:
        name, number = file.stem, 2
        while name in names:
            name, number = f"{file.stem}-{number}", number + 1
        names.append(name)
    return names


def _read(file: Path) -> Image.Image:
    try:
        return Sample(file, 0).decode()
    except (DataError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{file} {reason}") from error


def _look(
    subject: Subject, picture: Image.Image, device: torch.device
) -> tuple[np.ndarray, AttentionMaps]:
    """What the model was shown, in [0, 1], and where it looked."""
    levels = torch.as_tensor(subject.view.transform()(picture))
    images = subject.normalized(levels[None].to(device))
    grid = attention_grid(subject.model, subject.view.size)
    return levels.permute(1, 2, 0).numpy() / 255, attention_maps(subject.model, images, grid)


def _record(subject: Subject, name: str, found: AttentionMaps) -> Record:
    heads = found.heads[0]
    values = {"heads": heads.shape[0], "attention_on_patches": float(heads.sum(dim=(1, 2)).mean())}
    spread = found.spread()[0].tolist()
    values |= {f"patches_seen_by_head_{number + 1}": one for number, one in enumerate(spread)}
    conditions = {**subject.facts(), "image": name, "query": found.query, "mjp": __version__}
    return Record("probe attention", conditions, values)


def _table(subjects: list[Subject], maps: dict[str, dict[str, AttentionMaps]]) -> Table:
    table = Table(title="last self-attention; means over the pictures")
    table.add_column("model")
    table.add_column("looks from")
    numbers(table, "heads", "patches a head looks at, in effect", "attention on patches, %")
    for subject in subjects:
        found = list(maps[subject.label].values())
        spread = float(np.mean([one.spread().mean().item() for one in found]))
        share = float(np.mean([one.heads.sum(dim=(2, 3)).mean().item() for one in found]))
        of = subject.view.size
        table.add_row(
            escape(subject.label),
            found[0].query,
            str(found[0].heads.shape[1]),
            f"{spread:.1f} of {found[0].heads[0, 0].numel()} ({of[0]}x{of[1]} px)",
            f"{100 * share:.1f}",
        )
    return table
