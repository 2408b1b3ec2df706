"""What requests and answers of the API look like, and what there is to choose from."""

from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mjp.core.errors import ConfigError
from mjp.privacy.attacks import ATTACKS
from mjp.privacy.defence_parts import PARTS
from mjp.privacy.defences import Defence, parse_defence
from mjp.web.config import (
    LARGEST_SEED,
    LONGEST_DEFENCE,
    MOST_RESTARTS,
    MOST_ROUNDS,
    MOST_STEPS,
    ServeOptions,
)
from mjp.web.pictures import FORMATS

State = Literal["waiting", "running", "done", "failed", "cancelled", "timed out"]


def checked_defence(text: str) -> str:
    """A defence as it is written, its numbers within their bounds; one that takes one picture."""
    defence = parse_defence(text)
    for part in defence.parts:
        for field in fields(part):
            least, most = field.metadata["least"], field.metadata["most"]
            value, name = getattr(part, field.name), field.name.replace("_", " ")
            if not least <= value <= most:
                bounds = f"between {least:g} and {most:g}, got {value:g}"
                raise ConfigError(f"the {name} of {part.name} must be {bounds}")
    if defence.images_per_update > 1:
        raise ConfigError(
            f"{defence} takes several pictures, and is not offered here; use mjp audit"
        )
    return str(defence)


def _checked_attack(name: str) -> str:
    if name not in ATTACKS:
        raise ConfigError(f"there is no such attack; there are {', '.join(ATTACKS)}")
    return name


def defence_offers() -> list[dict[str, Any]]:
    """The defences that take one picture and at most one number, written `name=number`."""
    none = "The gradients are sent as they are."
    offers: list[dict[str, Any]] = [
        {"name": "none", "label": "None", "about": none, "number": None}
    ]
    for name, part in PARTS.items():
        numbers = [field.metadata for field in fields(part) if field.default is MISSING]
        example = part(*(number["example"] for number in numbers))
        if len(numbers) > 1 or Defence((example,)).images_per_update > 1:
            continue
        about = (part.__doc__ or "").splitlines()[0]
        offer: dict[str, Any] = {"name": name, "label": part.label, "about": about, "number": None}
        for number in numbers:
            least, most = number["control"]
            offer["number"] = {
                "label": number["title"],
                "least": least,
                "most": most,
                "start": number["example"],
                "scale": number["scale"],
            }
        offers.append(offer)
    return offers


def attack_offers() -> list[dict[str, Any]]:
    """All attacks: `closed` are linear algebra and take seconds, a `search` takes minutes."""
    return [
        {
            "name": name,
            "about": f"{attack.about[0].upper()}{attack.about[1:]}.",
            "kind": attack.kind,
            "knows_defence": attack.knows_defence,
        }
        for name, attack in ATTACKS.items()
    ]


def limits(options: ServeOptions) -> dict[str, Any]:
    """How much may be asked for."""
    return {
        "upload_bytes": options.upload_bytes,
        "pixels": options.pixels,
        "formats": list(FORMATS),
        "jobs": options.num_jobs,
        "waiting": options.waiting,
        "seconds": options.seconds,
        "kept": options.kept,
        "idle_seconds": options.idle_seconds,
        "steps": MOST_STEPS,
        "restarts": MOST_RESTARTS,
        "rounds": MOST_ROUNDS,
    }


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""Of a picture, a model, an attack or a job."""


class Refusal(BaseModel):
    """Why a request was refused, as a sentence for people."""

    error: str


class PictureAnswer(BaseModel):
    """A picture that was taken; larger ones are shrunk."""

    id: str = Field(description="Its name from now on. Whoever knows it can see the picture.")
    width: int
    height: int
    idle_seconds: float = Field(description="Forgotten when nobody asked for it this long.")


class PreviewRequest(BaseModel):
    """Whose jigsaw to draw."""

    model_config = ConfigDict(extra="forbid")

    picture: Name = Field(description="A sample, or the id that an upload was given.")
    model: Name = "small"
    defence: Annotated[
        str,
        Field(max_length=LONGEST_DEFENCE, pattern=r"^[ -~]*$"),
        AfterValidator(checked_defence),
    ] = Field(
        default="mjp=0.03", description="As for mjp audit: `mjp=0.27`, `clip=1+noise=1e-4`, …"
    )
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)


class PreviewAnswer(BaseModel):
    """A jigsaw; a job with the same choices and seed has the same one."""

    rows: int
    cols: int
    masked: list[int] = Field(description="Numbers of the masked patches; 0 is top left.")
    source: list[int] = Field(description="Patch i of what the model is fed was patch source[i].")
    pictures: dict[str, str] = Field(description="Data URLs of PNG files by what they show.")


class JobRequest(PreviewRequest):
    """An attack to run."""

    attack: Annotated[Name, AfterValidator(_checked_attack)] = "adaptive_solve"
    rounds: int = Field(default=1, ge=1, le=MOST_ROUNDS, description="Updates of the same picture.")
    steps: int | None = Field(default=None, ge=1, le=MOST_STEPS, description="Of a search.")
    restarts: int | None = Field(default=None, ge=1, le=MOST_RESTARTS, description="Of a search.")


class Result(BaseModel):
    """What an attack got; PSNR in dB, numbers are null where there is nothing to measure."""

    level: str = Field(description="recovered, recognisable, traces, failed or does not apply.")
    verdict: str = Field(description="The same as a sentence.")
    reason: str = Field(description="Why the attack does not apply, or a warning.")
    psnr: float | None = None
    ssim: float | None = None
    psnr_unmasked: float | None = Field(
        default=None, description="Over the patches that stayed in place."
    )
    psnr_masked: float | None = None
    psnr_shuffled: float | None = Field(default=None, description="Against what the model was fed.")
    psnr_guess: float = Field(description="Of the better trivial guess: mean colour, or grey.")
    masked_patches: int
    patches: int
    mask_recovered: bool | None = None
    fidelity: float = Field(description="Cosine of what was sent and the true gradient.")
    epsilon: float | None = Field(default=None, description="ε of DP-SGD for this one update.")
    notes: list[str]
    pictures: dict[str, str] = Field(description="Addresses of PNG files by what they show.")
    download: str = Field(description="Address of a ZIP with pictures and numbers.")


class JobAnswer(BaseModel):
    """A job and, once it is done, its result."""

    id: str
    state: State
    progress: float = Field(ge=0, le=1)
    ahead: int = Field(description="Jobs that will start before it.")
    seconds: float = Field(description="That it has run.")
    message: str = Field(description="How it ended, where that was not well.")
    model: str
    defence: str
    attack: str
    seed: int
    result: Result | None
