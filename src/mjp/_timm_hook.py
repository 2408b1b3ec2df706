"""Registers mjp's models with timm once timm is there, without importing it for that.

timm takes seconds to import; `mjp --help` and `import mjp` should not. So where timm is loaded
already its registry is filled at once, and otherwise when somebody imports it.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def register_when_timm_is_imported() -> None:
    """Fills timm's registry now, or right after timm is imported."""
    if "timm" in sys.modules:
        _register()
    elif not any(isinstance(finder, _AfterTimm) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTimm())


def _register() -> None:
    import_module("mjp.models.registry").register_all()


class _AfterTimm(MetaPathFinder):
    """Finds timm like any other module, but with a loader that registers after loading."""

    _asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "timm" or self._asking:
            return None
        self._asking = True  # So that the question below goes to the other finders.
        try:
            spec = find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader, self)
        return spec


class _RegisteringLoader(Loader):
    def __init__(self, loader: Loader, finder: MetaPathFinder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # Such as get_data, for those who only look.

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader, so that resources and source are found as ever.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _register()
