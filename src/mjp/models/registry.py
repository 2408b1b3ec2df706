"""Makes `timm.create_model("mjp_…")` work: one entry for each architecture with an adapter.

Registering may happen in the middle of any other module's `import timm`, so nothing here imports
timm, torch or the adapters before it is called.
"""

from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from typing import Any

PREFIX = "mjp_"

SUPPORTED_MODULES = ("vision_transformer", "deit", "swin_transformer", "resnet")
"""The modules of timm whose architectures are built from the classes that have an adapter."""

default_cfgs: dict[str, Any] = {}
"""Read by timm's `register_model`: where the weights of each name are."""


def supported_architectures() -> list[str]:
    """The names of all timm architectures that have an adapter."""
    from timm.models import list_models

    return [name for module in SUPPORTED_MODULES for name in list_models(module=module)]


def register_all() -> None:
    """Registers `mjp_<timm name>` for every supported architecture of timm."""
    from timm.models import is_model, list_models

    for module in SUPPORTED_MODULES:
        configs = import_module(f"timm.models.{module}").default_cfgs
        for architecture in list_models(module=module):
            if not is_model(PREFIX + architecture):
                _register(architecture, configs.get(architecture))


def _register(architecture: str, configs: Any) -> None:
    from timm.models import register_model

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
        from mjp.models.config import MJPConfig
        from mjp.models.factory import build

        config = mjp if isinstance(mjp, MJPConfig) else MJPConfig.from_dict(mjp or {})
        return build(architecture, config, pretrained, **arguments)

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f"{architecture} with Masked Jigsaw Puzzle position embeddings."
    register_model(entry)
