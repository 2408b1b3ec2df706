"""What every task has without code of its own: a task's tests inherit `TaskContract`."""

import math
from dataclasses import replace

import pytest
import torch

import mjp
from mjp.catalog import read_recipe, tasks
from mjp.cli import main
from mjp.core.run import Run
from mjp.core.team import Team
from mjp.train.loop import Trainer
from tests.forks import Fork
from tests.train.running import assert_same, finish, records


class TaskContract:
    """Facts that hold for a task, tested through one of its recipes, on the CPU."""

    recipe: str
    """The name of a recipe that trains in seconds."""
    flags: tuple[str, ...] = ()
    """What makes it smaller still."""
    attack = "patch_solve"
    """An attack that its gradients can be audited with."""

    short = ("--run.epochs", "2", "--run.warmup-epochs", "0", "--run.log-every", "5")

    @classmethod
    def command(cls, *flags: object) -> list[str]:
        return ["train", cls.recipe, *cls.short, *cls.flags, *map(str, flags)]

    @classmethod
    def train(cls, *flags: object) -> int:
        with pytest.raises(SystemExit) as stop:
            main(cls.command(*flags))
        return stop.value.code

    @pytest.fixture
    def trainer(self, tmp_path):
        config = read_recipe(self.recipe)
        config = replace(config, run=replace(config.run, warmup_epochs=0))
        task, run = config.make_task(), Run(tmp_path, Team(0, 1, torch.device("cpu")), 0)
        data = task.data(run)
        data.prepare(lambda what, done, total: None)
        return Trainer(task, task.model(data), data, run)

    @pytest.fixture(scope="class")
    @classmethod
    def straight(cls, tmp_path_factory):
        """A run that nobody interrupts."""
        out = tmp_path_factory.mktemp(cls.recipe) / "run"
        assert cls.train("--out", out) == 0
        return out

    def test_it_is_in_the_catalog(self):
        assert any((task.recipes / f"{self.recipe}.toml").is_file() for task in tasks().values())

    def test_its_losses_are_finite_and_their_gradients_reach_the_parameters(self, trainer):
        batch = next(trainer.data.train(0, 1))
        scalars = {n: torch.tensor(v) for n, v in trainer.task.schedule(0.5).items()}
        losses = trainer.objective(batch={**batch.inputs, **scalars}, plan=None)
        assert "loss" in losses
        assert all(value.shape == () and value.isfinite() for value in losses.values())
        losses["loss"].backward()
        reached = [
            p.grad is not None and p.grad.abs().sum() > 0 for p in trainer.model.parameters()
        ]
        assert sum(reached) > 0.8 * len(reached)

    def test_its_records_bear_the_names_of_its_losses_scalars_and_metrics(self, straight, trainer):
        task = trainer.task
        batch = next(trainer.data.train(0, 1))
        scalars = {n: torch.tensor(v) for n, v in task.schedule(0.0).items()}
        names = {*task.loss(trainer.model, {**batch.inputs, **scalars}, None), *scalars}
        epochs = records(straight, "train epoch")
        assert len(epochs) == 2
        for record in (*epochs, *records(straight, "train step")):
            assert names <= set(record["values"])
            assert all(math.isfinite(record["values"][name]) for name in names)
        first = task.metric_names[0]
        for record in epochs:
            self.check_metrics({n: record["values"][f"val_{n}"] for n in task.metric_names})
        averaged = [record["values"][f"average_val_{first}"] for record in epochs]
        plain = [record["values"][f"val_{first}"] for record in epochs]
        scores = plain if averaged[0] is None else averaged
        [end] = records(straight, "train end")
        assert end["values"][f"best_{first}"] == max(scores)
        assert end["values"][f"last_{first}"] == scores[-1]

    def check_metrics(self, values: dict[str, float]) -> None:
        """Whether the metrics are in their range."""
        assert all(math.isfinite(value) for value in values.values())

    def test_it_is_shown_on_a_terminal_and_on_a_page(self, tmp_path, capsys):
        assert self.train("--out", tmp_path / "run") == 0
        shown = capsys.readouterr().out
        assert shown.split()[:2] == ["epoch", "loss"]
        with pytest.raises(SystemExit) as stop:
            main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
        assert stop.value.code == 0
        assert "What came out of training" in (tmp_path / "page.html").read_text()

    def test_what_it_will_take_can_be_checked(self, capsys):
        with pytest.raises(SystemExit) as stop:
            main(["check", self.recipe, *self.flags])
        assert stop.value.code == 0
        assert "memory of a device" in capsys.readouterr().out

    def test_a_run_that_is_resumed_comes_to_bitwise_the_same(self, straight, tmp_path, monkeypatch):
        step = Trainer.train_step

        def interrupted(trainer, batches):
            if trainer.step == 8:
                raise KeyboardInterrupt
            step(trainer, batches)

        out = ("--out", tmp_path / "run", "--run.checkpoint-minutes", "0")
        monkeypatch.setattr(Trainer, "train_step", interrupted)
        assert self.train(*out) == 130
        monkeypatch.setattr(Trainer, "train_step", step)
        assert self.train(*out, "--resume") == 0
        assert_same(tmp_path / "run", straight)

    def test_two_processes_come_to_what_one_comes_to(self, straight, tmp_path):
        code, _, err = finish(Fork(self.command("--out", tmp_path / "run"), team=2))
        assert code == 0, err
        ours, theirs = (records(out, "train epoch") for out in (tmp_path / "run", straight))
        for one, other in zip(ours, theirs, strict=True):
            for name, value in other["values"].items():
                # A last digit can turn what an image is taken for.
                tolerance = {"abs": 1.0} if "val_" in name else {"rel": 1e-3}
                assert one["values"][name] == pytest.approx(value, **tolerance), name

    def test_its_gradients_can_be_audited(self, trainer):
        trainer.model.eval()
        batch = next(trainer.data.train(0, 1))
        scalars = {n: torch.tensor(v) for n, v in trainer.task.schedule(0.5).items()}
        one = {name: value[:1] for name, value in batch.inputs.items()}
        images = one.pop("images")
        loss = trainer.task.loss
        update = mjp.share(trainer.model, images, {**one, **scalars}, loss=loss)
        loss(trainer.model, {"images": images, **one, **scalars}, None)["loss"].backward()
        for name, parameter in trainer.model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(update.gradients[name], parameter.grad)
        result = mjp.attack(self.attack, mjp.PublicModel.of(trainer.model, loss=loss), update)
        assert result.applies, result
        assert torch.isfinite(result.images).all()
