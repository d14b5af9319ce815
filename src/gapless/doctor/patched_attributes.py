"""Replace attributes of classes, modules and objects for a while."""

from __future__ import annotations

from typing import Any


_INHERITED = object()


class Patches:
    """Attributes that stand for others until `take_out`."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def put(self, holder: Any, name: str, value: Any) -> None:
        """Replace an attribute; one that the holder inherits is shadowed."""
        before = vars(holder).get(name, _INHERITED)
        setattr(holder, name, value)
        self._replaced.append((holder, name, before, vars(holder)[name]))

    def take_out(self) -> None:
        """Put back what was there, but not over what somebody else has put there since."""
        while self._replaced:
            holder, name, before, ours = self._replaced.pop()
            if vars(holder).get(name) is not ours:
                continue
            if before is _INHERITED:
                delattr(holder, name)
            else:
                setattr(holder, name, before)
