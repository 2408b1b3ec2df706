"""What came back: numbers for each picture, and their summary over all."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mjp.core.records import Scalar
from mjp.core.statistics import estimates
from mjp.privacy import metrics
from mjp.privacy.perceptual import Perceptual
from mjp.privacy.public import PublicModel
from mjp.privacy.verdict import judged

WITH_INTERVAL = ("psnr", "ssim")
MEANS = (
    *("mse", "fft2d", "lpips", "psnr_masked", "psnr_unmasked", "guess_unmasked", "mask_recovered"),
    *("masked_patches", "patches"),
    *("client_mse", "client_psnr", "client_ssim", "client_fft2d", "client_lpips"),
    *("identified_pixels", "identified_features"),
)
MEDIANS = ("rank", "rank_needed", "condition", "seconds")


@dataclass(frozen=True, eq=False)
class Gallery:
    """All pictures of an audit, which an attacker might pick the right one from.

    Args:
        features: what the public model sees in each.
        perceptual: measures LPIPS; None where no weights were given.
    """

    images: Float[Tensor, "pictures 3 height width"]
    features: Float[Tensor, "pictures dim"]
    perceptual: Perceptual | None = None

    @classmethod
    def of(
        cls,
        public: PublicModel,
        images: Float[Tensor, "pictures 3 height width"],
        perceptual: Perceptual | None = None,
    ) -> "Gallery":
        """The gallery of these pictures, as the model sees them."""
        return cls(images, public.features(public.normalized(images)), perceptual)

    def baselines(self) -> dict[str, float]:
        """PSNR of guesses that need no gradient: the mean picture, and each one's mean colour."""
        mean, colour = metrics.baseline_images(self.images)
        return {
            "mean": float(metrics.psnr(mean, self.images).mean()),
            "colour": float(metrics.psnr(colour, self.images).mean()),
        }


def score(
    public: PublicModel,
    gallery: Gallery,
    index: Int64[Tensor, " batch"],
    images: Float[Tensor, "batch 3 height width"],
    view: Float[Tensor, "batch 3 height width"],
    masked: Bool[Tensor, "batch patches"],
) -> list[dict[str, Scalar]]:
    """All numbers of some recovered pictures.

    Args:
        index: where in the gallery the true pictures are.
        view: the pictures as the client's jigsaw left them.
        masked: the patches that it moved.
    """
    truth = gallery.images[index]
    images = images.to(truth)  # Attacks give single precision, whatever the clients compute in.
    columns: dict[str, Tensor] = {}
    for prefix, other in (("", truth), ("client_", view)):
        columns[f"{prefix}mse"] = metrics.mse(images, other)
        columns[f"{prefix}psnr"] = metrics.psnr(images, other)
        columns[f"{prefix}ssim"] = metrics.ssim(images, other)
        columns[f"{prefix}fft2d"] = metrics.fft2d(images, other)
        if gallery.perceptual is not None:
            columns[f"{prefix}lpips"] = gallery.perceptual(images, other)
    seen = public.features(public.normalized(images))
    columns["identified_pixels"] = metrics.identify(images, gallery.images, index)
    columns["identified_features"] = metrics.identify(seen, gallery.features, index)
    if bool(masked.any()):
        columns["psnr_masked"] = metrics.psnr_where(images, truth, masked, public.grid)
        columns["psnr_unmasked"] = metrics.psnr_where(images, truth, ~masked, public.grid)
        colour = truth.mean(dim=(2, 3), keepdim=True).expand_as(truth)
        columns["guess_unmasked"] = metrics.psnr_where(colour, truth, ~masked, public.grid)
    lists = {name: values.double().tolist() for name, values in columns.items()}
    return [{name: values[row] for name, values in lists.items()} for row in range(len(images))]


def summarize(
    conditions: Mapping[str, Scalar],
    values: Sequence[Mapping[str, Scalar]],
    baselines: Mapping[str, float],
    gallery: int,
) -> dict[str, Scalar]:
    """What an attack got under a defence, from the values of every picture.

    Args:
        conditions: say whether the attacker knows of a defence.
        baselines: PSNR of trivial guesses on the same pictures, by name.
        gallery: how many pictures there are to pick the right one from.
    """
    applied = [picture for picture in values if picture.get("applies")]
    reasons = [str(picture["reason"]) for picture in values if picture.get("reason")]
    summary: dict[str, Scalar] = {
        "images": len(values),
        "applied": len(applied),
        "reason": statistics.mode(reasons) if reasons else "",
    }
    for name in WITH_INTERVAL:
        column = _column(applied, name)
        summary |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))
        if column:
            (estimate,) = estimates(np.array(column)[:, None])
            summary |= estimate.values(name)
    for names, several, average in ((MEANS, applied, np.mean), (MEDIANS, values, np.median)):
        for name in names:
            column = _column(several, name)
            summary[name] = float(average(column)) if column else None
    psnrs = _column(applied, "psnr")
    summary["psnr_lowest"] = min(psnrs) if psnrs else None
    summary["psnr_highest"] = max(psnrs) if psnrs else None
    summary |= {f"baseline_{name}_psnr": value for name, value in baselines.items()}
    knows = bool(conditions.get("knows_defence")) and conditions.get("defence") != "none"
    return {**summary, "gallery": gallery, **judged(summary, max(baselines.values()), knows)}


def _column(values: Sequence[Mapping[str, Scalar]], name: str) -> list[float]:
    """The finite numbers that pictures have of this name."""
    column = [picture.get(name) for picture in values]
    return [float(one) for one in column if isinstance(one, int | float) and np.isfinite(one)]
