"""Training: the flow of `mjp train`, and the `Trainer` that makes its steps."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mjp.core.display import PLAIN_SECONDS, say
from mjp.core.errors import StoppedError, TrainingError
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.core.seeds import generator_for, seed_for
from mjp.data.batch import Batch, Calendar
from mjp.data.feed import Feed
from mjp.jigsaw import JigsawPlan
from mjp.train import folder
from mjp.train.config import TrainOptions
from mjp.train.distribution import begin_pass, spread, synchronised
from mjp.train.monitor import Clock, Means, Monitor
from mjp.train.optimization import Average, make_optimizer, make_schedule
from mjp.train.task import Objective, Task

TIMED = "train timing"
"""The kind of records that hold times: all that differs between two equal runs."""

AGREE_SECONDS = 1.0
"""How long several processes train on before they ask each other whether to stop."""

AGREE_STEPS = 64
"""How many steps they make at most before they ask."""


def train(options: TrainOptions[Any]) -> None:
    """Trains by a recipe, or goes on training: data, model, steps, validations, checkpoints."""
    config = options.recipe
    task, settings = config.make_task(), config.run
    out = Path("runs") / "-".join(filter(None, (Path(options.name).stem, options.variant)))
    out = options.out or out
    with Run.open(out, device=settings.device, seed=settings.seed) as run:
        if run.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        data = task.data(run)
        model = task.model(data)
        folder.claim(run, options)
        data.prepare(_preparing(run))
        trainer = Trainer(task, model, data, run)
        trainer.begin(resume=options.resume)
        calendar = trainer.calendar
        with (
            run.stoppable(),
            run.progress("training", calendar.steps - trainer.step) as advance,
            closing(Monitor(run, trainer.step, advance)) as monitor,
            closing(data.train(trainer.step, calendar.steps)) as batches,
        ):
            while trainer.step < calendar.steps:
                trainer.train_step(batches)
                trainer.step += 1
                if settings.log_every and trainer.step % settings.log_every == 0:
                    trainer.log(monitor)
                finished = calendar.finished(trainer.step)
                if finished is not None:
                    trainer.end_epoch(finished + 1, monitor)
                monitor.advance(1)
                stop, due = trainer.agreed()
                if stop or due or trainer.step == calendar.steps:
                    path = trainer.checkpoint()
                if stop and trainer.step < calendar.steps:
                    raise StoppedError(
                        f"stopped at step {trainer.step} of {calendar.steps}; everything is in "
                        f"{path}; go on with --resume --out {out}",
                        stop,
                    )
        end = trainer.finish()
        if run.leads:
            folder.report(run, task, end, data)


class Trainer:
    """A model in training.

    Every random draw is a function of the seed and the step, so a run that goes on from a
    checkpoint does bit for bit what the run that was not interrupted did.
    """

    def __init__(self, task: Task[Any], model: nn.Module, data: Feed, run: Run) -> None:
        self.task = task
        self.data = data
        self.run = run
        self.settings = task.config.run
        optimizer, settings = task.config.optimizer, self.settings
        self.model = model.to(run.device).train()
        self.objective = Objective(self.model, task).train()
        self.forward, self._judged = spread(
            self.objective, run.team, settings.distribution, settings.compile
        )
        self.calendar = Calendar(data.samples, settings.batch, settings.epochs)
        self.optimizer = make_optimizer(self.model, optimizer, settings.batch)
        self._schedule = make_schedule(self.optimizer, optimizer, settings, self.calendar)
        self._clip = optimizer.clip
        self._average = Average(self.model, optimizer.average) if optimizer.average else None
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.step = 0
        self._scores: dict[str, Any] = {"best": None, "best_epoch": None, "last": None}
        self._unsaved_best: dict[str, Tensor] | None = None
        self._sums = {"epoch": Means(run.device), "interval": Means(run.device)}
        self._bad_step = torch.full((), -1, dtype=torch.int64, device=run.device)
        self._clock = Clock()
        self._ask_at = 0

    def begin(self, *, resume: bool) -> None:
        """Goes back to the newest checkpoint, or notes that a run begins."""
        if resume and self._restore():
            note = {"note": f"resumed at step {self.step}"}
            self.run.write(Record(TIMED, note, {}), environment=False)
        else:
            device = self.run.device
            facts: dict[str, Scalar] = {
                "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
                **self.task.facts(self.data),
                "steps": self.calendar.steps,
                "processes": self.run.team.size,
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            }
            self.run.write(Record("train start", self.task.config.conditions(), facts))
        self._clock = Clock(self.step)

    def train_step(self, batches: Iterator[Batch]) -> None:
        """One step of the optimiser; nothing in it waits for the device."""
        step, settings, device = self.step, self.settings, self.run.device
        self._schedule.step_update(step)
        scalars = {n: torch.full((), v, device=device) for n, v in self._scalars().items()}
        sums = torch.zeros((), dtype=torch.float64, device=device)
        for index in range(settings.accumulation):
            batch = next(batches)
            # After the batch, because starting workers, or decoding here, draws from torch's own
            # generator too.
            rank, place = self.run.team.rank, step * settings.accumulation + index
            torch.manual_seed(seed_for(settings.seed, "model", rank=rank, step=place))
            plan = self.draw_plan(batch)
            begin_pass(settings.compile)
            with synchronised(self.forward, index == settings.accumulation - 1):
                losses = self.forward(batch={**batch.inputs, **scalars}, plan=plan)
                (losses["loss"] / settings.accumulation).backward()
            values = torch.stack(list(losses.values())).detach() / settings.accumulation
            sums = sums + values.double()
        norm = torch.zeros((), dtype=torch.float64, device=device)
        if self._clip:
            total: Any = nn.utils.clip_grad_norm_(self._parameters, self._clip, foreach=True)
            norm = (total.full_tensor() if hasattr(total, "full_tensor") else total).double()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self._average is not None:
            self._average.update(step)
        is_bad = (self._bad_step < 0) & ~torch.isfinite(sums[list(losses).index("loss")] + norm)
        self._bad_step = torch.where(is_bad, step, self._bad_step)
        for summed in self._sums.values():
            summed.add((*losses, "gradient_norm"), torch.cat((sums, norm[None])))

    def draw_plan(self, batch: Batch) -> JigsawPlan | None:
        """The jigsaw of a pass: its rows of the step's, none before the end of warm-up."""
        if batch.step < self.calendar.at(self.settings.warmup_epochs):
            return None
        generator = generator_for(self.settings.seed, "jigsaw", step=batch.step)
        samples, rows = self.settings.batch, batch.rows
        # As many samples as the step has, without their memory: only their shape is looked at.
        whole = {n: v[:1].expand(samples, *v.shape[1:]) for n, v in batch.inputs.items()}
        plan = self.task.draw_plan(self.model, whole, generator)
        return plan if plan is None or len(rows) == samples else plan[rows.to(self.run.device)]

    def log(self, monitor: Monitor) -> None:
        """Records the means of the steps since the last such record, and shows them."""
        values, epoch = self._values("interval"), self.calendar.epoch_of(self.step - 1) + 1
        conditions = {"step": self.step, "epoch": epoch}
        self.run.write(Record("train step", conditions, values), environment=False)
        monitor.plot("step", self.step, values)
        _, rate = self._clock.epoch(self.step)
        words = [
            f"epoch {epoch} of {self.settings.epochs}",
            *(f"{name} {value:.4g}" for name, value in self._main(values).items()),
            f"{rate * self.settings.batch:,.0f} images/s",
        ]
        if memory := self._peak_memory():
            words.append(f"{memory / 2**30:.1f} GiB")
        monitor.advance(0, ", ".join(words))

    def end_epoch(self, epoch: int, monitor: Monitor) -> None:
        """Records an epoch's losses, validates, and keeps the best weights."""
        losses = self._values("epoch")  # Waits for the device: the time is whole.
        seconds, rate = self._clock.epoch(self.step, ends=True)
        plain: dict[str, float] = {}
        averaged: dict[str, float] = {}
        first, settings = self.task.metric_names[0], self.settings
        with self._clock.paused():
            if epoch % settings.eval_every == 0 or epoch == settings.epochs:
                plain = self._validate()
                if self._average is not None:
                    with self._average.lent():
                        averaged = self._validate()
                self._keep_best(averaged.get(first, plain[first]), epoch)
            scores = {f"val_{name}": plain.get(name) for name in self.task.metric_names}
            values = {**losses, **scores, f"average_val_{first}": averaged.get(first)}
            times = {"images_per_second": rate * settings.batch, "seconds": seconds}
            conditions = {"epoch": epoch, "step": self.step}
            ended = Record("train epoch", conditions, values), Record(TIMED, conditions, times)
            self.run.write(*ended, environment=False)
            monitor.plot("epoch", self.step, values | times)
        cells = self._main(values)
        if self._average is None:
            cells.pop(f"average_val_{first}")
        monitor.row(epoch, cells, times)

    def agreed(self) -> tuple[int, bool]:
        """The signal to stop by and whether a checkpoint is due, the same in every process.

        Several processes ask each other about once a second, at steps that they all know.
        """
        minutes, team = self.settings.checkpoint_minutes, self.run.team
        due = time.monotonic() - self._clock.checkpointed >= 60 * minutes
        if team.size == 1:
            return self.run.stop_signal, due
        if self.step < self._ask_at:
            return 0, False
        _, rate = self._clock.epoch(self.step)
        flags = torch.tensor([self.run.stop_signal, due, -rate], dtype=torch.float64)
        stop, due, slowest = team.largest(flags).tolist()
        steps = int(min(AGREE_SECONDS, 60 * minutes) * -slowest)
        self._ask_at = self.step + min(AGREE_STEPS, max(1, steps))
        return int(stop), bool(due)

    def checkpoint(self) -> Path:
        """Writes all that the run needs to go on, and the best weights so far."""
        team = self.run.team
        with self._clock.paused():
            self._check_finite()
            if self._unsaved_best is not None:
                self._save_model("best", self._unsaved_best)
                self._unsaved_best = None
            state = folder.State(
                **self._scores,
                step=self.step,
                records=self.run.size(),
                recipe=self.task.config.to_toml(),
                sums={name: summed.sums(team) for name, summed in self._sums.items()},
            )
            path = folder.write_checkpoint(self.run.out, self._tensors(), state, team)
        self._clock.checkpointed = time.monotonic()
        return path

    def finish(self) -> dict[str, Scalar]:
        """Writes the last model, and records what came out; gives it."""
        self._save_model("final", self._weights())
        first, scores = self.task.metric_names[0], self._scores
        values: dict[str, Scalar] = {
            f"best_{first}": scores["best"],
            "best_epoch": scores["best_epoch"],
            f"last_{first}": scores["last"],
            "unreadable_images": len(self.data.problems),
        }
        times: dict[str, Scalar] = {
            "seconds": time.monotonic() - self._clock.begun,
            "peak_memory": self._peak_memory(),
        }
        self.run.write(Record("train end", {}, values), Record(TIMED, {}, times), environment=False)
        return {**values, **times}

    def _scalars(self) -> dict[str, float]:
        return self.task.schedule(min(1.0, self.step / self.calendar.steps))

    def _values(self, since: str) -> dict[str, Scalar]:
        """Means over processes and steps, which begin anew, and what changes over training."""
        self._check_finite()
        values: dict[str, Scalar] = {**self._sums[since].means(self.run.team)}
        self._sums[since].clear()
        if not self._clip:
            values["gradient_norm"] = None
        rate = max(group["lr"] for group in self.optimizer.param_groups)
        return {**values, "learning_rate": rate, **self._scalars()}

    def _main(self, values: Mapping[str, Scalar]) -> dict[str, Any]:
        """Of such values, those that a person is shown."""
        hidden = {"gradient_norm", "learning_rate", *self._scalars()}
        return {name: value for name, value in values.items() if name not in hidden}

    def _check_finite(self) -> None:
        bad = int(self.run.team.largest(self._bad_step))
        if bad < 0:
            return
        good = folder.checkpoints(self.run.out)
        kept = f"the last good checkpoint is {good[-1]}" if good else "there is no checkpoint yet"
        raise TrainingError(
            f"the loss is no number any more since step {bad} (epoch "
            f"{self.calendar.epoch_of(bad) + 1}); {kept}. A lower --optimizer.learning-rate, a "
            "longer --run.warmup-epochs or a smaller --optimizer.clip may help"
        )

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        """What the task measures, with the weights that the model has now."""

        def predict(*inputs: Any) -> Any:
            begin_pass(self.settings.compile)
            return self._judged(*inputs)

        self.objective.eval()
        measured = self.task.metrics(predict, self.data.validate(), self.run)
        self.objective.train()
        return measured

    def _keep_best(self, score: float, epoch: int) -> None:
        """Notes the best weights; they are written with the next checkpoint."""
        self._scores["last"] = score
        if self._scores["best"] is None or score > self._scores["best"]:
            self._scores |= {"best": score, "best_epoch": epoch}
            weights = self._weights()
            self._unsaved_best = {name: value.detach().clone() for name, value in weights.items()}

    def _weights(self) -> dict[str, Tensor]:
        """Those of the average, if there is one."""
        return self.model.state_dict() | (self._average.values if self._average else {})

    def _save_model(self, name: str, weights: Mapping[str, Any]) -> None:
        whole = {  # Every process has to ask for the shards of the others.
            name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().cpu()
            for name, value in weights.items()
        }
        if self.run.leads:
            self.task.save(whole, self.data, self.run.out / name)

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors that a checkpoint holds."""
        parts = {"model": self.model.state_dict()}
        for name, parameter in self.model.named_parameters():
            parts[f"optimizer.{name}"] = self.optimizer.state[parameter]
        if self._average is not None:
            parts["average"] = self._average.values
        return {f"{part}.{name}": value for part in parts for name, value in parts[part].items()}

    def _restore(self) -> bool:
        """Goes back to the newest whole checkpoint, if there is one; cuts later records off."""
        shout = say if self.run.leads else lambda text: None
        state = folder.read_checkpoint(self.run.out, self._tensors(), self.run.team, shout)
        if state is None:
            shout(f"there is no checkpoint in {self.run.out} yet; starting from the beginning")
            self.run.cut(0)
            return False
        self.run.cut(state.records)
        self.step = state.step
        self._scores = {name: getattr(state, name) for name in self._scores}
        for name, sums in state.sums.items():
            self._sums[name].restore(sums)
        shout(f"resuming at step {self.step} of {self.calendar.steps}")
        return True

    def _peak_memory(self) -> int | None:
        device = self.run.device
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _preparing(run: Run) -> Callable[[str, int, int], None]:
    """Shows how far the feed's preparation is."""
    printed = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        nonlocal printed
        if run.leads and (done == total or time.monotonic() - printed > PLAIN_SECONDS):
            printed = time.monotonic()
            say(f"{what}: {done} of {total}")

    return show
