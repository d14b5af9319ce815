"""Waits until a script imports torch: what it sets before, such as environment variables, counts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gapless.unnoticed import Patches, unseen


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
        self._patches = Patches()
        if hasattr(sys.modules.get("torch"), "Tensor"):
            on_import()
        else:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Wait no longer."""
        self._patches.take_out()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how torch is imported, with a call of the function at the end of it.

        A script may ask whether there is a torch long before it imports it.
        """
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find: Any = getattr(finder, "find_spec", None)
            if find is None or finder is self:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                self._call_after(spec.loader)
                return spec
        return None

    def _call_after(self, loader: Any) -> None:
        """Let a loader, which is of torch alone, call the function once it has loaded it."""
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: ModuleType) -> None:
            with unseen:
                self._patches.take_out()
                load(module)
                if self in sys.meta_path:
                    self.remove()
                    self._on_import()

        self._patches.put(loader, "exec_module", exec_module)
