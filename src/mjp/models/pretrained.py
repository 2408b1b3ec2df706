"""The small trained models that are part of the package, by their names."""

import difflib
from pathlib import Path
from typing import Any

from mjp.core.errors import ConfigError
from mjp.models.checkpoint import load, save
from mjp.models.weights import CONFIG_NAME, Head

FOLDER = Path(__file__).parents[1] / "pretrained"
"""Where the models of the package lie, each in a folder with its model card."""


def pretrained(name: str, *, head: Head = "load", **arguments: Any) -> Any:
    """A small trained model of the package, in evaluation mode and single precision.

    `mini-imagenet-plain` and `mini-imagenet-mjp`: ViTs of four blocks without and with MJP, for 100
    classes of ImageNet at 64 pixels, of 2 million parameters each.

    Args:
        head, arguments: as for `mjp.load`: another num_classes, an img_size, …
    """
    return load(pretrained_folder(name), head=head, **arguments).eval()


def pretrained_names() -> list[str]:
    """The models of the package."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CONFIG_NAME}"))


def pretrained_folder(name: str) -> Path:
    """Where a model of the package lies."""
    names = pretrained_names()
    if name in names:
        return FOLDER / name
    close = difflib.get_close_matches(name, names, n=2)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ConfigError(
        f"mjp has no trained model named {name!r}{hint} (there is {', '.join(names)})"
    )


def pack(source: str | Path, name: str) -> None:
    """Puts a model that `mjp.save` wrote into the package, in half precision; for maintainers."""
    model = load(source)
    # What timm says of its own weights of this architecture is not true of these.
    own = {"tag": "", "license": "mit", "num_classes": model.num_classes}
    model.pretrained_cfg = {**model.pretrained_cfg, **own}
    save(model, FOLDER / name, precision="fp16")
