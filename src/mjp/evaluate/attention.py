"""Maps of the last self-attention: how much the class token looks at each patch, in each head."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mjp.core.errors import DataError, UnsupportedModelError
from mjp.core.records import Record, Scalar
from mjp.core.run import Run
from mjp.data.source import Sample, pictures_under
from mjp.evaluate.config import ProbeAttentionOptions
from mjp.evaluate.evaluation import finish
from mjp.evaluate.tables import PROBED_ATTENTION
from mjp.jigsaw import PatchGrid
from mjp.models.opening import open_models
from mjp.models.subject import Subject

Looks = dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]
"""By model and name: a picture as the model was shown it, in [0, 1], and the maps of its heads."""


def run_attention(options: ProbeAttentionOptions) -> None:
    """`mjp probe attention`: looks, draws, prints how widely each model looks."""
    pictures = _pictures(options.images, options.most)
    with Run.open(options.out, device=options.device) as run:
        subjects = []
        for label, model in open_models(options.model, options.size).items():
            last_attention(model)  # Raises for models without a global one.
            subject = Subject.of(label, model, size=options.size, crop=options.crop)
            subjects.append(subject.on(run.device))
        looks: Looks = {}
        records = []
        with run.progress("looking", len(subjects) * len(pictures)) as advance:
            for subject in subjects:
                shown = looks[subject.label] = {}
                grid = attention_grid(subject.model, subject.view.size)
                for name, picture in pictures.items():
                    levels = torch.as_tensor(subject.view.transform()(picture))
                    images = subject.normalized(levels[None].to(run.device))
                    maps = attention_maps(subject.model, images, grid)
                    pixels = levels.permute(1, 2, 0).numpy() / 255
                    shown[name] = pixels, maps.heads[0].cpu().numpy()
                    records.append(_record(subject, options.images, name, maps))
                    advance(1)
        draw = partial(_draw, run, looks)
        finish(run, options, run.write(*records), PROBED_ATTENTION, draw=draw)


def _draw(run: Run, looks: Looks) -> list[Path]:
    from mjp.report.probes import draw_heads, draw_overview

    paths = draw_overview(looks, run.out)
    names = list(next(iter(looks.values())))
    with run.progress("drawing", len(names)) as advance:
        for name in names:
            heads = {label: shown[name] for label, shown in looks.items()}
            paths += draw_heads(name, heads, run.out)
            advance(1)
    return paths


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention to the patches.

    Args:
        heads: weights of each head; they sum to what the head spends on patches, not on class,
            distillation and register tokens.
        query: what looks: the class token, or all patches where there is none.
    """

    heads: Float[Tensor, "batch heads rows cols"]
    query: str

    def spread(self) -> Float[Tensor, "batch heads"]:
        """How many patches each head looks at, in effect: the exponential of its entropy."""
        flat = self.heads.flatten(2).double()
        share = flat / flat.sum(dim=2, keepdim=True).clamp(min=1e-30)
        return (-(share * share.clamp(min=1e-30).log()).sum(dim=2)).exp().float()


@torch.inference_mode()
def attention_maps(
    model: Any, images: Float[Tensor, "batch 3 height width"], grid: PatchGrid
) -> AttentionMaps:
    """The last block's attention, for any ViT of timm's or of ours.

    Fused attention never forms its weights, so it is switched off in that block for this call.
    """
    attention = last_attention(model)
    seen: list[Tensor] = []
    # Its dropout is given the weights, once they are formed.
    hook = attention.attn_drop.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    fused = getattr(attention, "fused_attn", False)
    try:
        attention.fused_attn = False
        model.forward_features(images)
    finally:
        hook.remove()
        attention.fused_attn = fused
    weights = seen[-1].float() if seen else images.new_zeros(0)
    problem = ""
    if not seen:
        problem = "does not show its weights"
    elif not torch.allclose(weights.sum(dim=-1), weights.new_ones(()), atol=0.02):
        problem = "changes its weights after the softmax, so they are no shares of attention"
    elif weights.dim() != 4 or weights.shape[-1] < grid.num_patches:
        problem = (
            f"has weights of shape {tuple(weights.shape)}, not one for each of {grid} patches: it "
            "does not look at the whole image"
        )
    if problem:
        raise UnsupportedModelError(
            f"the last {type(attention).__name__} of this {type(model).__name__} {problem}"
        )
    prefix = weights.shape[-1] - grid.num_patches
    has_class_token = getattr(model, "cls_token", None) is not None and prefix > 0
    query = weights[:, :, 0] if has_class_token else weights[:, :, prefix:].mean(dim=2)
    return AttentionMaps(
        query[:, :, prefix:].unflatten(2, (grid.rows, grid.cols)),
        "class token" if has_class_token else "mean over all patches",
    )


def attention_grid(model: Any, size: tuple[int, int]) -> PatchGrid:
    """The grid of a model's tokens in images of this height and width."""
    embed: Any = getattr(model, "patch_embed", None)
    if getattr(embed, "grid_size", None) is None:
        raise UnsupportedModelError(
            f"this {type(model).__name__} does not say what grid its tokens lie on"
        )
    if getattr(model, "dynamic_img_size", False):
        rows, cols = embed.dynamic_feat_size(size)
    else:
        rows, cols = embed.grid_size
    return PatchGrid(int(rows), int(cols))


def last_attention(model: Any) -> Any:
    """The self-attention of the last block; an error for models without a global one."""
    blocks = getattr(model, "blocks", None)
    last = blocks[-1] if isinstance(blocks, (nn.Sequential, nn.ModuleList)) and blocks else None
    attention = getattr(last, "attn", None)
    if attention is None or not hasattr(attention, "attn_drop"):
        raise UnsupportedModelError(
            f"a {type(model).__name__} has no last self-attention over all patches; maps are for "
            "ViTs"
        )
    return attention


def _record(subject: Subject, where: Path, name: str, maps: AttentionMaps) -> Record:
    heads = maps.heads[0]
    more = {"data": str(where), "image": name, "query": maps.query}
    seen = enumerate(maps.spread()[0].tolist(), 1)
    values: dict[str, Scalar] = {
        "heads": heads.shape[0],
        "patches": heads[0].numel(),
        "attention_on_patches": float(heads.sum(dim=(1, 2)).mean()),
        **{f"patches_seen_by_head_{number}": spread for number, spread in seen},
    }
    return Record("probe attention", {**subject.facts(), **more}, values)


def _pictures(where: Path, most: int) -> dict[str, Image.Image]:
    """Pictures by their files' names without ends; numbered where one was there before."""
    where = where.expanduser()
    files = [where] if where.is_file() else pictures_under(where)
    if not files:
        raise DataError(f"{where} is neither a picture nor a folder that holds any")
    pictures: dict[str, Image.Image] = {}
    for file in files[:most]:
        name, number = file.stem, 2
        while name in pictures:
            name, number = f"{file.stem}-{number}", number + 1
        try:
            pictures[name] = Sample(file, 0).decode()
        except (DataError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{file} {reason}") from error
    return pictures
