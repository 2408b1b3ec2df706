"""The training loop: steps, validation, records and checkpoints, from wherever the run stands."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mjp.core.configuration import to_toml
from mjp.core.errors import TrainingError
from mjp.core.interruption import StoppedError, StopRequest, stop_requests
from mjp.core.records import Scalar
from mjp.core.seeds import generator_for, seed_for
from mjp.core.team import Team
from mjp.data.batch import Batch, Calendar
from mjp.data.feed import Feed
from mjp.models.backbone import with_fast_patches
from mjp.models.checkpoint import save
from mjp.train import snapshots
from mjp.train.clock import Clock
from mjp.train.distribution import begin_pass, spread, synchronised
from mjp.train.journal import EpochReport, Journal, Losses, StepReport, Watcher
from mjp.train.objective import Objective
from mjp.train.optimization import Average, make_optimizer, make_schedule
from mjp.train.recipe import Recipe
from mjp.train.setup import make_model
from mjp.train.validation import Validation, validate


@dataclass(frozen=True)
class Outcome:
    """What a finished run came to."""

    best: float
    best_epoch: int
    last: float
    seconds: float


class Trainer:
    """Carries a recipe out, into a folder.

    Every random draw is a function of the seed and the step, so a run that goes on from a
    checkpoint does bit for bit what the run that was not interrupted did.
    """

    def __init__(
        self, recipe: Recipe, model: Any, feed: Feed, team: Team, out: Path, watcher: Watcher
    ) -> None:
        self.recipe = recipe
        self.feed = feed
        self.team = team
        self.out = out
        self.watcher = watcher
        self.model = with_fast_patches(model.to(team.device).train())
        self.objective = Objective(self.model, recipe.run.precision).train()
        run = recipe.run
        self.forward, self.judged = spread(self.objective, team, run.distribution, run.compile)
        self.calendar = Calendar(feed.samples, run.batch, run.epochs)
        self.optimizer = make_optimizer(self.model, recipe.optimizer, run.batch)
        self.schedule = make_schedule(self.optimizer, recipe.optimizer, run, self.calendar)
        decay = recipe.optimizer.average
        self.average = Average(self.model, decay) if decay else None
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.step = 0
        self.best: float | None = None
        self.best_epoch: int | None = None
        self.last: float | None = None
        self._unsaved_best: dict[str, Tensor] | None = None
        # Sums over steps: their number, the two losses, the total, the norm of the gradient.
        self._epoch = torch.zeros(5, dtype=torch.float64, device=team.device)
        self._interval = torch.zeros_like(self._epoch)  # Since the last record of a step.
        self._bad_step = torch.full((), -1, dtype=torch.int64, device=team.device)
        self._clock = Clock()

    def run(self, *, resume: bool) -> Outcome:
        """Trains to the end, or to the next signal to stop."""
        kept = self._restore() if resume else 0
        self.journal = Journal(self.out, kept=kept, step=self.step, leads=self.team.leads)
        if kept:
            self.journal.note(f"resumed at step {self.step}")
        else:
            self.journal.start(self.recipe, self._facts())
        try:
            with stop_requests() as request:
                self._train(request)
            return self._finish()
        finally:
            self.journal.close()

    def _train(self, request: StopRequest) -> None:
        self._clock.start(self.step)
        batches = self.feed.train(self.step, self.calendar.steps)
        while self.step < self.calendar.steps:
            self.train_step(batches)
            self.step += 1
            epoch = self.calendar.epoch_of(self.step - 1)
            if self.recipe.run.log_every and self.step % self.recipe.run.log_every == 0:
                self._log(epoch)
            finished = self.calendar.finished(self.step)
            if finished is not None:
                self._end_epoch(finished)
            if self._clock.live_is_due():
                self._show(epoch)
            stop, due = self._agreed(request)
            if stop or due or self.step == self.calendar.steps:
                path = self._checkpoint()
            if stop and self.step < self.calendar.steps:
                raise StoppedError(
                    f"stopped at step {self.step} of {self.calendar.steps}; everything is in "
                    f"{path}; go on with --resume --out {self.out}",
                    stop,
                )

    def train_step(self, batches: Iterator[Batch]) -> None:
        """One step of the optimiser; nothing in it waits for the device."""
        step, passes = self.step, self.recipe.run.accumulation
        seed = self.recipe.run.seed
        self.schedule.step_update(step)
        weight = self._localization_weight()
        sums = self._interval.new_zeros(3)
        for index in range(passes):
            batch = next(batches)
            # After the batch, because starting workers, or decoding here, draws from torch's own
            # generator too.
            place = step * passes + index
            torch.manual_seed(seed_for(seed, "model", rank=self.team.rank, step=place))
            plan = self._plan(batch)
            begin_pass(self.recipe.run.compile)
            with synchronised(self.forward, index == passes - 1):
                classification, localization = self.forward(**batch.inputs, plan=plan)
                total = classification + weight * localization
                (total / passes).backward()
            sums += torch.stack((classification, localization, total)).detach() / passes
        norm = sums.new_zeros(())
        if self.recipe.optimizer.clip:
            found: Any = torch.nn.utils.clip_grad_norm_(
                self.parameters, self.recipe.optimizer.clip, foreach=True
            )
            norm = found.full_tensor() if hasattr(found, "full_tensor") else found
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(step)
        is_bad = (self._bad_step < 0) & ~torch.isfinite(sums[2] + norm)
        self._bad_step = torch.where(is_bad, step, self._bad_step)
        entry = torch.stack((torch.ones_like(sums[0]), *sums, norm.to(sums.dtype)))
        self._interval += entry
        self._epoch += entry

    def _plan(self, batch: Batch) -> Any:
        """The jigsaw of this pass: its rows of the step's, none before the end of warm-up."""
        if batch.step < self.calendar.at(self.recipe.run.warmup_epochs):
            return None
        generator = generator_for(self.recipe.run.seed, "jigsaw", step=batch.step)
        # As many images as the step has, without their memory: only their shape is looked at.
        everyone = batch.inputs["images"][:1].expand(self.recipe.run.batch, -1, -1, -1)
        plan = self.model.draw_plan(everyone, generator)
        if plan is None or len(batch.rows) == self.recipe.run.batch:
            return plan
        return plan[batch.rows.to(self.team.device)]

    def _localization_weight(self) -> float:
        return self.recipe.localization.at(min(1.0, self.step / self.calendar.steps))

    def _losses(self, sums: Tensor) -> Losses:
        """Means over processes and steps; an error if a loss was no number."""
        self._check_finite()
        count, classification, localization, total, gradient = self.team.total(sums).tolist()
        norm = gradient / count if self.recipe.optimizer.clip else None
        return Losses(classification / count, localization / count, total / count, norm)

    def _check_finite(self) -> None:
        bad = int(self.team.largest(self._bad_step))
        if bad < 0:
            return
        good = snapshots.found(self.out / "checkpoints")
        kept = f"the last good checkpoint is {good[-1]}" if good else "there is no checkpoint yet"
        raise TrainingError(
            f"the loss is no number any more since step {bad} (epoch "
            f"{self.calendar.epoch_of(bad) + 1}); {kept}. A lower --optimizer.learning-rate, a "
            "longer --run.warmup-epochs or a smaller --optimizer.clip may help"
        )

    def _log(self, epoch: int) -> None:
        losses = self._losses(self._interval)
        self._interval.zero_()
        values: dict[str, Scalar] = {
            "loss": losses.total,
            "classification": losses.classification,
            "localization": losses.localization,
            "gradient_norm": losses.gradient,
            "learning_rate": self._learning_rate(),
            "localization_weight": self._localization_weight(),
        }
        self.journal.step(self.step, epoch + 1, values)

    def _learning_rate(self) -> float:
        return max(group["lr"] for group in self.optimizer.param_groups)

    def _show(self, epoch: int) -> None:
        """Renews the live line, from this process's own numbers."""
        if not self.team.leads:
            return
        count, classification, localization, total, gradient = self._epoch.tolist()
        if not count:
            return
        losses = Losses(
            classification / count, localization / count, total / count, gradient / count
        )
        rate = self._clock.rate(self.step) * self.recipe.run.batch
        left = self.calendar.steps - self.step
        self.watcher.step(
            StepReport(
                epoch=epoch + 1,
                epochs=self.recipe.run.epochs,
                step=self.step,
                steps=self.calendar.steps,
                losses=losses,
                learning_rate=self._learning_rate(),
                images_per_second=rate,
                seconds_left=left * self.recipe.run.batch / rate if rate else math.inf,
                memory=self._peak_memory(),
            )
        )

    def _peak_memory(self) -> int | None:
        device = self.team.device
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None

    def _end_epoch(self, epoch: int) -> None:
        losses = self._losses(self._epoch)  # Waits for the device, so that the time is whole.
        seconds, rate = self._clock.end_epoch(self.step)
        self._epoch.zero_()
        run = self.recipe.run
        plain: Validation | None = None
        averaged: Validation | None = None
        with self._clock.paused():
            if (epoch + 1) % run.eval_every == 0 or epoch + 1 == run.epochs:
                plain = validate(self.judged, self.feed, self.team, run.compile)
                if self.average is not None:
                    with self.average.lent():
                        averaged = validate(self.judged, self.feed, self.team, run.compile)
            report = EpochReport(
                epoch=epoch + 1,
                losses=losses,
                learning_rate=self._learning_rate(),
                localization_weight=self._localization_weight(),
                top1=plain.top1 if plain else None,
                top5=plain.top5 if plain else None,
                val_loss=plain.loss if plain else None,
                average_top1=averaged.top1 if averaged else None,
                images_per_second=rate * run.batch,
                seconds=seconds,
            )
            self._keep_best(report)
            self.journal.epoch(self.step, report)
            if self.team.leads:
                self.watcher.epoch(report)

    def _keep_best(self, report: EpochReport) -> None:
        """Notes the best weights; they are written with the next checkpoint."""
        accuracy = report.accuracy
        self.last = self.last if accuracy is None else accuracy
        if accuracy is None or (self.best is not None and accuracy <= self.best):
            return
        self.best, self.best_epoch = accuracy, report.epoch
        self._unsaved_best = self._weights()

    def _weights(self) -> dict[str, Tensor]:
        """A copy of the weights that validation judges by."""
        state = dict(self.model.state_dict())
        if self.average is not None:
            state |= self.average.values
        return {name: value.detach().clone() for name, value in state.items()}

    def _agreed(self, request: StopRequest) -> tuple[int, bool]:
        """The signal to stop by and whether a checkpoint is due, the same in every process."""
        due = self._clock.checkpoint_is_due(self.recipe.run.checkpoint_minutes)
        if self.team.size == 1:
            return request.number, due
        flags = self.team.largest(torch.tensor([request.number, int(due)]))
        return int(flags[0]), bool(flags[1])

    def _checkpoint(self) -> Path:
        with self._clock.paused():
            self._check_finite()
            if self._unsaved_best is not None:
                self._save_model(self.out / "best", self._unsaved_best)
                self._unsaved_best = None
            progress = snapshots.Progress(
                step=self.step,
                best=self.best,
                best_epoch=self.best_epoch,
                last=self.last,
                records=self.journal.size,
                recipe=to_toml(self.recipe),
            )
            folder = self.out / "checkpoints"
            path = snapshots.write(folder, self._tensors(reduced=True), progress, self.team)
        self._clock.checkpointed()
        return path

    def _save_model(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Writes a model as `mjp.save` does, with these weights."""
        whole = {name: _whole(value) for name, value in weights.items()}
        if not self.team.leads:
            return
        # A model of its own, because this run's may be in shards.
        twin = make_model(replace(self.recipe, init=None), self.feed.source.classes)
        twin.load_state_dict(whole, strict=True)
        save(twin, folder)

    def _tensors(self, *, reduced: bool) -> dict[str, Tensor]:
        """All that a checkpoint holds; to be written, with sums meant over the processes."""
        tensors = snapshots.state_of(self.model, self.optimizer)
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.values.items()}
        sums = {"sums.interval": self._interval, "sums.epoch": self._epoch}
        if reduced:
            # Each process has summed over its own images; the mean is right for any number of them.
            sums = {name: self.team.total(value) / self.team.size for name, value in sums.items()}
        return tensors | sums

    def _restore(self) -> int:
        """Goes back to the newest whole checkpoint; gives the bytes of records up to it."""
        tensors = self._tensors(reduced=False)
        folder = self.out / "checkpoints"
        progress = snapshots.read(folder, tensors, self.team, self.watcher.say)
        if progress is None:
            self.watcher.say(
                f"there is no checkpoint in {self.out} yet; starting from the beginning"
            )
            return 0
        self.step, self.last = progress.step, progress.last
        self.best, self.best_epoch = progress.best, progress.best_epoch
        self.watcher.say(f"resuming at step {self.step} of {self.calendar.steps}")
        return progress.records

    def _facts(self) -> dict[str, Scalar]:
        device = self.team.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "train_images": self.feed.samples,
            "val_images": len(self.feed.val_source),
            "classes": len(self.feed.source.classes),
            "steps": self.calendar.steps,
            "processes": self.team.size,
            "device": name,
        }

    def _finish(self) -> Outcome:
        state = self.model.state_dict() | (self.average.values if self.average else {})
        self._save_model(self.out / "final", state)
        seconds = self._clock.total()
        assert self.best is not None
        assert self.best_epoch is not None
        assert self.last is not None
        values: dict[str, Scalar] = {
            "best_top1": self.best,
            "best_epoch": self.best_epoch,
            "last_top1": self.last,
            "unreadable_images": len(self.feed.problems),
        }
        self.journal.end(values, {"seconds": seconds, "peak_memory": self._peak_memory()})
        return Outcome(self.best, self.best_epoch, self.last, seconds)


def _whole(value: Tensor) -> Tensor:
    """A tensor that may be sharded, as one, on the host; every process has to ask for it."""
    gathered: Any = value
    whole: Tensor = gathered.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.detach().cpu()
