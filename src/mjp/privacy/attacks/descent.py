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
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Loss and gradient of each candidate."""


def descend(
    start: Rows,
    evaluate: Evaluate,
    *,
    low: Float[Tensor, " values"],
    high: Float[Tensor, " values"],
    optimizer: Optimizer,
    learning_rates: list[float],
    tell: Callable[[], None],
) -> Rows:
    """Where the candidates come to in as many steps as there are learning rates.

    Args:
        low, high: the box that no candidate leaves.
        learning_rates: of each step; L-BFGS finds its own from there.
        tell: is called after every step.
    """
    if optimizer == "lbfgs":
        return _lbfgs(start, evaluate, low, high, learning_rates, tell)
    rows = start.clone()
    state = torch.optim.Adam([rows], lr=learning_rates[0])
    for rate in learning_rates:
        state.param_groups[0]["lr"] = rate
        _, gradient = evaluate(rows)
        rows.grad = gradient.sign() if optimizer == "adam_signed" else gradient
        state.step()
        rows.clamp_(low, high)
        tell()
    return rows.detach()


def _lbfgs(
    rows: Rows,
    evaluate: Evaluate,
    low: Tensor,
    high: Tensor,
    rates: list[float],
    tell: Callable[[], None],
) -> Rows:
    """L-BFGS with a history and a line search for each candidate; no step makes a loss larger.

    A candidate that finds no way down, with its history and then without, has arrived.
    """
    history = _History(memory=20)
    loss, gradient = evaluate(rows)
    failures = torch.zeros_like(loss)
    for rate in rates:
        arrived = failures >= 2
        if bool(arrived.all()):
            tell()
            continue
        free = ~_pressed(rows, gradient, low, high)
        slope = gradient * free
        direction = history.direction(slope) * free
        uphill = (direction * slope).sum(dim=1) >= 0
        history.forget(uphill)
        direction = torch.where(uphill[:, None], -slope, direction)
        found = _line_search(rows, loss, slope, direction * rate, arrived, evaluate, low, high)
        new_rows, new_loss, new_gradient, moved = found
        failures = torch.where(moved, 0, failures + 1)
        history.add(new_rows - rows, new_gradient - gradient)
        history.forget(~moved)
        rows = torch.where(moved[:, None], new_rows, rows)
        loss = torch.where(moved, new_loss, loss)
        gradient = torch.where(moved[:, None], new_gradient, gradient)
        tell()
    return rows


class _History:
    """The last steps of each candidate and how its gradient changed along them."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, step: Rows, change: Rows) -> None:
        """Remembers a step, but for candidates whose loss did not curve upwards along it."""
        curvature = (step * change).sum(dim=1)
        enough = curvature > 1e-10 * (change * change).sum(dim=1)
        inverse = torch.where(enough, 1 / curvature, 0)
        self._pairs = [*self._pairs[1 - self._memory :], (step, change, inverse)]

    def forget(self, rows: Bool[Tensor, " candidates"]) -> None:
        """Starts these candidates anew."""
        self._pairs = [(s, y, inverse.masked_fill(rows, 0)) for s, y, inverse in self._pairs]

    def direction(self, gradient: Rows) -> Rows:
        """Minus the gradient, times the inverse curvature that the history tells.

        A pair whose inverse curvature is 0 changes nothing: that candidate does without it.
        """
        left, shares = gradient, []
        for step, change, inverse in reversed(self._pairs):
            share = inverse * (step * left).sum(dim=1)
            left = left - share[:, None] * change
            shares.append(share)
        scale = 1 / gradient.norm(dim=1).clamp(min=torch.finfo(gradient.dtype).tiny)
        for _, change, inverse in self._pairs:
            known = inverse > 0
            own = 1 / (inverse * (change * change).sum(dim=1))
            scale = torch.where(known, own, scale)
        left = scale[:, None] * left
        for (step, change, inverse), share in zip(self._pairs, reversed(shares), strict=True):
            left = left + (share - inverse * (change * left).sum(dim=1))[:, None] * step
        return -left


def _line_search(
    rows: Rows,
    loss: Float[Tensor, " candidates"],
    slope: Rows,
    step: Rows,
    arrived: Bool[Tensor, " candidates"],
    evaluate: Evaluate,
    low: Tensor,
    high: Tensor,
    tries: int = 12,
) -> tuple[Rows, Float[Tensor, " candidates"], Rows, Bool[Tensor, " candidates"]]:
    """Halves the steps of those candidates that would not go down enough; the arrived stay."""
    size = torch.ones_like(loss)
    best, best_loss, best_gradient = rows, loss, slope
    moved = torch.zeros_like(loss, dtype=torch.bool)
    for _ in range(tries):
        new = (rows + size[:, None] * step).clamp(low, high)
        new_loss, new_gradient = evaluate(new)
        promised = (slope * (new - rows)).sum(dim=1)
        fits = ~moved & ~arrived & (promised < 0) & (new_loss <= loss + 1e-4 * promised)
        best = torch.where(fits[:, None], new, best)
        best_loss = torch.where(fits, new_loss, best_loss)
        best_gradient = torch.where(fits[:, None], new_gradient, best_gradient)
        moved = moved | fits
        if bool((moved | arrived).all()):
            break
        size = torch.where(moved, size, size / 2)
    return best, best_loss, best_gradient, moved


def _pressed(rows: Rows, gradient: Rows, low: Tensor, high: Tensor) -> Tensor:
    """Values at a wall of the box that would go through it."""
    return ((rows <= low) & (gradient > 0)) | ((rows >= high) & (gradient < 0))
