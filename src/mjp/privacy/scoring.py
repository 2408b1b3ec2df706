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
from mjp.privacy.assessment import judged
from mjp.privacy.perceptual import Perceptual
from mjp.privacy.public import PublicModel

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
    distances = {name: getattr(metrics, name) for name in ("mse", "psnr", "ssim", "fft2d")}
    if gallery.perceptual is not None:
        distances["lpips"] = gallery.perceptual
    columns: dict[str, Tensor] = {
        f"{prefix}{name}": distance(images, other)
        for prefix, other in (("", truth), ("client_", view))
        for name, distance in distances.items()
    }
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
    pictures: Sequence[Mapping[str, Scalar]],
    baselines: Mapping[str, float],
    knows: bool,
    gallery: int,
) -> dict[str, Scalar]:
    """What an attack got under a defence, from the values of every picture.

    Args:
        baselines: PSNR of trivial guesses on the same pictures, by name.
        knows: whether the attacker made use of a defence.
        gallery: how many pictures there are to pick the right one from.
    """
    applied = [values for values in pictures if values.get("applies")]
    reasons = [str(values["reason"]) for values in pictures if values.get("reason")]
    summary: dict[str, Scalar] = {
        "images": len(pictures),
        "applied": len(applied),
        "reason": statistics.mode(reasons) if reasons else "",
    }
    for name in ("psnr", "ssim"):
        column = _column(applied, name)
        summary |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))
        if column:
            (estimate,) = estimates(np.array(column)[:, None])
            summary |= estimate.values(name)
    for names, several, average in ((MEANS, applied, np.mean), (MEDIANS, pictures, np.median)):
        for name in names:
            column = _column(several, name)
            summary[name] = float(average(column)) if column else None
    psnrs = _column(applied, "psnr")
    summary["psnr_lowest"] = min(psnrs, default=None)
    summary["psnr_highest"] = max(psnrs, default=None)
    summary |= {f"baseline_{name}_psnr": value for name, value in baselines.items()}
    return {**summary, "gallery": gallery, **judged(summary, max(baselines.values()), knows)}


def _column(pictures: Sequence[Mapping[str, Scalar]], name: str) -> list[float]:
    """The finite numbers that pictures have of this name, a truth being 1."""
    column = (values.get(name) for values in pictures)
    return [float(one) for one in column if isinstance(one, int | float) and np.isfinite(one)]
