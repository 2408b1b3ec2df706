"""`LossTerms`: the parts of a training loss, kept apart so that each can be reported."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LossTerms:
    """Classification loss, localization loss (DAL) and the weight λ of the latter."""

    classification: Float[Tensor, ""]
    localization: Float[Tensor, ""]
    weight: float

    @property
    def total(self) -> Float[Tensor, ""]:
        """What is minimised: classification + λ · localization."""
        return self.classification + self.weight * self.localization
