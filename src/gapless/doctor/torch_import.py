"""Waits until a script imports torch: what it sets before, such as environment variables, counts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class TorchImport:
    """Calls a function once torch has been imported: at once if it has.

    Args:
        on_import: to call; it must not raise.
    """

    def __init__(self, on_import: Callable[[], None]) -> None:
        self._on_import = on_import
        if hasattr(sys.modules.get("torch"), "Tensor"):
            on_import()
        else:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how torch is imported, with a call of the function at the end of it."""
        if name != "torch":
            return None
        self.remove()
        for finder in list(sys.meta_path):
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    loader: Any = _Loader(spec.loader, self._on_import)
                    spec.loader = loader
                return spec
        return None


class _Loader:
    """Loads a module as its own loader does, which it is given back."""

    def __init__(self, loader: Any, on_import: Callable[[], None]) -> None:
        self._loader = loader
        self._on_import = on_import

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._on_import()
