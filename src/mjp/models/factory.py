"""Makes wrapped models: around a model the caller has, or by the name of a timm architecture."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import timm
from timm.models import (
    build_model_with_cfg,
    is_model,
    is_model_in_modules,
    model_entrypoint,
    parse_model_name,
    split_model_name_tag,
)
from timm.models.deit import VisionTransformerDistilled
from timm.models.resnet import ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from mjp.core.errors import ConfigError, UnsupportedModelError
from mjp.models.backbone import MJPBackbone
from mjp.models.config import MJPConfig
from mjp.models.features import MJPFeatures
from mjp.models.registry import PREFIX, SUPPORTED_MODULES, supported_architectures
from mjp.models.resnet import MJPResNet, use_small_stem
from mjp.models.swin import MJPSwinTransformer
from mjp.models.vit import MJPVisionTransformer, MJPVisionTransformerDistilled
from mjp.models.weights import fit_to_model

ADAPTERS: Mapping[type[nn.Module], type[MJPBackbone]] = MappingProxyType(
    {
        VisionTransformer: MJPVisionTransformer,
        VisionTransformerDistilled: MJPVisionTransformerDistilled,
        SwinTransformer: MJPSwinTransformer,
        ResNet: MJPResNet,
    }
)


_NOT_OF_THE_MODEL = frozenset(
    ["pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "features_only", "out_indices"]
)
"""Arguments that do not say what the model is."""


def wrap(model: nn.Module, config: MJPConfig | None = None) -> MJPBackbone:
    """MJP around a timm model: the same weights, and the same outputs until a plan is passed.

    The result takes over the parameters and submodules of `model`; use it in its place. Its type is
    a subclass of the model's own. Two things of timm's are not for wrapped models: TorchScript and
    symbolic tracing (`torch.fx`).
    """
    config = MJPConfig() if config is None else config
    if isinstance(model, MJPBackbone):
        raise ConfigError("this model is wrapped already; wrap the timm model it was made from")
    adapter = ADAPTERS.get(type(model))
    if adapter is None:
        raise UnsupportedModelError(
            f"mjp has no adapter for {type(model).__module__}.{type(model).__qualname__}; "
            f"supported are timm's {_supported()}"
        )
    wrapped = adapter.of(model, config)
    pretrained_cfg = getattr(model, "pretrained_cfg", None) or {}
    if architecture := pretrained_cfg.get("architecture"):
        wrapped.pretrained_cfg = {**pretrained_cfg, "architecture": PREFIX + architecture}
        wrapped.default_cfg = wrapped.pretrained_cfg
    return wrapped


def create_model(
    name: str, config: MJPConfig | None = None, *, pretrained: bool = False, **arguments: Any
) -> Any:
    """A wrapped model by the name of a timm architecture.

    Args:
        name: a timm name, with or without a tag; also `hf-hub:` and `local-dir:` sources.
        pretrained: load timm's weights for that name (needs a network; for a file, see
            `mjp.load_weights`).
        arguments: passed to timm: num_classes, img_size, drop_path_rate, …; and one that is not
            timm's, `small_stem=True`, for a ResNet on images of about 64 pixels: it begins with one
            3x3 convolution of stride 2 and does not pool after it.
    """
    source, rest = parse_model_name(name)
    if source:
        model = timm.create_model(name, pretrained=pretrained, **arguments)
        if not isinstance(model, MJPBackbone):
            return wrap(model, config)
        if config not in (None, model.mjp_config):
            raise ConfigError(f"{name} has a configuration of its own: {model.mjp_config}")
        return model
    config = MJPConfig() if config is None else config
    architecture, tag = split_model_name_tag(rest.removeprefix(PREFIX))
    arguments = {key: value for key, value in arguments.items() if value is not None}
    if pretrained and arguments.get("small_stem"):
        raise ConfigError("no weights of timm's fit small_stem; leave it or pretrained out")
    return build(architecture, config, pretrained, pretrained_cfg=tag or None, **arguments)


def build(architecture: str, config: MJPConfig, pretrained: bool = False, **arguments: Any) -> Any:
    """Builds a wrapped model the way timm builds its own, features_only and loading included."""
    check_supported(architecture)
    for name, instead in (
        ("checkpoint_path", "load the file with mjp.load_weights"),
        ("mjp", "pass the configuration as config"),
    ):
        if name in arguments:
            raise ConfigError(f"{name} is no argument here; {instead}")
    _check_small_stem(architecture, arguments.get("small_stem", False))
    recorded = {key: value for key, value in arguments.items() if key not in _NOT_OF_THE_MODEL}

    def construct(small_stem: bool = False, **timm_arguments: Any) -> MJPBackbone:
        # The entry itself, not timm.create_model: that would also load files named in arguments.
        plain = model_entrypoint(architecture)(pretrained=False, **timm_arguments)
        if small_stem:
            use_small_stem(plain)
        model = wrap(plain, config)
        if config.position_init_std != MJPConfig.position_init_std:
            model.reset_positions()
        model.mjp_arguments = recorded
        return model

    return build_model_with_cfg(
        construct,
        PREFIX + architecture,
        pretrained,
        pretrained_filter_fn=fit_to_model,
        feature_cfg={
            # timm's own choice for Swin and ResNet flattens the model into a list of layers, which
            # leaves out what is added outside of them; this runs the model's forward pass.
            "feature_cls": MJPFeatures,
            "out_indices": arguments.pop("out_indices", None)
            or _default_out_indices(architecture, arguments),
        },
        **arguments,
    )


def _check_small_stem(architecture: str, small_stem: object) -> None:
    if not isinstance(small_stem, bool):
        raise ConfigError(f"small_stem must be true or false, got {small_stem!r}")
    if small_stem and not is_model_in_modules(architecture, ["resnet"]):
        raise ConfigError(
            f"small_stem is for ResNets, and {architecture} is none; leave it out, and give "
            "img_size and patch_size or window_size to fit small images"
        )


def _default_out_indices(architecture: str, arguments: Mapping[str, Any]) -> int:
    """As many of the last feature maps as timm's own models give by default."""
    if is_model_in_modules(architecture, ["swin_transformer"]):
        return len(arguments.get("depths", (2, 2, 6, 2)))
    return 5 if is_model_in_modules(architecture, ["resnet"]) else 3


def check_supported(architecture: str) -> None:
    """Raises unless timm has an architecture of this name and mjp an adapter for it."""
    if is_model(architecture) and is_model_in_modules(architecture, SUPPORTED_MODULES):
        return
    if is_model(architecture):
        raise UnsupportedModelError(
            f"mjp has no adapter for {architecture}; supported are timm's {_supported()}"
        )
    close = difflib.get_close_matches(architecture, supported_architectures(), n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ConfigError(f"timm has no model named {architecture!r}{hint}")


def _supported() -> str:
    return (
        "ViT and DeiT (VisionTransformer, VisionTransformerDistilled), Swin (SwinTransformer) and "
        "ResNet (ResNet)"
    )
