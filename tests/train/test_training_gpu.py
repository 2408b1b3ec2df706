"""Training on a GPU: the same images as on the CPU, no waiting in a step, equal CUDA graphs."""

from dataclasses import replace

import pytest
import torch

from mjp.catalog import read_recipe
from mjp.core.run import Run
from mjp.core.team import Team
from mjp.data.config import AugmentSettings
from mjp.data.embedded import PositionsSource
from mjp.tasks.classify.config import ClassifyConfig
from mjp.train.loop import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.unchecked]


def recipe(**run) -> ClassifyConfig:
    found = read_recipe("digits")
    settings = {"batch": 32, "warmup_epochs": 0, "precision": "fp32", "compile": "off", **run}
    return replace(
        found,
        model=replace(found.model, image_size=(32, 24)),
        mjp=replace(found.mjp, probability=1.0),
        augment=AugmentSettings(repeats=2),
        run=replace(found.run, **settings),
    )


def trainer(settings: ClassifyConfig, device: str, out) -> Trainer:
    source = PositionsSource("train", 64)
    task, run = settings.make_task(), Run(out, Team(0, 1, torch.device(device)), 0)
    feed = task.feed(source, source, run)
    feed.prepare(lambda what, done, total: None)
    return Trainer(task, task.model(feed), feed, run)


def test_the_resident_feed_gives_what_it_gives_on_the_cpu(tmp_path):
    settings = replace(recipe(), augment=AugmentSettings(erasing=0.0))
    here, there = (
        list(trainer(settings, device, tmp_path).data.train(0, 3)) for device in ("cpu", "cuda")
    )
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(other.inputs["targets"].cpu(), one.inputs["targets"])
        gap = (other.inputs["images"].cpu() - one.inputs["images"]).abs()
        # A level of 255 is about 0.02; rounding may differ by one, and an operation may widen it.
        assert gap.mean() < 0.01
        assert gap.quantile(0.99) < 0.2


def test_nothing_in_a_step_waits_for_the_gpu(tmp_path):
    run = trainer(recipe(), "cuda", tmp_path)
    batches = run.data._batches(0, 8)
    for _ in range(4):  # Compiles and fills caches.
        run.train_step(batches)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            run.train_step(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("mode", "localization"), [("on", "mlp"), ("graphs", "mlp"), ("graphs", "pca")]
)
def test_compiled_steps_have_the_losses_of_plain_ones(mode, localization, tmp_path):
    found = []
    for compiled in ("off", mode):
        torch._dynamo.reset()
        settings = recipe(compile=compiled)
        settings = replace(
            settings,
            model=replace(settings.model, drop_path=0.0),
            mjp=replace(settings.mjp, localization=localization),
        )
        run = trainer(settings, "cuda", tmp_path)
        batches = run.data.train(0, 6)
        for step in range(6):
            run.step = step
            run.train_step(batches)
        found.append(list(run._sums["epoch"].means(run.run.team).values()))
    assert found[1] == pytest.approx(found[0], rel=2e-3)
