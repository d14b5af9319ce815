"""An object in a step's place, which has the step's attributes."""

from __future__ import annotations

from typing import Any


class StandIn:
    """Reads and writes the attributes of another object that it has none of itself.

    There is one value for both, whoever changes it, as there is where nothing stands in between.
    """

    stood_for: Any = None
    """The function or other object in whose place it is."""

    def stand_for(self, step: object) -> None:
        """From now on, what is not an attribute yet is one of the step."""
        self.stood_for = step

    def __getattr__(self, name: str) -> Any:
        # Python's own, such as the code of a function, would make it one.
        if self.stood_for is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.stood_for, name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in vars(self) or hasattr(type(self), name)
        if self.stood_for is None or is_own:
            super().__setattr__(name, value)
        else:
            setattr(self.stood_for, name, value)

    def __delattr__(self, name: str) -> None:
        if self.stood_for is None or name in vars(self):
            super().__delattr__(name)
        else:
            delattr(self.stood_for, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.stood_for)})
