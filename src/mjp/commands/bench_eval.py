"""`mjp bench eval`: how much of an evaluation's time the model itself takes."""

import io
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from rich.table import Table

from mjp.commands.options import BenchEvalOptions
from mjp.commands.terminal import choose_device, hardware, meter, results
from mjp.core.ranges import check_count
from mjp.core.records import Record, append_records
from mjp.core.team import Team
from mjp.data.feed import available_cores
from mjp.data.folder import FolderSource
from mjp.data.source import Source
from mjp.data.viewing import reader
from mjp.evaluate.jigsaw import RATIOS, JigsawScorer, JigsawSettings
from mjp.evaluate.showing import show
from mjp.evaluate.subject import Subject, float32_precision
from mjp.models.opening import RANDOM, ModelName, open_model

PICTURE = (375, 500)
"""Height and width of the made-up pictures: the usual size of ImageNet's."""


def run(options: BenchEvalOptions) -> None:
    """Times both, in turn, and prints the ratio."""
    for name in ("batch", "draws", "rounds"):
        check_count(name, getattr(options, name))
    device = choose_device(options.device)
    gpu = device.type == "cuda"
    name = options.model or ("deit_small_patch16_224" if gpu else "deit_tiny_patch16_224")
    count = options.images or (2048 if gpu else 64)
    settings = JigsawSettings(RATIOS, options.draws, options.seed)
    passes = 1 + len(RATIOS) * options.draws
    model = open_model(ModelName(name, name, RANDOM))
    subject = Subject.of(name, model, precision=options.precision).on(device)
    alone, whole = [], []
    with TemporaryDirectory() as folder, float32_precision(options.precision):
        source = _pictures(Path(folder), count, options.seed)
        with meter("timing", 2 * options.rounds + 2) as tell:
            for number in range(options.rounds + 1):  # The first round warms up.
                alone.append(_time_alone(subject, count, passes, options.batch, device))
                tell(1)
                whole.append(_time_whole(subject, source, settings, options, device))
                tell(1)
                if number == 0:
                    alone.clear()
                    whole.clear()
    ratios = [one / other for one, other in zip(alone, whole, strict=True)]
    forwards = count * passes
    record = Record(
        "bench eval",
        {
            "model": name,
            "images": count,
            "passes": passes,
            "batch": options.batch,
            "precision": options.precision,
            "workers": options.workers or available_cores(),
            "hardware": hardware(device),
            "torch": torch.__version__,
        },
        {
            "alone_per_second": forwards / statistics.median(alone),
            "evaluated_per_second": forwards / statistics.median(whole),
            "ratio": statistics.median(ratios),
            "ratio_lowest": min(ratios),
            "ratio_highest": max(ratios),
        },
    )
    append_records(options.out / "records.jsonl", [record])
    values = record.values
    table = Table(
        title=f"{name}, {options.precision}, {count} pictures of {PICTURE[1]}x{PICTURE[0]}, "
        f"{passes} passes over each; {hardware(device)}"
    )
    for column in ("", "forward passes/s, median", "ratio, median", "lowest to highest"):
        table.add_column(column)
    table.add_row("the model alone", f"{values['alone_per_second']:,.0f}", "1", "")
    table.add_row(
        "evaluation from JPEG files",
        f"{values['evaluated_per_second']:,.0f}",
        f"{values['ratio']:.3f}",
        f"{values['ratio_lowest']:.3f} to {values['ratio_highest']:.3f}",
    )
    results().print(table)
    results().print(f"records: {options.out / 'records.jsonl'}", highlight=False)


def _pictures(folder: Path, count: int, seed: int) -> Source:
    """Made-up JPEG files with some structure, so that decoding takes what it usually takes."""
    rng = np.random.default_rng(seed)
    (folder / "0").mkdir()
    for number in range(count):
        coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize(PICTURE[::-1], Image.Resampling.BICUBIC)
        noisy = np.asarray(picture, np.int16) + rng.integers(-12, 13, (*PICTURE, 1))
        buffer = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        (folder / "0" / f"{number:06d}.jpg").write_bytes(buffer.getvalue())
    return FolderSource(folder)


@torch.inference_mode()
def _time_alone(
    subject: Subject, count: int, passes: int, batch: int, device: torch.device
) -> float:
    """Seconds for as many forward passes, over and over on the same images."""
    images = torch.randn(min(batch, count), 3, *subject.view.size, device=device)
    _wait(device)
    start = time.perf_counter()
    for _ in range(passes * -(-count // len(images))):
        subject.answers(images)
    _wait(device)
    return (time.perf_counter() - start) * count / (-(-count // len(images)) * len(images))


def _time_whole(
    subject: Subject,
    source: Source,
    settings: JigsawSettings,
    options: BenchEvalOptions,
    device: torch.device,
) -> float:
    """Seconds from the first file to the last score."""
    team = Team(0, 1, device)
    outputs = torch.zeros(1, dtype=torch.int64)
    workers = available_cores() if options.workers is None else options.workers
    start = time.perf_counter()
    scorer = JigsawScorer(subject, settings, len(source), outputs, team, batch=options.batch)
    show([scorer], reader(source, subject.view, team, workers), lambda _: None)
    scorer.scores()
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
