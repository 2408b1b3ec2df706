"""The block-wise rule, slowly and plainly: what the sampler is held against."""

import math
from dataclasses import dataclass, field
from random import Random


@dataclass
class OracleMask:
    """One mask, and the blocks that the rule accepted for it as (top, left, high, wide)."""

    masked: list[list[bool]]
    blocks: list[tuple[int, int, int, int]] = field(default_factory=list)

    def count(self) -> int:
        return sum(sum(row) for row in self.masked)


def draw_mask(rows: int, cols: int, num_masked: int, random: Random) -> OracleMask:
    """BEiT's rule, then the last block trimmed or grown to hit the count."""
    mask = OracleMask([[False] * cols for _ in range(rows)])
    last = (0, 0, 0, 0)
    while mask.count() < num_masked:
        remaining = num_masked - mask.count()
        accepted = False
        for _ in range(10):
            last, fits = draw_block(rows, cols, remaining, random)
            cells = covered(last)
            new = [cell for cell in cells if not mask.masked[cell[0]][cell[1]]]
            if fits and 1 <= len(new) <= remaining:
                for row, col in new:
                    mask.masked[row][col] = True
                mask.blocks.append(last)
                accepted = True
                break
        if not accepted:
            break
    complete(mask, last, num_masked, random)
    return mask


def draw_block(rows: int, cols: int, remaining: int, random: Random):
    largest = min(remaining, max(1.0, 75 / 196 * rows * cols))
    area = random.uniform(min(8, largest), largest)
    ratio = math.exp(random.uniform(math.log(0.3), math.log(1 / 0.3)))
    high = max(1, round(math.sqrt(area * ratio)))
    wide = max(1, round(math.sqrt(area / ratio)))
    fits = high < rows and wide < cols
    high, wide = min(high, rows), min(wide, cols)
    top, left = random.randint(0, rows - high), random.randint(0, cols - wide)
    return (top, left, high, wide), fits


def covered(block) -> list[tuple[int, int]]:
    top, left, high, wide = block
    return [(r, c) for r in range(top, top + high) for c in range(left, left + wide)]


def complete(mask: OracleMask, block, num_masked: int, random: Random) -> None:
    top, left, high, wide = block
    middle_row, middle_col = top + (high - 1) / 2, left + (wide - 1) / 2

    def distance(cell):
        row, col = cell
        outside = max(top - row, row - (top + high - 1), left - col, col - (left + wide - 1), 0)
        return outside, math.hypot(row - middle_row, col - middle_col), random.random()

    free = [
        (row, col)
        for row, line in enumerate(mask.masked)
        for col, masked in enumerate(line)
        if not masked
    ]
    missing = num_masked - mask.count()
    for row, col in sorted(free, key=distance)[:missing]:
        mask.masked[row][col] = True
