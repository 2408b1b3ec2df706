"""What the loop does at each step: rates, jigsaws, averages, first weights, what it tells."""

import json
import math
from dataclasses import replace

import pytest
import timm
import torch
from timm.utils import ModelEmaV3

import mjp
from mjp.catalog import read_recipe
from mjp.core.errors import CheckpointError, ConfigError
from mjp.core.run import Run
from mjp.core.team import Team
from mjp.data.batch import Calendar
from mjp.data.embedded import DigitsSource
from mjp.models.backbone import PatchProjection, with_fast_patches
from mjp.tasks.classify.config import ClassifyConfig
from mjp.tasks.classify.task import start_from
from mjp.train.check import estimate_memory
from mjp.train.config import OptimizerSettings, RunSettings
from mjp.train.loop import Trainer
from mjp.train.optimization import Average, make_optimizer, make_schedule
from tests.data.pictures import write_folder
from tests.models.kinds import KINDS, VITS
from tests.train.running import records, train

ALONE = Team(0, 1, torch.device("cpu"))


def tiny(**run) -> ClassifyConfig:
    recipe = read_recipe("digits")
    arguments = {"patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2}
    settings = {"epochs": 4, "warmup_epochs": 2, **run}
    return replace(
        recipe,
        model=replace(recipe.model, arguments=arguments),
        mjp=replace(recipe.mjp, probability=1.0, ratio=0.25),
        run=replace(recipe.run, **settings),
    )


def trainer(recipe: ClassifyConfig, out) -> Trainer:
    task, run = recipe.make_task(), Run(out, ALONE, 0)
    feed = task.data(run)
    feed.prepare(lambda what, done, total: None)
    return Trainer(task, task.model(feed), feed, run)


def test_there_is_no_jigsaw_before_the_end_of_warm_up(tmp_path):
    run = trainer(tiny(), tmp_path)
    start = run.calendar.at(2)
    for step, batch in ((s, b) for s, b in zip(range(60), run.data.train(0, 60), strict=True)):
        plan = run.draw_plan(batch)
        assert (plan is not None) == (step >= start)
        if plan is not None:
            assert plan.masked.sum(1).eq(4).all()


def test_a_jigsaw_happens_with_its_probability(tmp_path):
    recipe = tiny(warmup_epochs=0)
    run = trainer(replace(recipe, mjp=replace(recipe.mjp, probability=0.3)), tmp_path)
    batch = next(run.data.train(0, 1))
    drawn = [run.draw_plan(replace(batch, step=step)) is not None for step in range(400)]
    assert 0.22 < sum(drawn) / 400 < 0.38


class Asked(Team):
    """Two processes of which the other is never asked to stop; counts how often they speak."""

    times = 0

    def largest(self, values):
        Asked.times += 1
        return values


def test_several_processes_do_not_ask_each_other_at_every_step(tmp_path):
    run = trainer(tiny(checkpoint_minutes=5.0), tmp_path)
    run.run.team = Asked(0, 2, ALONE.device)
    run.begin(resume=False)
    with run.run.stoppable():
        for run.step in range(1, 200):
            assert run.agreed() == (0, False)
        assert Asked.times <= 200 / 64 + 2
        run.run._request.number = 15
        answers = [run.agreed()[0] for run.step in range(200, 270)]
    assert 15 in answers, "a stop is answered all the same"


def test_the_learning_rate_warms_up_and_follows_a_cosine():
    settings = OptimizerSettings(learning_rate=1e-3, warmup_rate=1e-6, final_rate=1e-5)
    run = RunSettings(epochs=10, warmup_epochs=2, batch=1024)
    calendar = Calendar(samples=10240, batch=1024, epochs=10)
    optimizer = make_optimizer(mjp.wrap(VITS["plain"].build()), settings, run.batch)
    schedule = make_schedule(optimizer, settings, run, calendar)
    rates = []
    for step in range(100):
        schedule.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    scale = 1024 / 512
    assert rates[0] == pytest.approx(scale * 1e-6)
    assert rates[10] == pytest.approx(scale * (1e-6 + (1e-3 - 1e-6) / 2))
    assert rates[20] == pytest.approx(scale * 1e-3)
    middle = scale * (1e-5 + (1e-3 - 1e-5) * (1 + math.cos(math.pi * 40 / 80)) / 2)
    assert rates[60] == pytest.approx(middle)
    assert rates[99] < scale * 1.2e-5
    assert rates == sorted(rates[:20]) + sorted(rates[20:], reverse=True)


def test_positions_norms_and_biases_are_not_decayed():
    model = mjp.wrap(VITS["plain"].build())
    optimizer = make_optimizer(model, OptimizerSettings(), 512)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[parameter]
            spared = parameter.ndim <= 1 or name in ("pos_embed", "cls_token", "unknown_position")
            assert (group["weight_decay"] == 0) == spared, name


def test_layer_decay_slows_the_lower_layers():
    model = mjp.wrap(VITS["plain"].build())
    settings = OptimizerSettings(layer_decay=0.5)
    optimizer = make_optimizer(model, settings, 512)
    schedule = make_schedule(optimizer, settings, RunSettings(), Calendar(512, 512, 300))
    schedule.step_update(20)
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    assert rates[named["head.weight"]] == pytest.approx(5e-4)
    assert rates[named["blocks.1.attn.qkv.weight"]] == pytest.approx(2.5e-4)
    assert rates[named["blocks.0.attn.qkv.weight"]] == pytest.approx(1.25e-4)
    assert rates[named["pos_embed"]] == rates[named["unknown_position"]]
    assert rates[named["pos_embed"]] < rates[named["blocks.0.attn.qkv.weight"]]


def test_the_average_is_timms():
    model = timm.create_model("resnet18", num_classes=3)
    theirs, ours = ModelEmaV3(model, decay=0.7), Average(model, decay=0.7)
    for step in range(100, 104):  # Late enough for the full decay.
        with torch.no_grad():
            for value in model.state_dict().values():
                if value.is_floating_point():
                    value.add_(torch.randn_like(value))
        theirs.update(model)
        ours.update(step)
    live = {name: value.clone() for name, value in model.state_dict().items()}
    with ours.lent():
        for name, value in theirs.module.state_dict().items():
            if value.is_floating_point():
                torch.testing.assert_close(model.state_dict()[name], value)
    for name, value in model.state_dict().items():
        assert value.equal(live[name])


def test_patches_projected_by_a_product_are_the_convolutions():
    for kind in ("plain", "distilled", "swin"):
        model = mjp.wrap(KINDS[kind].build()).eval()
        images = KINDS[kind].images()
        before, names = model(images), list(model.state_dict())
        assert isinstance(with_fast_patches(model).patch_embed.proj, PatchProjection)
        torch.testing.assert_close(model(images), before, rtol=1e-4, atol=1e-5)
        assert list(model.state_dict()) == names
    resnet = mjp.wrap(KINDS["resnet"].build())
    assert with_fast_patches(resnet) is resnet


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "resnet18"])
def test_other_backbones_train_too(name, tmp_path):
    arguments = {} if name == "resnet18" else {"embed_dim": 12, "window_size": 2}
    recipe = tiny(batch=8)
    recipe = replace(
        recipe,
        model=replace(recipe.model, name=name, image_size=(32, 32), arguments=arguments),
    )
    run = trainer(recipe, tmp_path)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    batches = run.data.train(400, 402)
    for step in (400, 401):
        run.step = step
        run.train_step(batches)
    run._check_finite()
    moved = [n for n, v in run.model.state_dict().items() if not v.equal(before[n])]
    assert len(moved) > 0.8 * len(before)


def test_a_run_can_start_from_weights_of_mjp_and_of_timm(tmp_path):
    model = mjp.wrap(VITS["plain"].build())
    mjp.save(model, tmp_path / "mine")
    plain = VITS["plain"].build()
    torch.save(plain.state_dict(), tmp_path / "timm.pth")
    for path, other in ((tmp_path / "mine", model), (tmp_path / "timm.pth", plain)):
        fresh = mjp.wrap(VITS["plain"].build())
        start_from(fresh, str(path))
        assert fresh.head.weight.equal(other.head.weight)
        assert fresh.pos_embed.equal(other.pos_embed)
        other_classes = mjp.create_model(
            "vit_tiny_patch16_224", num_classes=3, **VITS["plain"].arguments
        )
        head = other_classes.head.weight.clone()
        start_from(other_classes, str(path))
        assert other_classes.head.weight.equal(head), "a head for other classes is left alone"
        assert other_classes.pos_embed.equal(other.pos_embed)
    with pytest.raises(CheckpointError, match="neither a file, nor a folder, nor a model"):
        start_from(model, "nothing_of_the_kind")


def test_fine_tuning_starts_where_the_weights_are(tmp_path):
    assert train(tmp_path / "first") == 0
    first = records(tmp_path / "first", "train epoch")[-1]["values"]
    flags = ("--init", str(tmp_path / "first" / "final"), "--optimizer.layer-decay", "0.7")
    assert train(tmp_path / "second", *flags, "--run.warmup-epochs", "0") == 0
    second = records(tmp_path / "second", "train epoch")[0]["values"]
    assert second["classification"] < first["classification"] + 0.05
    assert second["localization"] < 1.2 * first["localization"] + 0.1


def test_fine_tuning_shows_images_as_the_weights_have_seen_them(tmp_path):
    recipe = read_recipe("digits")
    form = replace(recipe.make_task().image_format(), mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.4))
    mjp.save(recipe.make_task().first_model(tuple("0123456789"), form), tmp_path / "first")
    tuned = replace(recipe, init=str(tmp_path / "first")).make_task()
    shown = tuned.image_format()
    assert shown.mean == (0.1, 0.2, 0.3)
    assert shown.std == (0.5, 0.5, 0.4)
    config = tmp_path / "first" / "config.json"
    content = json.loads(config.read_text())
    content["pretrained_cfg"]["mean"] = ["a", "b", "c"]
    config.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="as the mean of their images"):
        tuned.image_format()


def test_the_best_model_is_the_best_epochs_and_knows_its_classes(tmp_path):
    out = tmp_path / "run"
    assert train(out, "--run.epochs", "4", "--run.eval-every", "2") == 0
    epochs = [record["values"]["val_top1"] for record in records(out, "train epoch")]
    assert [value is None for value in epochs] == [True, False, True, False]
    [end] = records(out, "train end")
    assert end["values"]["best_top1"] == max(value for value in epochs if value is not None)
    assert end["values"]["last_top1"] == epochs[-1]
    model = mjp.load(out / "best").eval()
    assert list(model.pretrained_cfg["label_names"]) == list("0123456789")
    source = DigitsSource("val")
    feed = read_recipe("digits").make_task().feed(source, source, Run(tmp_path, ALONE, 0))
    feed.prepare(lambda what, done, total: None)
    right = total = 0
    with torch.no_grad():
        for batch in feed.validate():
            found = model(batch["images"]).argmax(1) == batch["labels"]
            right += int((found & batch["counted"]).sum())
            total += int(batch["counted"].sum())
    assert 100 * right / total == pytest.approx(end["values"]["best_top1"])


def test_a_batch_larger_than_the_set_still_validates_the_last_epoch(tmp_path):
    out = tmp_path / "run"
    flags = ("--run.batch", "4096", "--run.epochs", "5", "--run.eval-every", "2")
    assert train(out, *flags, "--run.warmup-epochs", "0") == 0
    epochs = records(out, "train epoch")
    assert [record["conditions"]["epoch"] for record in epochs] == [2, 5]
    assert all(record["values"]["val_top1"] is not None for record in epochs)


def test_a_validation_set_of_which_nothing_can_be_read_is_an_error(tmp_path, capsys):
    write_folder(tmp_path / "train", 24)
    write_folder(tmp_path / "val", 6)
    for path in (tmp_path / "val").rglob("*.png"):
        path.write_bytes(b"")
    flags = ("--data.source", "folder", "--data.root", str(tmp_path), "--run.batch", "8")
    for feed in ("workers", "resident"):
        more = ("--data.feed", feed, "--data.skip-corrupt", "--fresh")
        assert train(tmp_path / "run", *flags, *more) == 1
        assert "can be read" in capsys.readouterr().err


def test_memory_is_estimated_from_a_real_pass(tmp_path):
    recipe = tiny()
    task = recipe.make_task()
    model, batch = task.trial(Run(tmp_path, ALONE, 0))
    weights = sum(p.numel() * 4 for p in model.parameters())
    small, large = (estimate_memory(task, model, batch, chunk) for chunk in (16, 64))
    assert small["weights"] == small["gradients"] == weights
    assert small["optimiser"] == 2 * weights
    assert large["activations"] == 4 * small["activations"]
    per_token = small["activations"] / 16 / 17 / 24 / 4
    assert 20 < per_token < 120, "some dozens of numbers for each of a token's"
    sharded = replace(recipe, run=replace(recipe.run, distribution="fsdp")).make_task()
    assert estimate_memory(sharded, model, batch, 16, processes=4)["weights"] == weights // 4


def test_arguments_that_the_model_does_not_have_are_an_error():
    recipe = tiny()
    wrong = replace(recipe, model=replace(recipe.model, arguments={"colour": 3}))
    with pytest.raises(ConfigError, match="cannot be built so"):
        wrong.make_task().image_format()
