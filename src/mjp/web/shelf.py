"""`Shelf`: the models that the page offers, by key. Only a key ever comes from a request."""

import copy
import re
from dataclasses import dataclass, replace

import timm
import torch
from torch import nn

from mjp.commands.audit_options import DEFAULT_SIZE
from mjp.core.seeds import seed_for
from mjp.models.facts import architecture_of
from mjp.models.opening import ModelName, open_model, open_models
from mjp.privacy.public import PublicModel
from mjp.web.refusing import RefusedError

SMALL = "small"
TRAINED_MJP = "trained-mjp"
TRAINED_PLAIN = "trained-plain"
DEIT = "deit-small"


@dataclass(frozen=True)
class Offer:
    """A model that a visitor can choose.

    Args:
        key: of requests.
        label, about: for people.
    """

    key: str
    label: str
    about: str


BUILT_IN = (
    Offer(
        TRAINED_MJP,
        "Small ViT, trained with MJP",
        "Four blocks, 48 x 48 pixels in 12 x 12 patches; 100 classes of ImageNet. Quick.",
    ),
    Offer(
        TRAINED_PLAIN,
        "Small ViT, trained without MJP",
        "The same model and data, trained without MJP.",
    ),
    Offer(
        SMALL,
        "Small ViT, random weights",
        "Four blocks, 96 x 96 pixels in 12 x 12 patches. Untrained, and quick: a second or two.",
    ),
    Offer(
        DEIT,
        "DeiT-S, random weights",
        "The paper's model, 224 x 224 pixels in 14 x 14 patches. Untrained, and slower.",
    ),
)


class Shelf:
    """The models: the built-in ones and those given.

    Args:
        texts: models as `mjp audit --model` takes them; opened here, so that a mistake is told
            before anything is served.
    """

    def __init__(self, texts: tuple[str, ...], device: torch.device) -> None:
        # All are made here and not when they are asked for: weights are drawn from torch's one
        # generator, and another thread that draws meanwhile would change them.
        self._made = {
            SMALL: PublicModel.of(small_model().to(device)),
            TRAINED_MJP: PublicModel.of(trained("mini-imagenet-mjp").to(device)),
            TRAINED_PLAIN: PublicModel.of(trained("mini-imagenet-plain").to(device)),
            DEIT: PublicModel.of(deit_small().to(device)),
        }
        self._offers = {offer.key: offer for offer in BUILT_IN}
        for label, model in (open_models(texts) if texts else {}).items():
            key = _key(label, set(self._offers))
            public = PublicModel.of(model.to(device))
            about = f"{architecture_of(model)}, as it was given when the server started."
            self._offers[key] = Offer(key, label, _sized(about, public))
            self._made[key] = public

    def offers(self) -> list[Offer]:
        """What there is, those that were given first."""
        given = [offer for offer in self._offers.values() if offer not in BUILT_IN]
        return [*given, *BUILT_IN]

    def label(self, key: str) -> str:
        """What people call the model."""
        return self._offers[self._known(key)].label

    def public(self, key: str) -> PublicModel:
        """The model of this key. It is shared: whoever computes with it takes a `copy`."""
        return self._made[self._known(key)]

    def copy(self, key: str) -> PublicModel:
        """A model of one's own: torch swaps parameters in place, which two threads must not."""
        public = self.public(key)
        return replace(public, model=copy.deepcopy(public.model))

    def _known(self, key: str) -> str:
        if key not in self._offers:
            there = ", ".join(offer.key for offer in self.offers())
            raise RefusedError(422, f"There is no such model. There are: {there}.")
        return key


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


def trained(name: str) -> nn.Module:
    """A trained model of the package, for images of fewer patches than it is wide.

    At its own 64 pixels it has 256 patches of width 192, which leaves closed forms part of the
    picture open whatever the defence.
    """
    model: nn.Module = open_model(ModelName.parse(f"pretrained:{name}"), DEFAULT_SIZE)
    return model


def deit_small() -> nn.Module:
    """The paper's model, drawn from a seed."""
    model: nn.Module = open_model(ModelName.parse("deit_small_patch16_224@random"))
    return model


def _key(label: str, taken: set[str]) -> str:
    """A short name for requests, different from those that are taken."""
    plain = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40] or "model"
    key, number = plain, 2
    while key in taken:
        key, number = f"{plain}-{number}", number + 1
    return key


def _sized(about: str, public: PublicModel) -> str:
    height, width = public.size
    rows, cols = public.grid.rows, public.grid.cols
    return f"{about} {height} x {width} pixels in {rows} x {cols} patches."
