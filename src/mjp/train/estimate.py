"""How much memory a recipe will take on each device, before it is run."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mjp.train.objective import Objective
from mjp.train.recipe import Recipe

TRIED = 2
"""Images that the measurement is made with."""


@dataclass(frozen=True)
class Memory:
    """Bytes on each device.

    Args:
        activations: what the backward pass needs of the forward pass, for one pass of a process; as
            without compilation, which saves some.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        parts = (self.weights, self.gradients, self.optimizer, self.average, self.activations)
        return sum(parts)


def estimate(recipe: Recipe, model: Any, chunk: int, processes: int = 1) -> Memory:
    """The memory of training with chunks of so many images, from one real pass over two images.

    Raises whatever the model raises on such images; so this is also a trial.
    """
    images = torch.zeros(TRIED, 3, *recipe.model.image_size)
    targets = torch.full((TRIED, model.num_classes), 1 / model.num_classes)
    if recipe.mjp.ratio > 0:
        model.grid_of(images)  # Whether such images can be cut into patches, plan or no plan.
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # Of a ratio too small: `mjp check` says so.
        plan = model.draw_plan(images, generator)
    kept: dict[int, int] = {}
    own = {parameter.data_ptr() for parameter in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    objective = Objective(model, recipe.run.precision).train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        classification, localization = objective(images, targets, plan)
        total = classification + localization
    total.backward()
    model.zero_grad(set_to_none=True)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    shards = processes if recipe.run.distribution == "fsdp" else 1
    return Memory(
        weights=weights // shards,
        gradients=weights // shards,
        optimizer=2 * weights // shards,
        average=weights // shards if recipe.optimizer.average else 0,
        activations=sum(kept.values()) * chunk // TRIED,
    )
