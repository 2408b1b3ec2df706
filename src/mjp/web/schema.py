"""What requests and answers of the API look like."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mjp.web.choices import LONGEST_DEFENCE
from mjp.web.jobs import State
from mjp.web.limits import LARGEST_SEED, MOST_RESTARTS, MOST_ROUNDS, MOST_STEPS

NAME = r"^[A-Za-z0-9_-]{1,64}$"
"""What names of pictures, jobs, models and attacks are made of."""

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
]
PictureName = Annotated[
    Name,
    Field(
        description="A sample, or the id that an upload was given.",
        examples=["astronaut"],
    ),
]
ModelKey = Annotated[Name, Field(description="Key of a model.", examples=["small"])]


class Trouble(BaseModel):
    """Why a request was refused."""

    error: str = Field(
        description="A sentence for people.",
        examples=["There is no such picture; it may have been forgotten. Upload it again."],
    )


class ModelOffer(BaseModel):
    """A model to choose."""

    key: str
    label: str
    about: str


class AttackOffer(BaseModel):
    """An attack to choose."""

    name: str
    about: str
    kind: Literal["closed", "search"] = Field(
        description="`closed` for linear algebra (seconds), `search` for minutes."
    )
    knows_defence: bool


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


class SampleOffer(BaseModel):
    """A bundled picture."""

    name: str
    label: str


class LimitsOffer(BaseModel):
    """How much may be asked for."""

    upload_bytes: int
    pixels: int
    formats: list[str]
    jobs: int
    waiting: int
    seconds: float
    kept: int
    idle_seconds: float
    steps: int
    restarts: int
    rounds: int


class Options(BaseModel):
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


class JobRequest(BaseModel):
    """An attack to run."""

    model_config = ConfigDict(extra="forbid")

    picture: PictureName
    model: ModelKey = "small"
    defence: DefenceText = "mjp=0.03"
    attack: Annotated[Name, Field(examples=["adaptive_solve"])] = "adaptive_solve"
    seed: Seed = 0
    rounds: int = Field(
        1, ge=1, le=MOST_ROUNDS, description="Updates of the same picture that are sent."
    )
    steps: int | None = Field(
        None, ge=1, le=MOST_STEPS, description="Of a search; the attack's own number for null."
    )
    restarts: int | None = Field(None, ge=1, le=MOST_RESTARTS, description="Of a search.")


class Result(BaseModel):
    """What an attack got; PSNR in dB, numbers are null where there is nothing to measure."""

    level: str = Field(description="recovered, recognisable, traces, failed or does not apply.")
    verdict: str = Field(description="The same as a sentence.")
    reason: str = Field(description="Why the attack does not apply, or a warning.")
    psnr: float | None
    ssim: float | None
    psnr_unmasked: float | None = Field(description="Over the patches that stayed in place.")
    psnr_masked: float | None
    psnr_shuffled: float | None = Field(description="Against what the model was fed.")
    psnr_guess: float = Field(description="Of the better trivial guess: mean colour, or grey.")
    masked_patches: int
    patches: int
    mask_recovered: bool | None
    fidelity: float = Field(description="Cosine of what was sent and the true gradient.")
    epsilon: float | None = Field(description="ε of DP-SGD for this one update.")
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
