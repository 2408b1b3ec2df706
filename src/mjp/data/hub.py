"""Data sets on the Hugging Face hub, or local snapshots of them, through timm's reader."""

from typing import Any

import numpy as np

from mjp.core.errors import DataError
from mjp.data.source import Sample, Source


class HubSource(Source):
    """timm's reader of a hub data set with columns `image` and `label`."""

    def __init__(self, name: str, split: str, classes: tuple[str, ...] | None = None) -> None:
        from timm.data.readers.reader_hfds import ReaderHfds  # Needs the extra `hub`.

        self._split = split
        try:
            self._reader: Any = ReaderHfds(name, split=split)
            labels = np.asarray(self._reader.dataset["label"])
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise DataError(
                f"data set {name!r}, split {split!r}, cannot be had: {error}"
            ) from error
        by_number = {number: text for text, number in self._reader.class_to_idx.items()}
        found = tuple(by_number[number] for number in sorted(by_number))
        if not found:
            found = classes or tuple(map(str, range(int(labels.max(initial=-1)) + 1)))
        if classes is not None and found != classes:
            raise DataError(f"split {split!r} of {name!r} lists other classes than training does")
        super().__init__(found, labels, f"{name} ({split})")

    def name_of(self, index: int) -> str:
        return f"{self.name} row {index}"

    def __getitem__(self, index: int) -> Sample:
        file, label = self._reader[index]
        with file:
            return Sample(file.read(), int(label))
