"""Descent of many candidates at once: Adam, its signed form, and L-BFGS, each in a box.

A candidate is a row. No candidate's way depends on which others go along.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Optimizer = Literal["adam", "adam_signed", "lbfgs"]
Rows = Float[Tensor, "candidates values"]
Values = Float[Tensor, " candidates"]
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Loss and gradient of each candidate."""
Box = tuple[Float[Tensor, " values"], Float[Tensor, " values"]]
"""The lowest and the highest values that a candidate may have."""
Pair = tuple[Rows, Rows, Values]
"""A step of each candidate, the change of its gradient, and the inverse of their product.

A pair whose inverse is 0 changes nothing: that candidate does without it.
"""

MEMORY = 20
"""Steps that L-BFGS remembers."""
TRIES = 12
"""How often a line search halves a step."""


def descend(
    rows: Rows,
    evaluate: Evaluate,
    box: Box,
    optimizer: Optimizer,
    rates: list[float],
    tell: Callable[[], None],
) -> Rows:
    """Where the candidates come to in as many steps as there are learning rates.

    Args:
        rates: learning rates of each step; L-BFGS finds its own from there.
        tell: is called after every step.
    """
    if optimizer == "lbfgs":
        return _lbfgs(rows, evaluate, box, rates, tell)
    rows = rows.clone()
    state = torch.optim.Adam([rows], lr=rates[0])
    for rate in rates:
        state.param_groups[0]["lr"] = rate
        _, gradient = evaluate(rows)
        rows.grad = gradient.sign() if optimizer == "adam_signed" else gradient
        state.step()
        rows.clamp_(*box)
        tell()
    return rows.detach()


def _lbfgs(
    rows: Rows, evaluate: Evaluate, box: Box, rates: list[float], tell: Callable[[], None]
) -> Rows:
    """L-BFGS with a history and a line search for each candidate; no step makes a loss larger.

    A candidate that finds no way down, with its history and then without, has arrived.
    """
    low, high = box
    pairs: list[Pair] = []
    loss, gradient = evaluate(rows)
    failures = torch.zeros_like(loss)
    for rate in rates:
        arrived = failures >= 2
        if bool(arrived.all()):
            tell()
            continue
        # Values at a wall of the box that would go through it stay.
        free = ~(((rows <= low) & (gradient > 0)) | ((rows >= high) & (gradient < 0)))
        slope = gradient * free
        direction = _direction(pairs, slope) * free
        uphill = (direction * slope).sum(dim=1) >= 0
        direction = torch.where(uphill[:, None], -slope, direction)
        before = rows, gradient
        rows, loss, gradient, moved = _line_search(
            rows, loss, gradient, slope, direction * rate, arrived, evaluate, box
        )
        failures = torch.where(moved, 0, failures + 1)
        step, change = rows - before[0], gradient - before[1]
        pairs = [*_forgotten(pairs, uphill | ~moved)[1 - MEMORY :], _pair(step, change)]
        tell()
    return rows


def _pair(step: Rows, change: Rows) -> Pair:
    """What to remember of a step; nothing where the loss did not curve upwards along it."""
    curvature = (step * change).sum(dim=1)
    enough = curvature > 1e-10 * (change * change).sum(dim=1)
    return step, change, torch.where(enough, 1 / curvature, 0)


def _forgotten(pairs: list[Pair], rows: Bool[Tensor, " candidates"]) -> list[Pair]:
    """The pairs, but for these candidates, which start anew."""
    return [(step, change, inverse.masked_fill(rows, 0)) for step, change, inverse in pairs]


def _direction(pairs: list[Pair], gradient: Rows) -> Rows:
    """Minus the gradient, times the inverse curvature that the pairs tell."""
    left, shares = gradient, []
    for step, change, inverse in reversed(pairs):
        share = inverse * (step * left).sum(dim=1)
        left = left - share[:, None] * change
        shares.append(share)
    scale = 1 / gradient.norm(dim=1).clamp(min=torch.finfo(gradient.dtype).tiny)
    for _, change, inverse in pairs:
        own = 1 / (inverse * (change * change).sum(dim=1))
        scale = torch.where(inverse > 0, own, scale)
    left = scale[:, None] * left
    for (step, change, inverse), share in zip(pairs, reversed(shares), strict=True):
        left = left + (share - inverse * (change * left).sum(dim=1))[:, None] * step
    return -left


def _line_search(
    rows: Rows,
    loss: Values,
    gradient: Rows,
    slope: Rows,
    step: Rows,
    arrived: Bool[Tensor, " candidates"],
    evaluate: Evaluate,
    box: Box,
) -> tuple[Rows, Values, Rows, Bool[Tensor, " candidates"]]:
    """Halves the steps of those candidates that would not go down enough; the arrived stay."""
    start, start_loss = rows, loss
    size = torch.ones_like(loss)
    moved = torch.zeros_like(arrived)
    for _ in range(TRIES):
        new = (start + size[:, None] * step).clamp(*box)
        new_loss, new_gradient = evaluate(new)
        promised = (slope * (new - start)).sum(dim=1)
        enough = (promised < 0) & (new_loss <= start_loss + 1e-4 * promised)
        fits = ~moved & ~arrived & enough
        rows = torch.where(fits[:, None], new, rows)
        loss = torch.where(fits, new_loss, loss)
        gradient = torch.where(fits[:, None], new_gradient, gradient)
        moved = moved | fits
        if bool((moved | arrived).all()):
            break
        size = torch.where(moved, size, size / 2)
    return rows, loss, gradient, moved
