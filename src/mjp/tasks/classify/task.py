"""The task of classification: its data, its model, its losses and its accuracy."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.models import is_model_in_modules, split_model_name_tag
from torch import Tensor
from torch.nn import functional as F

from mjp.core.errors import CheckpointError, ConfigError, MjpError
from mjp.core.records import Scalar
from mjp.core.run import Run
from mjp.core.seeds import seed_for
from mjp.data.batch import Batching, Finisher, ImageFormat
from mjp.data.feed import Feed, WorkerFeed
from mjp.data.opening import open_both
from mjp.data.resident import ResidentFeed
from mjp.data.source import Source
from mjp.jigsaw import JigsawPlan
from mjp.models.backbone import with_fast_patches
from mjp.models.checkpoint import save
from mjp.models.factory import create_model
from mjp.models.vit import give_prefix_only
from mjp.models.weights import (
    fit_to_model,
    head_fits,
    load_strictly,
    load_weights,
    read_state,
    saved_pretrained_cfg,
)
from mjp.tasks.classify.config import ClassifyConfig
from mjp.train.task import Predict, Task, means

FEEDS: dict[str, type[Feed]] = {"workers": WorkerFeed, "resident": ResidentFeed}
UNKNOWN_CLASSES = 1000
"""How many classes `mjp check` assumes where the data cannot be looked at."""
CRITERION = SoftTargetCrossEntropy()


class ClassifyTask(Task[ClassifyConfig]):
    """Classification with the paper's localization loss beside it."""

    metric_names = ("top1", "top5", "loss")

    def data(self, run: Run) -> Feed:
        return self.feed(*open_both(self.config.data), run)

    def feed(self, train: Source, val: Source, run: Run) -> Feed:
        """The feed that the recipe asks for, of these images."""
        config, settings = self.config, self.config.run
        form = self.image_format()
        batching = Batching(settings.batch, run.team.size, run.team.rank, settings.accumulation)
        seed, augment, data = settings.seed, config.augment, config.data
        finish = Finisher(augment, form, len(train.classes), settings.batch, seed)
        how = (data, augment, form, batching, finish, seed, run.device)
        return FEEDS[data.feed](train, val, *how)

    def image_format(self) -> ImageFormat:
        """The images that the model takes, normalised as it was, or would have been, pretrained."""
        with torch.device("meta"):
            described = self._new_model(2).pretrained_cfg
        if self.config.init is not None:
            described = {**described, **_normalisation(self.config.init)}
        return ImageFormat(
            self.config.model.image_size, tuple(described["mean"]), tuple(described["std"])
        )

    def model(self, data: Feed) -> Any:
        """The recipe's model with random weights from its seed, or those it starts from."""
        model = self.first_model(data.source.classes, data.format)
        give_prefix_only(model)  # Training asks for logits alone.
        return with_fast_patches(model)

    def first_model(self, classes: tuple[str, ...], form: ImageFormat) -> Any:
        """The model as it is saved."""
        config = self.config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(config.run.seed, "weights"))
            model = self._new_model(len(classes))
            if config.init is not None:
                start_from(model, config.init)
        model.pretrained_cfg = {
            **model.pretrained_cfg,
            "mean": form.mean,
            "std": form.std,
            "input_size": (3, *form.size),
            "crop_pct": config.augment.eval_crop,
            "interpolation": config.augment.interpolation,
            "label_names": list(classes),
        }
        return model

    def _new_model(self, num_classes: int) -> Any:
        settings = self.config.model
        arguments: dict[str, Any] = {**settings.arguments, "drop_path_rate": settings.drop_path}
        architecture = split_model_name_tag(settings.name)[0]
        if not is_model_in_modules(architecture, ["resnet"]):  # Which takes images of any size.
            arguments["img_size"] = settings.image_size
        try:
            return create_model(
                settings.name, self.config.mjp, num_classes=num_classes, **arguments
            )
        except (TypeError, AssertionError, KeyError, ZeroDivisionError) as error:
            raise ConfigError(f"{settings.name} cannot be built so: {error!r}") from error

    def loss(
        self, model: Any, batch: Mapping[str, Tensor], plan: JigsawPlan | None
    ) -> dict[str, Tensor]:
        """Classification, and localization with its weight λ (the paper's DAL)."""
        logits = model(batch["images"], plan=plan)
        classification = CRITERION(logits.float(), batch["targets"])
        localization = model.localization_loss(plan).float()
        return {
            "loss": classification + batch["localization_weight"] * localization,
            "classification": classification,
            "localization": localization,
        }

    def schedule(self, progress: float) -> dict[str, float]:
        return {"localization_weight": self.config.localization.at(progress)}

    @torch.no_grad()
    def metrics(
        self, model: Predict, batches: Iterable[Mapping[str, Tensor]], run: Run
    ) -> dict[str, float]:
        """Accuracy in percent and the mean cross entropy, without jigsaw."""
        return means((_judged(model, batch) for batch in batches), run.team)

    def save(self, weights: dict[str, Tensor], data: Feed, folder: Path) -> None:
        """Writes a folder as `mjp.save` does, of a model of its own: the run's may be in shards."""
        plain = ClassifyTask(replace(self.config, init=None))
        twin = plain.first_model(data.source.classes, data.format)
        twin.load_state_dict(weights, strict=True)
        save(twin, folder)

    def facts(self, data: Feed) -> dict[str, Scalar]:
        return {**super().facts(data), "classes": len(data.source.classes)}

    def trial(self, run: Run) -> tuple[Any, dict[str, Tensor]]:
        """Nothing is decoded for it; where there are no data to look at, of so many classes."""
        try:
            classes = open_both(self.config.data)[0].classes
        except MjpError:
            classes = tuple(map(str, range(UNKNOWN_CLASSES)))
        model = self.first_model(classes, self.image_format())
        images = torch.zeros(2, 3, *self.config.model.image_size)
        targets = torch.full((2, len(classes)), 1 / len(classes))
        give_prefix_only(model)
        if self.config.mjp.ratio > 0:
            model.grid_of(images)  # Whether such images can be cut into patches.
        return model, {"images": images, "targets": targets}

    def notes(self, model: Any) -> list[str]:
        mjp, config = self.config.mjp, self.config
        tuned = config.init is not None and config.optimizer.layer_decay is None
        notes = {"fine-tuning often does better with --optimizer.layer-decay 0.75": tuned}
        if mjp.ratio > 0:
            patches = model.grid_of(torch.empty(1, 3, *config.model.image_size)).num_patches
            masked, kept = round(mjp.ratio * patches), mjp.positions == "own"
            notes |= {
                f"mjp.ratio {mjp.ratio:g} masks none of an image's {patches} patches, so there "
                "will never be a jigsaw": masked == 0,
                "mjp.probability is 0, so there will never be a jigsaw": mjp.probability == 0,
                "patches are shuffled but keep their positions, and these are localized": kept
                and mjp.localization is not None,
            }
        return [note for note, holds in notes.items() if holds]


def _judged(model: Predict, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """For each image, 100 where its class is the first, or among the first five, and the loss."""
    logits, labels = model(batch["images"]), batch["labels"]
    right = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    loss = F.cross_entropy(logits, labels, reduction="none")
    return {"top1": 100 * right[:, 0], "top5": 100 * right.any(dim=1), "loss": loss}, batch[
        "counted"
    ]


def start_from(model: Any, init: str) -> None:
    """Loads weights from a file or folder, or by a timm name; a head that does not fit is left."""
    path = _path_of(init)
    if path.exists():
        load_weights(model, path, head="load" if head_fits(model, read_state(path)) else "keep")
    else:
        fitted = fit_to_model(_timm_model(init, pretrained=True).state_dict(), model)
        load_strictly(model, fitted, path, "load" if head_fits(model, fitted) else "keep")


def _normalisation(init: str) -> dict[str, tuple[float, ...]]:
    """Mean and standard deviation of the images that weights were trained on, if they say so."""
    path = _path_of(init)
    if path.exists():
        described = saved_pretrained_cfg(path)
    else:
        with torch.device("meta"):
            described = _timm_model(init, pretrained=False).pretrained_cfg
    named = {name: described.get(name) for name in ("mean", "std")}
    for name, values in named.items():
        if values is not None and (
            len(values) != 3 or not all(isinstance(value, (int, float)) for value in values)
        ):
            raise CheckpointError(f"the weights give {values!r} as the {name} of their images")
    return {name: tuple(map(float, values)) for name, values in named.items() if values is not None}


def _path_of(init: str) -> Path:
    return Path(init.removeprefix("local-dir:")).expanduser()


def _timm_model(init: str, *, pretrained: bool) -> Any:
    if not init.startswith("hf-hub:") and not timm.is_model(split_model_name_tag(init)[0]):
        raise CheckpointError(
            f"init {init!r} is neither a file, nor a folder, nor a model of timm's"
        )
    try:
        return timm.create_model(init, pretrained=pretrained)
    except (RuntimeError, OSError, ValueError) as error:
        raise CheckpointError(f"the weights of {init} cannot be had: {error}") from error
