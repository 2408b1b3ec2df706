"""`Part`: what a part of a defence is; a new defence is one subclass."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mjp.core.configuration import check_at_least, check_count, check_ratio
from mjp.core.errors import ConfigError
from mjp.jigsaw import JigsawPlan
from mjp.privacy.public import PublicModel
from mjp.privacy.update import SharedUpdate

Gradients = dict[str, Tensor]
PARTS: dict[str, type["Part"]] = {}
"""All parts that a defence can be made of, by name; a class with a name is one as it is made."""


def number(
    title: str,
    *,
    least: int | float,
    most: int | float,
    example: int | float,
    control: tuple[int | float, int | float] | None = None,
    scale: Literal["linear", "log"] = "linear",
    default: Any = MISSING,
) -> Any:
    """The field of a part for a number: above 0, and a whole one where the field's type is int.

    Args:
        title: for a person.
        least, most: bounds beyond which nobody needs it.
        control: what a slider runs over, on its `scale`; by default all of it.
    """
    metadata = {"title": title, "least": least, "most": most, "example": example, "scale": scale}
    return field(default=default, metadata={**metadata, "control": control or (least, most)})


@dataclass(frozen=True)
class Part:
    """A part of a defence; by itself it changes nothing.

    Its numbers are fields made by `number`. A subclass with a `name` can be used in the text of a
    defence as soon as its class exists.

    Args:
        name: in the text of a defence.
        label: for a list to choose from; the first line of the docstring says what it does.
        words, clause: title and what it does, with {NAME}, {NAME_percent} or {self.ATTRIBUTE}.
        kind: of which a defence has one part at most, because of `reason`; by default its name.
        excludes: other parts by name that it cannot go with, and why.
        feeds: whether the model is fed something else or answers otherwise, so that the accuracy
            has to be measured under it; a class that does not say so is measured.
        training: what would have to be trained before that accuracy is the defence's: the `model`,
            or a model on such `gradients`.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    words: ClassVar[str]
    clause: ClassVar[str]
    kind: ClassVar[str]
    reason: ClassVar[str] = "one of them is enough"
    excludes: ClassVar[Mapping[str, str]] = {}
    feeds: ClassVar[bool] = True
    training: ClassVar[Literal["", "model", "gradients"]] = ""

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            PARTS[cls.name] = cls
            cls.kind = getattr(cls, "kind", cls.name)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            what = f"the {one.name.replace('_', ' ')} of {self.name}"
            if one.type is int:
                check_count(what, value)
            elif one.metadata["most"] <= 1:
                check_ratio(what, value)
            check_at_least(what, value, 0.0)
            if value == 0:
                raise ConfigError(f"{what} must be above 0, got {value!r}")

    @classmethod
    def usage(cls) -> str:
        """How it is written, such as `mjp=<ratio>[,<probability>]`."""
        needed = ",".join(f"<{one.name}>" for one in fields(cls) if one.default is MISSING)
        others = "".join(f"[,<{one.name}>]" for one in fields(cls) if one.default is not MISSING)
        return f"{cls.name}={needed}{others}" if needed else cls.name

    @property
    def title(self) -> str:
        """A few words for a report."""
        return self._filled(self.words)

    @property
    def about(self) -> str:
        """What it does, and what the attacker can still know: a clause."""
        return self._filled(self.clause)

    def _filled(self, text: str) -> str:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        shares = {f"{name}_percent": 100 * value for name, value in values.items()}
        return text.format(self=self, **values, **shares)

    def prepare(self, public: PublicModel) -> PublicModel:
        """The public model that goes with it, the same one where it does; an error if none can."""
        return public

    def notes(self, public: PublicModel) -> tuple[str, ...]:
        """What a report has to say about this defence of this model."""
        return ()

    def arrange(
        self, images: Float[Tensor, "batch 3 height width"], plan: JigsawPlan | None
    ) -> tuple[Float[Tensor, "batch 3 height width"], JigsawPlan | None]:
        """What the client's model gets of normalised images and their jigsaw."""
        return images, plan

    def check(self, update: SharedUpdate) -> None:
        """Raises unless the update is one of a client that has this part."""

    def process(
        self, gradients: Gradients, public: PublicModel, generator: torch.Generator
    ) -> Gradients:
        """The gradients as the client sends them."""
        return gradients

    def __str__(self) -> str:
        values = [(getattr(self, field.name), field.default) for field in fields(self)]
        while values and values[-1][1] is not MISSING and values[-1][0] == values[-1][1]:
            values.pop()
        # Without a plus, which joins parts.
        numbers = ",".join(
            re.sub(r"\.0$", "", repr(value)).replace("e+", "e") for value, _ in values
        )
        return f"{self.name}={numbers}" if numbers else self.name
