"""Small data sets on disk, in every layout that is supported."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = ("ant", "bee", "cat")


def pixels(number: int, size: tuple[int, int] = (20, 14)) -> np.ndarray:
    """A picture that its number decides."""
    return np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)


def encoded(number: int, size: tuple[int, int] = (20, 14)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(number, size)).save(buffer, "PNG")
    return buffer.getvalue()


def write_folder(root: Path, count: int = 12, classes: tuple[str, ...] = CLASSES) -> None:
    for number in range(count):
        folder = root / classes[number % len(classes)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:03d}.png").write_bytes(encoded(number))


def write_parquet(
    path: Path, numbers: range, labels: list[int] | None = None, group: int = 4, names: bool = True
) -> None:
    labels = [number % len(CLASSES) for number in numbers] if labels is None else labels
    rows = [{"bytes": encoded(number), "path": f"{number}.png"} for number in numbers]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(rows, kind), "label": pa.array(labels, pa.int64())})
    if names:
        features = {"image": {"_type": "Image"}}
        features["label"] = {"names": list(CLASSES), "_type": "ClassLabel"}
        meta = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(meta)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)


def write_tar(path: Path, numbers: range, labels: list[bytes] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for place, number in enumerate(numbers):
            label = str(number % len(CLASSES)).encode() if labels is None else labels[place]
            for name, content in (
                (f"{number:03d}.png", encoded(number)),
                (f"{number:03d}.cls", label),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
