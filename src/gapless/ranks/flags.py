"""Flags that one rank has raised and not yet sent to the others."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RaisedFlags:
    """Holds the flags that were raised since the last `take`.

    A signal handler may raise a flag while its own thread is in `take`: a lock would hang there.

    Args:
        names: of the flags that there are.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._raised: deque[tuple[str, int]] = deque()

    def ask(self, flag: str, value: int = 1) -> None:
        """Raise a flag.

        Raises:
            KeyError: there is no such flag.
        """
        if flag not in self.names:
            raise KeyError(flag)
        self._raised.append((flag, value))

    def take(self) -> dict[str, int]:
        """Return the largest value of each flag that was raised, and forget it."""
        raised: dict[str, int] = {}
        while self._raised:
            flag, value = self._raised.popleft()
            raised[flag] = max(value, raised.get(flag, 0))
        return raised


class OwnFlags:
    """Implements `Agreement` for a rank that is alone: it answers at once.

    Args:
        flags: names of what can be asked.
    """

    def __init__(self, flags: Sequence[str]) -> None:
        self._raised = RaisedFlags(flags)

    def ask(self, flag: str, value: int = 1) -> None:
        """Raise a flag."""
        self._raised.ask(flag, value)

    def after_update(self, updates: int) -> Mapping[str, int]:
        """Return the flags that were raised."""
        del updates
        return self._raised.take()

    def finish(self) -> Mapping[str, int]:
        """Return the flags that were raised."""
        return self._raised.take()
