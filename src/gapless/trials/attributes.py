"""Put something in the place of an attribute, and take it out again."""

from __future__ import annotations

from typing import Any


_MISSING: Any = object()


class Patches:
    """Attributes that have other values for a while."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any, Any]] = []

    def put(self, holder: Any, name: str, value: Any) -> None:
        """Give a module, a class or an object an attribute of its own."""
        self._before.append((holder, name, vars(holder).get(name, _MISSING), value))
        setattr(holder, name, value)

    def take_out(self) -> None:
        """Give back what was there, where nobody has put something else in the place meanwhile."""
        while self._before:
            holder, name, before, value = self._before.pop()
            if vars(holder).get(name, _MISSING) is not value:
                continue
            if before is _MISSING:
                delattr(holder, name)
            else:
                setattr(holder, name, before)
