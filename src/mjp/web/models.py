"""`Models`: the models that the page offers, by key. Only a key ever comes from a request."""

import copy
import re
import threading
from dataclasses import replace

import timm
import torch
from starlette.exceptions import HTTPException
from torch import nn

from mjp.core.seeds import seed_for
from mjp.models.opening import ModelName, open_model, open_models
from mjp.models.subject import architecture_of
from mjp.privacy.config import DEFAULT_SIZE
from mjp.privacy.public import PublicModel

BUILT_IN = {
    "trained-mjp": ("Small ViT, trained with MJP", "Four blocks; 100 classes of ImageNet. Quick."),
    "trained-plain": (
        "Small ViT, trained without MJP",
        "The same model and data, trained without MJP.",
    ),
    "small": ("Small ViT, random weights", "Four blocks. Untrained, and quick: a second or two."),
    "deit-small": ("DeiT-S, random weights", "The paper's model. Untrained, and slower."),
}


class Models:
    """The models that were given when the server started, and the built-in ones; all are opened
    here, so that a mistake is told before anything is served."""

    def __init__(self, texts: tuple[str, ...], device: torch.device) -> None:
        # All are made here and not when they are asked for: weights are drawn from torch's one
        # generator, and another thread that draws meanwhile would change them.
        self._public: dict[str, PublicModel] = {}
        self._copies = threading.local()
        self.offers: list[dict[str, str]] = []
        for label, model in (open_models(texts) if texts else {}).items():
            about = f"{architecture_of(model)}, as it was given when the server started."
            plain = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40] or "model"
            key, number = plain, 2
            while key in BUILT_IN or key in self._public:
                key, number = f"{plain}-{number}", number + 1
            self._add(key, label, about, model.to(device))
        for key, (label, about) in BUILT_IN.items():
            self._add(key, label, about, _built_in(key).to(device))

    def _add(self, key: str, label: str, about: str, model: nn.Module) -> None:
        public = self._public[key] = PublicModel.of(model)
        (height, width), grid = public.size, public.grid
        size = f"{height} x {width} pixels in {grid.rows} x {grid.cols} patches."
        self.offers.append({"key": key, "label": label, "about": f"{about} {size}"})

    def __getitem__(self, key: str) -> PublicModel:
        """The model of this key, for looking only; see `of_thread`."""
        if key not in self._public:
            names = ", ".join(self._public)
            raise HTTPException(422, f"There is no such model. There are: {names}.")
        return self._public[key]

    def label(self, key: str) -> str:
        """What people call the model."""
        return next(offer["label"] for offer in self.offers if offer["key"] == key)

    def of_thread(self, key: str) -> PublicModel:
        """This thread's copy of it: torch swaps parameters in place, which two threads must not."""
        copies: dict[str, PublicModel] = self._copies.__dict__
        if key not in copies:
            copies[key] = replace(self[key], model=copy.deepcopy(self[key].model))
        return copies[key]


def _built_in(key: str) -> nn.Module:
    if key == "small":
        return small_model()
    if key == "deit-small":
        return open_model(ModelName.parse("deit_small_patch16_224@random"))
    # At their own 64 pixels they have 256 patches of width 192, which leaves closed forms part of
    # the picture open whatever the defence.
    return open_model(
        ModelName.parse(f"pretrained:mini-imagenet-{key.removeprefix('trained-')}"), DEFAULT_SIZE
    )


def small_model() -> nn.Module:
    """A ViT wide enough for closed forms (192 numbers a token, 144 patches), drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(0, "weights"))
        model: nn.Module = timm.create_model(
            "vit_tiny_patch16_224",
            img_size=96,
            patch_size=8,
            embed_dim=192,
            depth=4,
            num_heads=3,
            num_classes=100,
        )
    return model.eval()
