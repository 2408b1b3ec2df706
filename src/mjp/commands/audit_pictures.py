"""The pictures that an audit is about: bundled, a person's own, or of a data set."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mjp.core.errors import DataError
from mjp.core.seeds import generator_for
from mjp.data.decoding import View
from mjp.data.embedded import PHOTOGRAPHS, photograph
from mjp.data.opening import open_images
from mjp.data.source import Sample, Source, drawn, pictures_under


@dataclass(frozen=True, eq=False)
class Album:
    """Pictures by name.

    Args:
        content: undecoded.
        source: the data set they are of; None for pictures without classes.
    """

    title: str
    names: tuple[str, ...]
    content: tuple[Sample, ...]
    source: Source | None = None

    def shown(self, view: View) -> Tensor:
        """The pictures as a model is shown them: levels, (pictures, 3, height, width)."""
        cut = view.transform()
        rows = []
        for name, sample in zip(self.names, self.content, strict=True):
            try:
                rows.append(torch.as_tensor(cut(sample.decode())))
            except (DataError, OSError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise DataError(f"{name} {reason}") from error
        return torch.stack(rows)


def open_album(where: str, most: int, seed: int) -> tuple[Album, Source | None]:
    """So many of the pictures, and the whole data set where they are of one."""
    if where == "photographs":
        names = PHOTOGRAPHS[:most]
        content = tuple(Sample(_levels(name), 0) for name in names)
        return Album(f"{len(names)} bundled photographs", names, content), None
    path = Path(where).expanduser()
    files = _loose_pictures(path)
    if files:
        chosen = files[:most]
        content = tuple(Sample(file, 0) for file in chosen)
        return Album(f"{len(chosen)} pictures", tuple(file.name for file in chosen), content), None
    whole = open_images(where)
    some = drawn(whole, most, generator_for(seed, "images"))
    content = tuple(some[index] for index in range(len(some)))
    names = tuple(some.name_of(index) for index in range(len(some)))
    return Album(some.name, names, content, some), whole


def _levels(name: str):  # type: ignore[no-untyped-def]
    import numpy as np

    return np.asarray(photograph(name))


def _loose_pictures(path: Path) -> list[Path]:
    """A picture, or those that lie in a folder by themselves; none for a data set."""
    if path.is_file():
        return [] if path.suffix in (".parquet", ".tar") else [path]
    if not path.is_dir():
        raise DataError(f"there is no picture, folder or data set {path}")
    own = {file.name for file in path.iterdir() if file.is_file()}
    return sorted(file for file in pictures_under(path) if file.parent == path and file.name in own)
