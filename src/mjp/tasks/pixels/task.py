"""The task: its data, its model, its loss and how well it fills in."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from mjp.core.run import Run
from mjp.core.seeds import generator_for, seed_for
from mjp.data.batch import Batching, ImageFormat
from mjp.data.config import AugmentSettings, DataSettings
from mjp.data.embedded import DigitsSource
from mjp.data.feed import Feed
from mjp.data.resident import ResidentFeed
from mjp.jigsaw import JigsawPlan
from mjp.tasks.pixels.config import PixelsConfig
from mjp.train.task import Predict, Task, means

SIDE, PATCH, ROWS = 16, 4, 4
FORM = ImageFormat((SIDE, SIDE), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
PLAIN = AugmentSettings(crop_scale=(1.0, 1.0), flip=0.0, rand_augment=0.0, repeats=1)


class Filler(nn.Module):
    """Images with hidden patches to whole images."""

    img_size = SIDE

    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, PATCH, PATCH)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, ROWS**2, dim))
        self.blocks = nn.Sequential(*(Block(dim, num_heads=4) for _ in range(depth)))
        self.head = nn.Linear(dim, 3 * PATCH**2)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch_embed(images).flatten(2).mT + self.pos_embed
        filled = self.head(self.blocks(tokens)).mT.unflatten(2, (ROWS, ROWS))
        return F.pixel_shuffle(filled, PATCH)


class PixelsTask(Task[PixelsConfig]):
    """The squared error of hidden patches; in validation every other one is hidden."""

    metric_names = ("psnr",)

    def data(self, run: Run) -> Feed:
        settings, sources = self.config.run, (DigitsSource("train"), DigitsSource("val"))

        def finish(images: Tensor, labels: Tensor, step: int, rows: Tensor) -> dict[str, Tensor]:
            # Drawn for the whole batch of the step: the same for any number of processes.
            generator = generator_for(settings.seed, "hidden", step=step)
            order = torch.rand(settings.batch, ROWS**2, generator=generator).argsort(1)
            hidden = order[rows] < round(self.config.model.hidden * ROWS**2)
            return {"images": FORM.normalize(images), "hidden": hidden.to(images.device)}

        batching = Batching(settings.batch, run.team.size, run.team.rank, settings.accumulation)
        seed, data = settings.seed, DataSettings(source="digits")
        return ResidentFeed(*sources, data, PLAIN, FORM, batching, finish, seed, run.device)

    def model(self, data: Feed) -> Filler:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(self.config.run.seed, "weights"))
            return Filler(self.config.model.dim, self.config.model.depth)

    def loss(
        self, model: Any, batch: Mapping[str, Tensor], plan: JigsawPlan | None
    ) -> dict[str, Tensor]:
        return {"loss": errors(model, batch["images"], batch["hidden"]).mean()}

    def metrics(
        self, model: Predict, batches: Iterable[Mapping[str, Tensor]], run: Run
    ) -> dict[str, float]:
        def measured(batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
            hidden = torch.arange(ROWS**2, device=run.device) % 2 == 0
            error = errors(model, batch["images"], hidden.expand(len(batch["images"]), -1))
            decibels = -10 * (error / 4).clamp(min=1e-9).log10()  # Of pixels in [0, 1].
            return {"psnr": decibels}, batch["counted"]

        return means(map(measured, batches), run.team)


def errors(model: Predict, images: Tensor, hidden: Tensor) -> Tensor:
    """The mean squared error of each image's hidden pixels."""
    mask = hidden.unflatten(1, (1, ROWS, ROWS)).to(images.dtype)
    mask = mask.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3)
    wrong = (model(images * (1 - mask)) - images).square() * mask
    return wrong.mean(dim=(1, 2, 3)) / mask.mean(dim=(1, 2, 3)).clamp(min=1e-9)
