"""Training and audit minimise one function: what a client sends is what training would apply."""

from dataclasses import replace

import pytest
import torch

import mjp
from mjp.catalog import read_recipe
from mjp.core.run import Run
from mjp.core.team import Team
from mjp.train.loop import Trainer


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """A step of training with mixup, a jigsaw and the localization loss: model, batch, plan."""
    recipe = read_recipe("digits")
    recipe = replace(
        recipe,
        model=replace(recipe.model, arguments={**recipe.model.arguments, "depth": 2}),
        mjp=replace(recipe.mjp, ratio=0.25, probability=1.0),
        augment=replace(recipe.augment, mixup=0.8),
        run=replace(recipe.run, batch=4, warmup_epochs=0),
        optimizer=replace(recipe.optimizer, clip=0.0),
    )
    task, run = (
        recipe.make_task(),
        Run(tmp_path_factory.mktemp("run"), Team(0, 1, torch.device("cpu")), 0),
    )
    data = task.data(run)
    data.prepare(lambda what, done, total: None)
    trainer = Trainer(task, task.model(data), data, run)
    batch = next(data.train(0, 1))
    return trainer, batch, trainer.draw_plan(batch)


def shared(trainer, batch, plan):
    scalars = {name: torch.tensor(v) for name, v in trainer.task.schedule(0.0).items()}
    rest = {name: value for name, value in batch.inputs.items() if name != "images"} | scalars
    return mjp.share(
        trainer.model,
        batch.inputs["images"],
        rest,
        plan,
        loss=trainer.task.loss,
        localization_weight=float(scalars["localization_weight"]),
    )


def test_a_client_sends_the_gradients_of_the_training_step(step, monkeypatch):
    trainer, batch, plan = step
    assert plan is not None
    assert plan.masked.any()
    assert (batch.inputs["targets"] > 0.05).sum(dim=1).max() > 1, "mixup mixes labels"
    update = shared(trainer, batch, plan)
    applied = {}

    def note() -> None:
        named = trainer.model.named_parameters()
        applied.update({n: p.grad.clone() for n, p in named if p.grad is not None})

    monkeypatch.setattr(trainer.optimizer, "step", note)
    trainer.train_step(iter([batch]))
    assert applied["locator.layers.0.weight"].abs().sum() > 0, "the localization loss has a part"
    for name, gradient in applied.items():
        torch.testing.assert_close(update.gradients[name], gradient, rtol=1e-4, atol=1e-6)


def test_what_the_training_step_sends_can_be_attacked(step):
    trainer, batch, plan = step
    trainer.model.eval()
    one = replace(batch, inputs={name: value[:1] for name, value in batch.inputs.items()})
    public = mjp.PublicModel.of(trainer.model, loss=trainer.task.loss)
    gaps = []
    for jigsaw in (None, plan[torch.tensor([0])]):
        images = one.inputs["images"] if jigsaw is None else jigsaw.apply(one.inputs["images"])
        result = mjp.attack("patch_solve", public, shared(trainer, one, jigsaw))
        assert result.applies
        errors = (public.normalized(result.images) - images).square().mean()
        gaps.append(float(errors / images.var()))
    assert gaps[0] < 0.01, "without a jigsaw the image comes back"
    assert gaps[1] > 0.1, "with one it does not"
