"""Wrapped models: around a model of the caller's, or by name; importing registers `mjp_<name>`."""

import difflib
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from typing import Any

import timm
import torch
from timm import models as timm_models
from timm.layers import Format
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from mjp.core.errors import ConfigError, UnsupportedModelError
from mjp.jigsaw import JigsawPlan
from mjp.models.backbone import MJPBackbone, check_images
from mjp.models.config import MJPConfig
from mjp.models.hierarchical import MJPResNet, MJPSwinTransformer, use_small_stem
from mjp.models.vit import MJPVisionTransformer, MJPVisionTransformerDistilled
from mjp.models.weights import PREFIX, fit_to_model

_VITS = (MJPVisionTransformer, MJPVisionTransformerDistilled)
ADAPTERS: tuple[type[MJPBackbone], ...] = (*_VITS, MJPSwinTransformer, MJPResNet)
TIMM_MODULES = tuple(dict.fromkeys(name for adapter in ADAPTERS for name in adapter.timm_modules))
SUPPORTED = "supported are timm's " + ", ".join(dict.fromkeys(one.family for one in ADAPTERS))

default_cfgs: dict[str, Any] = {}  # Read by timm's `register_model`: where the weights are.
# Arguments that do not say what the model is.
_NOT_OF_THE_MODEL = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "features_only")


def wrap(model: nn.Module, config: MJPConfig | None = None) -> MJPBackbone:
    """MJP around a timm model: the same weights, and the same outputs until a plan is passed.

    The result takes over the parameters and submodules of `model`; use it in its place. Its type is
    a subclass of the model's own. Two things of timm's are not for wrapped models: TorchScript and
    symbolic tracing (`torch.fx`).
    """
    if isinstance(model, MJPBackbone):
        raise ConfigError("this model is wrapped already; wrap the timm model it was made from")
    adapter = next((one for one in ADAPTERS if one.timm_class is type(model)), None)
    if adapter is None:
        raise UnsupportedModelError(f"mjp has no adapter for {type(model).__name__}; {SUPPORTED}")
    wrapped = adapter.of(model, config or MJPConfig())
    described = getattr(model, "pretrained_cfg", None) or {}
    if architecture := described.get("architecture"):
        wrapped.pretrained_cfg = {**described, "architecture": PREFIX + architecture}
        wrapped.default_cfg = wrapped.pretrained_cfg
    return wrapped


def create_model(
    name: str, config: MJPConfig | None = None, *, pretrained: bool = False, **arguments: Any
) -> Any:
    """A wrapped model by the name of a timm architecture, or an `hf-hub:` or `local-dir:` source.

    Args:
        pretrained: load timm's weights for that name (for a file, see `mjp.load_weights`).
        arguments: passed to timm: num_classes, img_size, drop_path_rate, …; and one that is not
            timm's, `small_stem=True`, for a ResNet on images of about 64 pixels: it begins with one
            3x3 convolution of stride 2 and does not pool after it.
    """
    source, rest = timm_models.parse_model_name(name)
    if source:
        model = timm.create_model(name, pretrained=pretrained, **arguments)
        if not isinstance(model, MJPBackbone):
            return wrap(model, config)
        if config not in (None, model.mjp_config):
            raise ConfigError(f"{name} has a configuration of its own: {model.mjp_config}")
        return model
    architecture, tag = timm_models.split_model_name_tag(rest)
    arguments = {key: value for key, value in arguments.items() if value is not None}
    if pretrained and arguments.get("small_stem"):
        raise ConfigError("no weights of timm's fit small_stem; leave it or pretrained out")
    config = config or MJPConfig()
    return build(architecture, config, pretrained, pretrained_cfg=tag or None, **arguments)


def build(architecture: str, config: MJPConfig, pretrained: bool = False, **arguments: Any) -> Any:
    """Builds a wrapped model the way timm builds its own, features_only and loading included."""
    architecture = architecture.removeprefix(PREFIX)
    adapter = check_supported(architecture)
    if wrong := arguments.keys() & {"checkpoint_path", "mjp"}:
        raise ConfigError(
            f"{wrong.pop()} is no argument here: load a file with mjp.load_weights, and pass the "
            "configuration as config"
        )
    small_stem = arguments.get("small_stem", False)
    if not isinstance(small_stem, bool) or (small_stem and adapter is not MJPResNet):
        raise ConfigError(
            f"small_stem={small_stem!r} does not fit {architecture}: it is true or false, and for "
            "ResNets alone; give others img_size and patch_size or window_size for small images"
        )
    maps = len(arguments["depths"]) if "depths" in arguments else adapter.num_feature_maps
    indices = arguments.pop("out_indices", None) or maps
    recorded = {key: value for key, value in arguments.items() if key not in _NOT_OF_THE_MODEL}

    def construct(small_stem: bool = False, **timm_arguments: Any) -> MJPBackbone:
        # The entry itself, not timm.create_model: that would also load files named in arguments.
        plain = timm_models.model_entrypoint(architecture)(pretrained=False, **timm_arguments)
        if small_stem:
            use_small_stem(plain)
        model = wrap(plain, config)
        if config.position_init_std != MJPConfig.position_init_std:
            model.reset_positions()
        model.mjp_arguments = recorded
        return model

    return timm_models.build_model_with_cfg(
        construct,
        PREFIX + architecture,
        pretrained,
        pretrained_filter_fn=fit_to_model,
        # timm's own choice for Swin and ResNet flattens the model into a list of layers, which
        # leaves out what is added outside of them; this runs the model's forward pass.
        feature_cfg={"feature_cls": MJPFeatures, "out_indices": indices},
        **arguments,
    )


class MJPFeatures(FeatureGetterNet):
    """timm's feature extractor, whose forward call also takes a plan."""

    def forward(self, x: Tensor, plan: JigsawPlan | None = None) -> list[Tensor]:
        """Feature maps in timm's own layout for the family: NHWC for Swin, NCHW for others."""
        check_images(x)
        maps = self.model.forward_intermediates(
            x, indices=self.out_indices, norm=self.norm, intermediates_only=True, plan=plan
        )
        if self.output_fmt == Format.NHWC:
            return [one.permute(0, 2, 3, 1) for one in maps]
        return maps

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay, as they are called here."""
        return {f"model.{name}" for name in self.model.no_weight_decay()}

    def draw_plan(self, images: Tensor, generator: torch.Generator) -> JigsawPlan | None:
        """A plan for this batch by the model's configuration, or None."""
        return self.model.draw_plan(images, generator)

    def localization_loss(self, plan: JigsawPlan | None) -> Tensor:
        """DAL of the model's position table."""
        return self.model.localization_loss(plan)


def check_supported(architecture: str) -> type[MJPBackbone]:
    """The adapter of an architecture of timm's; an error where there is none."""
    if timm_models.is_model(architecture):
        for adapter in ADAPTERS:
            if timm_models.is_model_in_modules(architecture, adapter.timm_modules):
                return adapter
        raise UnsupportedModelError(f"mjp has no adapter for {architecture}; {SUPPORTED}")
    close = difflib.get_close_matches(architecture, supported_architectures(), n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ConfigError(f"timm has no model named {architecture!r}{hint}")


def supported_architectures() -> list[str]:
    """The names of all timm architectures that have an adapter."""
    return [name for module in TIMM_MODULES for name in timm_models.list_models(module=module)]


def _register(architecture: str, configs: Any) -> None:
    """Makes `timm.create_model("mjp_…")` work, for one architecture."""
    name = PREFIX + architecture
    if configs is not None:
        configs = deepcopy(configs)
        for tag, config in configs.cfgs.items():
            # timm completes a bare 'timm/' with the name being registered, which is not the hub's.
            if config.hf_hub_id == "timm/":
                hub = f"timm/{architecture}.{tag}" if tag else f"timm/{architecture}"
                configs.cfgs[tag] = replace(config, hf_hub_id=hub)
        default_cfgs[name] = configs

    def entry(pretrained: bool = False, mjp: Any = None, **arguments: Any) -> Any:
        config = mjp if isinstance(mjp, MJPConfig) else MJPConfig.from_dict(mjp or {})
        return build(architecture, config, pretrained, **arguments)

    entry.__name__ = entry.__qualname__ = name
    timm_models.register_model(entry)


for _module in TIMM_MODULES:
    _configs = import_module(f"timm.models.{_module}").default_cfgs
    for _architecture in timm_models.list_models(module=_module):
        _register(_architecture, _configs.get(_architecture))
