"""An object in a function's place, which has the function's attributes."""

from __future__ import annotations

from types import FunctionType
from typing import Any


class StandIn:
    """Reads and writes the attributes of a function that it has none of itself.

    There is one value for both, whoever changes it, as there is where nothing stands in between.
    """

    stood_for: FunctionType | None = None
    """The function in whose place it is; None if that is another object."""

    def stand_for(self, function: object) -> None:
        """From now on, what is not an attribute yet is one of the function; other objects have none to share."""
        if isinstance(function, FunctionType):
            vars(self)["stood_for"] = function

    def __getattr__(self, name: str) -> Any:
        entries = {} if self.stood_for is None else vars(self.stood_for)
        if name in entries:
            return entries[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in vars(self) or hasattr(type(self), name)
        if self.stood_for is None or is_own:
            super().__setattr__(name, value)
        else:
            vars(self.stood_for)[name] = value

    def __delattr__(self, name: str) -> None:
        if self.stood_for is not None and name in vars(self.stood_for):
            del vars(self.stood_for)[name]
        else:
            super().__delattr__(name)
