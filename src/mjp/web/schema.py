"""What requests and answers of the API look like, and what there is to choose from."""

from dataclasses import MISSING
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mjp.core.errors import ConfigError
from mjp.privacy.attacks import ATTACKS
from mjp.privacy.defence_parts import PARTS
from mjp.privacy.defences import parse_defence
from mjp.web.config import (
    LARGEST_SEED,
    LONGEST_DEFENCE,
    LONGEST_SIDE,
    MOST_RESTARTS,
    MOST_ROUNDS,
    MOST_STEPS,
    SHORTEST_SIDE,
)
from mjp.web.models import ModelOffer
from mjp.web.pictures import FORMATS

State = Literal["waiting", "running", "done", "failed", "cancelled", "timed out"]
NAME = r"^[A-Za-z0-9_-]{1,64}$"
"""What names of pictures, jobs, models and attacks are made of."""


class NumberOffer(BaseModel):
    """The number that a defence takes."""

    label: str
    least: float
    most: float
    start: float
    scale: Literal["linear", "log"]


class DefenceOffer(BaseModel):
    """A defence to choose; with a number it is written `name=number`."""

    name: str
    label: str
    about: str
    number: NumberOffer | None


class AttackOffer(BaseModel):
    """An attack to choose."""

    name: str
    about: str
    kind: Literal["closed", "search"] = Field(
        description="`closed` for linear algebra (seconds), `search` for minutes."
    )
    knows_defence: bool


def checked_defence(text: str) -> str:
    """A defence as it is written, its numbers within their bounds; one that takes one picture."""
    if not (text.isascii() and text.isprintable()):
        raise ConfigError("write it in plain letters, such as mjp=0.27 or clip=1")
    defence = parse_defence(text)
    for part in defence.parts:
        for field in part.numbers():
            least, most = field.metadata["least"], field.metadata["most"]
            value = getattr(part, field.name)
            if not least <= value <= most:
                raise ConfigError(
                    f"the {field.name.replace('_', ' ')} of {part.name} must be between "
                    f"{least:g} and {most:g}, got {value:g}"
                )
    if defence.images_per_update > 1:
        raise ConfigError(
            f"{defence} takes several pictures, and is not offered here; use mjp audit"
        )
    return str(defence)


def checked_attack(name: str) -> str:
    """The name of an attack that there is."""
    if name not in ATTACKS:
        raise ConfigError(f"there is no such attack; there are {', '.join(ATTACKS)}")
    return name


def defence_offers() -> list[DefenceOffer]:
    """The defences that take one picture and at most one number."""
    about = "The gradients are sent as they are."
    offers = [DefenceOffer(name="none", label="None", about=about, number=None)]
    for name, part in PARTS.items():
        needed = [field for field in part.numbers() if field.default is MISSING]
        numbers = [field.metadata for field in needed]
        example = part(*(number["example"] for number in numbers))
        if len(numbers) > 1 or example.images_per_update > 1:
            continue
        about = (part.__doc__ or "").splitlines()[0]
        offer = DefenceOffer(name=name, label=part.label, about=about, number=None)
        for number in numbers:
            least, most = number["control"]
            offer.number = NumberOffer(
                label=number["title"],
                least=least,
                most=most,
                start=number["example"],
                scale=number["scale"],
            )
        offers.append(offer)
    return offers


def attack_offers() -> list[AttackOffer]:
    """All attacks."""
    return [
        AttackOffer(
            name=name,
            about=f"{attack.about[0].upper()}{attack.about[1:]}.",
            kind="search" if attack.kind == "search" else "closed",
            knows_defence=attack.knows_defence,
        )
        for name, attack in ATTACKS.items()
    ]


Name = Annotated[str, Field(pattern=NAME, max_length=64)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED, description="Of everything that is random.")]
DefenceText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=LONGEST_DEFENCE,
        description="`none`, or parts joined by `+`: `mjp=0.27`, `shuffle=0.27`, `unshared`, "
        "`bf16`, `clip=1+noise=1e-4`, `dp=1`, …",
        examples=["mjp=0.27"],
    ),
    AfterValidator(checked_defence),
]
AttackName = Annotated[Name, Field(examples=["adaptive_solve"]), AfterValidator(checked_attack)]
PictureName = Annotated[
    Name,
    Field(description="A sample, or the id that an upload was given.", examples=["astronaut"]),
]
ModelKey = Annotated[Name, Field(description="Key of a model.", examples=["small"])]


class Trouble(BaseModel):
    """Why a request was refused."""

    error: str = Field(
        description="A sentence for people.",
        examples=["There is no such picture; it may have been forgotten. Upload it again."],
    )


REASONS = {
    400: "The request cannot be understood.",
    403: "It comes from a page of another site, or is not allowed.",
    404: "There is nothing of this name; it may have been forgotten.",
    408: "The body took too long to arrive.",
    413: "The file is too large, or the picture has too many pixels.",
    415: "The file is no PNG, JPEG or WebP picture.",
    421: "The server is not called by this name.",
    422: "A value cannot be used, or the picture is damaged.",
    429: "Too much is going on; try again after the seconds in `Retry-After`.",
}
Responses = dict[int | str, dict[str, Any]]


def errors(*statuses: int) -> Responses:
    """What else a route may answer, for its documentation."""
    return {one: {"model": Trouble, "description": REASONS[one]} for one in statuses}


def file_of(kind: str, what: str) -> Responses:
    """A file that a route answers with, for its documentation."""
    return {200: {"content": {kind: {}}, "description": what}}


PictureId = Annotated[str, Path(pattern=NAME, description="A sample, or the id of an upload.")]
Side = Annotated[
    int | None,
    Query(
        ge=SHORTEST_SIDE,
        le=LONGEST_SIDE,
        description="For a square thumbnail: pixels across, at most.",
    ),
]
JobId = Annotated[str, Path(pattern=NAME, description="The id that a job was given.")]
Shown = Literal["picture", "masked", "shuffled", "recovered"]
PNG = file_of("image/png", "A PNG file.")
_FILE = {"schema": {"type": "string", "format": "binary"}}
UPLOAD = {
    "requestBody": {
        "required": True,
        "description": "The file itself; no form. What it is, is told from its first bytes.",
        "content": dict.fromkeys((*FORMATS, "application/octet-stream"), _FILE),
    }
}


class SampleOffer(BaseModel):
    """A bundled picture."""

    name: str
    label: str


class LimitsOffer(BaseModel):
    """How much may be asked for."""

    model_config = ConfigDict(from_attributes=True)

    upload_bytes: int
    pixels: int
    formats: list[str] = list(FORMATS)
    jobs: int = Field(validation_alias="num_jobs")
    waiting: int
    seconds: float
    kept: int
    idle_seconds: float
    steps: int = MOST_STEPS
    restarts: int = MOST_RESTARTS
    rounds: int = MOST_ROUNDS


class Choices(BaseModel):
    """All that can be chosen."""

    version: str
    models: list[ModelOffer]
    attacks: list[AttackOffer]
    defences: list[DefenceOffer]
    samples: list[SampleOffer]
    limits: LimitsOffer


class PictureAnswer(BaseModel):
    """A picture that was taken."""

    id: str = Field(description="Its name from now on. Whoever knows it can see the picture.")
    width: int = Field(description="Of what is kept; larger pictures are shrunk.")
    height: int
    idle_seconds: float = Field(description="Forgotten when nobody asked for it this long.")


class PreviewRequest(BaseModel):
    """Whose jigsaw to draw."""

    model_config = ConfigDict(extra="forbid")

    picture: PictureName
    model: ModelKey = "small"
    defence: DefenceText = "mjp=0.03"
    seed: Seed = 0


class PreviewAnswer(BaseModel):
    """A jigsaw; a job with the same choices and seed has the same one."""

    rows: int
    cols: int
    masked: list[int] = Field(description="Numbers of the masked patches; 0 is top left.")
    source: list[int] = Field(description="Patch i of what the model is fed was patch source[i].")
    pictures: dict[str, str] = Field(
        description="`picture`, `masked` and `shuffled` as data URLs of PNG files."
    )


class JobRequest(PreviewRequest):
    """An attack to run."""

    attack: AttackName = "adaptive_solve"
    rounds: int = Field(
        default=1, ge=1, le=MOST_ROUNDS, description="Updates of the same picture that are sent."
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=MOST_STEPS,
        description="Of a search; the attack's own number for null.",
    )
    restarts: int | None = Field(default=None, ge=1, le=MOST_RESTARTS, description="Of a search.")


class Result(BaseModel):
    """What an attack got; PSNR in dB, numbers are null where there is nothing to measure."""

    level: str = Field(description="recovered, recognisable, traces, failed or does not apply.")
    verdict: str = Field(description="The same as a sentence.")
    reason: str = Field("", description="Why the attack does not apply, or a warning.")
    psnr: float | None = None
    ssim: float | None = None
    psnr_unmasked: float | None = Field(None, description="Over the patches that stayed in place.")
    psnr_masked: float | None = None
    psnr_shuffled: float | None = Field(None, description="Against what the model was fed.")
    psnr_guess: float = Field(description="Of the better trivial guess: mean colour, or grey.")
    masked_patches: int
    patches: int
    mask_recovered: bool | None = None
    fidelity: float = Field(description="Cosine of what was sent and the true gradient.")
    epsilon: float | None = Field(None, description="ε of DP-SGD for this one update.")
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
