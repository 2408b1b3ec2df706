"""`mjp bench plan`: how long it takes to draw the jigsaw for a batch."""

import statistics
import time

import torch
from rich.table import Table

from mjp.commands.evaluating import claim
from mjp.commands.options import BenchPlanOptions
from mjp.commands.terminal import choose_device, hardware, progress, results
from mjp.core.errors import ConfigError
from mjp.core.records import Record, Scalar, append_records
from mjp.core.seeds import generator_for
from mjp.jigsaw import PatchGrid, sample_plan

DRAWS_IN_A_TIMING = 10


def run(options: BenchPlanOptions) -> None:
    """Measures and prints."""
    device = choose_device(options.device)
    grid = PatchGrid(options.rows, options.cols)
    if options.repeats < 2 or options.batch < 1:
        raise ConfigError("repeats must be at least 2, batch at least 1")
    claim(options.out)
    generator = generator_for(options.seed, "jigsaw", device=device)
    table = Table(title=f"{options.batch} images on a {grid} grid, {hardware(device)}")
    for column in ("ratio", "ms, median", "quartiles"):
        table.add_column(column, justify="right")
    records = []
    with progress() as bar:
        task = bar.add_task("drawing", total=len(options.ratios))
        for ratio in options.ratios:
            times = _times(grid, ratio, generator, options)
            low, middle, high = statistics.quantiles(times, n=4)
            table.add_row(f"{ratio:g}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
            conditions: dict[str, Scalar] = {
                "batch": options.batch,
                "grid": str(grid),
                "ratio": ratio,
                "seed": options.seed,
                "hardware": hardware(device),
                "torch": torch.__version__,
            }
            values: dict[str, Scalar] = {
                "ms": middle,
                "ms_quartile_low": low,
                "ms_quartile_high": high,
            }
            records.append(Record("bench plan", conditions, values))
            bar.advance(task)
    results().print(table)
    append_records(options.out / "records.jsonl", records)


def _times(
    grid: PatchGrid, ratio: float, generator: torch.Generator, options: BenchPlanOptions
) -> list[float]:
    """Milliseconds for one draw, many times; on a GPU in flight one after another."""
    times = []
    for number in range(options.repeats + 3):
        start = time.perf_counter()
        for _ in range(DRAWS_IN_A_TIMING):
            sample_plan(grid, options.batch, ratio, generator)
        if generator.device.type == "cuda":
            torch.cuda.synchronize(generator.device)
        if number >= 3:  # The first few compile kernels and fill caches.
            times.append((time.perf_counter() - start) / DRAWS_IN_A_TIMING * 1e3)
    return times
