"""The options of `mjp audit`. Imports no torch, so that help answers at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mjp.models.config import ModelOptions, Models

DEFAULT_MODEL = "pretrained:mini-imagenet-mjp"
DEFAULT_SIZE = (48, 48)
"""There its patches are fewer than its width, so that closed forms have equations enough."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions(ModelOptions):
    """What a shared gradient gives away: attacks x defences x pictures, in one report.

    Defences: none, mjp=RATIO[,PROBABILITY], shuffle=RATIO, frozen, unshared, sincos, fp16, bf16,
    prune=SHARE, clip=NORM, noise=STD, dp=MULTIPLIER[,NORM], batch=IMAGES, steps=STEPS,RATE; joined
    by + they act one after the other. Attacks: april, patch_solve, adaptive_solve (closed forms),
    invert, dlg, idlg, april_opt, gradvit (searches: minutes a picture on a CPU).
    """

    model: Models = ()
    """A folder (of a training run, or written by mjp.save or timm), a timm name, hf-hub:NAME,
    local-dir:PATH, pretrained:NAME, or import:MODULE:FUNCTION, which gives an nn.Module of yours.
    NAME@FILE takes the weights from a file, LABEL=MODEL gives it a name in the results. By default
    pretrained:mini-imagenet-mjp, at 48x48 pixels."""
    images: str = "photographs"
    """Pictures: a file, a folder, a Parquet or tar file, or photographs, which are bundled."""
    most: int = 4
    """How many of the pictures to audit on."""
    attacks: tuple[str, ...] = ("april", "patch_solve", "adaptive_solve")
    """What attackers try."""
    defences: tuple[str, ...] = (
        *("none", "mjp=0.03", "mjp=0.09", "mjp=0.27", "shuffle=0.27"),
        *("unshared", "bf16", "clip=1", "clip=1+noise=1e-4"),
    )
    """What clients do against it."""
    rounds: int = 1
    """Updates that a client sends of the same pictures, each under a mask of its own."""
    gradients: Literal["fp32", "fp64"] = "fp32"
    """Arithmetic of the clients."""
    localization_weight: float = 0.0
    """λ of MJP's localization loss in the clients' loss."""
    steps: int | None = None
    """Steps of attacks that search; each attack has its own number."""
    restarts: int | None = None
    """How often such an attack starts over; each attack has its own number."""
    lpips: Path | None = None
    """Weights for LPIPS: torchvision's AlexNet, or a SqueezeNet 1.1 trunk, which is a proxy."""
    update: Path | None = None
    """A client's update (safetensors) to attack in place of pictures."""
    accuracy: int = 2000
    """Measure accuracy on so many of the images, where they have classes; 0 for none."""
    show: int = 4
    """How many pictures to draw."""
    crop: float = 1.0
    """Share of the resized picture that the central crop keeps."""
    mean: tuple[float, float, float] | None = None
    """Mean colour that your own model takes off pixels in [0, 1]."""
    std: tuple[float, float, float] | None = None
    """What your own model divides pixels by after that."""
    patch_embedding: str = "auto"
    """Name of the layer that embeds patches, where it is not found by itself."""
    positions: str = "auto"
    """Name of the parameter of position embeddings, where it is not found; or none."""
    classifier: str = "auto"
    """Name of the layer that gives logits, where it is not found; or none."""
    patch_layout: Literal["chw", "hwc"] = "chw"
    """Order of a patch's values that a linear patch embedding takes."""
    chunk: int | None = None
    """Pictures that are worked on together: 32 on a GPU, 4 on a CPU."""
    device: str | None = None
    """A torch device; the GPU if there is one."""
    seed: int = 0
    """Seed of everything that is random."""
    resume: bool = False
    """Take what an earlier run in the folder found, for the same weights and conditions."""
    out: Path = Path("runs/audit")
    """Folder for records, pictures and the report."""
