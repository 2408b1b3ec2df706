"""`mjp probe attention`: where the last self-attention of models looks, on pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.table import Table

from mjp import __version__
from mjp.commands.evaluating import claim, finish, numbers
from mjp.commands.options import ProbeAttentionOptions
from mjp.commands.terminal import choose_device, meter
from mjp.core.errors import ConfigError, DataError
from mjp.core.ranges import check_count
from mjp.core.records import Record
from mjp.data.folder import pictures_under
from mjp.data.source import Sample
from mjp.evaluate.attention import AttentionMaps, attention_maps, last_attention
from mjp.evaluate.subject import Subject
from mjp.jigsaw import PatchGrid
from mjp.models.opening import open_models
from mjp.report.attention import draw_heads, draw_overview


def run(options: ProbeAttentionOptions) -> None:
    """Looks, draws, prints how widely each model looks."""
    check_count("most", options.most)
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
    paths: list[Path] = []
    with meter("looking", len(files)) as tell:
        for name, file in zip(names, files, strict=True):
            picture = _read(file)
            for subject in subjects:
                shown, found = _look(subject, picture, device)
                seen[subject.label][name] = shown
                maps[subject.label][name] = found
            paths += draw_heads(
                name,
                {label: one[name] for label, one in seen.items()},
                {label: one[name].heads[0].cpu().numpy() for label, one in maps.items()},
                options.out,
                f"attention-{name}",
            )
            tell(1)
    means = {
        label: {name: one.mean[0].cpu().numpy() for name, one in found.items()}
        for label, found in maps.items()
    }
    paths = draw_overview(seen, means, options.out) + paths
    records = [
        _record(subject, name, maps[subject.label][name]) for subject in subjects for name in names
    ]
    finish(options, records, [_table(subjects, maps)], paths)


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
    """The files' names without their ends; numbered where two are the same."""
    stems = [file.stem for file in files]
    return [
        stem if stems.count(stem) == 1 else f"{stem}-{number + 1}"
        for number, stem in enumerate(stems)
    ]


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
    patch: Any = subject.model.patch_embed.patch_size
    grid = PatchGrid.of(*subject.view.size, (int(patch[0]), int(patch[1])))
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
        if not found:
            raise ConfigError("there is no picture to look at")
        spread = float(np.mean([one.spread().mean().item() for one in found]))
        share = float(np.mean([one.heads.sum(dim=(2, 3)).mean().item() for one in found]))
        of = subject.view.size
        table.add_row(
            subject.label,
            found[0].query,
            str(found[0].heads.shape[1]),
            f"{spread:.1f} of {found[0].heads[0, 0].numel()} ({of[0]}x{of[1]} px)",
            f"{100 * share:.1f}",
        )
    return table
