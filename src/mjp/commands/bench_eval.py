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

from mjp.commands.evaluating import claim
from mjp.commands.options import BenchEvalOptions
from mjp.commands.terminal import choose_device, hardware, meter, results
from mjp.core.precision import Precision, float32_precision
from mjp.core.ranges import check_count
from mjp.core.records import Record, append_records
from mjp.core.team import Team
from mjp.data.feed import worker_count
from mjp.data.folder import FolderSource
from mjp.data.reading import reader
from mjp.data.source import Source
from mjp.data.subset import Subset
from mjp.evaluate.jigsaw import RATIOS, JigsawScorer, JigsawSettings
from mjp.evaluate.showing import show
from mjp.models.opening import RANDOM, ModelName, open_model
from mjp.models.subject import Subject

PICTURE = (375, 500)
"""Height and width of the made-up pictures: the usual size of ImageNet's."""

DISTINCT = 512
"""Files to make up; more images are these again."""


def run(options: BenchEvalOptions) -> None:
    """Times both, in turn, and prints the ratio."""
    for name in ("batch", "draws", "rounds", "images"):
        if getattr(options, name) is not None:
            check_count(name, getattr(options, name))
    if options.workers is not None:
        check_count("workers", options.workers, 0)
    claim(options.out)
    device = choose_device(options.device)
    gpu = device.type == "cuda"
    name = options.model or ("deit_small_patch16_224" if gpu else "deit_tiny_patch16_224")
    count = options.images or (8192 if gpu else 64)
    precision: Precision = options.precision or ("bf16" if gpu else "fp32")
    settings = JigsawSettings(RATIOS, options.draws, options.seed)
    passes = 1 + len(RATIOS) * options.draws
    model = open_model(ModelName(name, name, RANDOM))
    subject = Subject.of(name, model, precision=precision).on(device)
    alone, whole = [], []
    with TemporaryDirectory() as folder, float32_precision(precision):
        source = _pictures(Path(folder), count, options.seed)
        few = Subset(source, np.arange(min(count, 64)), "a few")
        _time_alone(subject, len(few), passes, options.batch, device)  # Warms up.
        _time_whole(subject, few, settings, options, device)
        with meter("timing", 2 * options.rounds) as tell:
            for _ in range(options.rounds):
                alone.append(_time_alone(subject, count, passes, options.batch, device))
                tell(1)
                whole.append(_time_whole(subject, source, settings, options, device))
                tell(1)
    ratios = [one / other for one, other in zip(alone, whole, strict=True)]
    forwards = count * passes
    record = Record(
        "bench eval",
        {
            "model": name,
            "images": count,
            "passes": passes,
            "batch": options.batch,
            "precision": precision,
            "workers": worker_count(options.workers),
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
        title=f"{name}, {precision}, {count} pictures of {PICTURE[1]}x{PICTURE[0]}, "
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
    distinct = min(count, DISTINCT)
    for number in range(distinct):
        coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize(PICTURE[::-1], Image.Resampling.BICUBIC)
        noisy = np.asarray(picture, np.int16) + rng.integers(-12, 13, (*PICTURE, 1))
        buffer = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        (folder / "0" / f"{number:06d}.jpg").write_bytes(buffer.getvalue())
    return Subset(FolderSource(folder), np.arange(count) % distinct, f"{count} made-up pictures")


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
    workers = worker_count(options.workers)
    start = time.perf_counter()
    scorer = JigsawScorer(subject, settings, len(source), outputs, team, batch=options.batch)
    show([scorer], reader(source, subject.view, team, workers), lambda _: None)
    scorer.scores()
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
