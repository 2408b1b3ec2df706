"""`Album`: the pictures that can be attacked: bundled samples, and uploads held in memory."""

from dataclasses import dataclass
from functools import cache

from PIL import Image

from mjp.data.embedded import photograph
from mjp.web.choices import SAMPLES
from mjp.web.limits import LONGEST_SIDE, Limits
from mjp.web.refusing import RefusedError
from mjp.web.store import Store, new_id


@dataclass(frozen=True, eq=False)
class Held:
    """A picture, and what it is called in results."""

    image: Image.Image
    name: str


class Album:
    """Pictures by name; those of visitors have names that nobody can guess."""

    def __init__(self, limits: Limits) -> None:
        self.uploads: Store[Image.Image] = Store(limits.kept, limits.idle_seconds)

    def add(self, image: Image.Image) -> str:
        """Holds a picture; the name under which it can be had."""
        name = new_id()
        self.uploads.add(name, image)
        return name

    def get(self, name: str) -> Held:
        """The picture of this name; a refusal where there is none."""
        if name in SAMPLES:
            return Held(sample(name), name)
        image = self.uploads.get(name)
        if image is None:
            raise RefusedError(
                404, "There is no such picture; it may have been forgotten. Upload it again."
            )
        return Held(image, "upload")

    def remove(self, name: str) -> None:
        """Forgets a picture; a refusal where there is none."""
        if name in SAMPLES:
            raise RefusedError(403, "A bundled picture cannot be removed.")
        if self.uploads.remove(name) is None:
            raise RefusedError(404, "There is no such picture; it may have been forgotten already.")


@cache
def sample(name: str) -> Image.Image:
    """A bundled photograph, small; the name is one of `SAMPLES`."""
    image = photograph(name)
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    return image
