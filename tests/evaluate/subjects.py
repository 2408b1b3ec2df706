"""Tiny models, saved as a person would have them, and sets of pictures to show them."""

import json
from pathlib import Path
from typing import Any

import mjp
from mjp.core.team import Team
from mjp.data.decoding import Decoder, Reader, View
from mjp.data.source import Source
from mjp.evaluate.config import EvalAccuracyOptions
from mjp.evaluate.evaluation import Rows, Scorer, gather
from mjp.models.subject import Subject

import torch  # isort: skip

SIZE = (32, 48)
TINY = {"img_size": SIZE, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 3}
ALONE = Team(0, 1, torch.device("cpu"))


def tiny(variant: str = "J", classes: int = 3, labels: tuple[str, ...] = (), **more: Any) -> Any:
    """A tiny ViT on 32x48 pixels, a grid of 4x6 patches, with weights that its variant decides."""
    torch.manual_seed(ord(variant))
    model = mjp.create_model(
        "deit_tiny_patch16_224", mjp.VARIANTS[variant], num_classes=classes, **{**TINY, **more}
    )
    for parameter in model.parameters():  # Larger weights: predictions that do change.
        parameter.data.mul_(30 if parameter.dim() > 1 else 1)
    model.cls_token.data.zero_()
    names = {"label_names": list(labels)} if labels else {}
    model.pretrained_cfg = {
        **model.pretrained_cfg,
        "input_size": (3, *model.patch_embed.img_size),
        "crop_pct": 1.0,
        **names,
    }
    return model.eval()


def save(folder: Path, variant: str = "J", **more: Any) -> Path:
    """A tiny model in a folder."""
    mjp.save(tiny(variant, **more), folder)
    return folder


def subject(variant: str = "J", label: str = "tiny", **told: Any) -> Subject:
    return Subject.of(label, tiny(variant), **told)


def blocks(source: Source, view: View, team: Team = ALONE) -> Any:
    """The blocks of a source, decoded in this process."""
    return Reader(Decoder(source, view.transform()), team, 0)


def settings(*ratios: float, **more: Any) -> EvalAccuracyOptions:
    """Which jigsaws images are shown as."""
    return EvalAccuracyOptions(model=("m",), data="d", ratios=ratios, **more)


def rows_of(scorer: Scorer, source: Source, view: View, team: Team = ALONE) -> Rows:
    """What a scorer gives the images of a source, decoded in this process."""
    return gather([scorer], blocks(source, view, team), len(source), team, lambda _: None)[0]


def records(out: Path, *kinds: str) -> list[dict]:
    lines = (out / "records.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [record for record in found if not kinds or record["kind"] in kinds]
