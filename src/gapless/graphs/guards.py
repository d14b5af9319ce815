"""Guards: what a step reads from Python and a graph bakes in.

A graph repeats the same kernels on the same memory with the same numbers. What the step's Python
read when it was captured, such as a learning rate or the mode of a module, is baked in. A guard is
an object that watches one such thing, so that no replay goes on with an old value:

    select       the thing is part of a graph's key: another value has another graph
    recapture    another value drops all graphs; if that happens too often, the step is refused
    refuse       another value ends capturing at once

Guards hand over functions rather than being asked themselves. These functions run before every
replay: they have to be quick, and must never make the host wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable


OnFailure: TypeAlias = Literal["select", "recapture", "refuse"]


class SelectingGuard(Protocol):
    """A guard whose value is part of a graph's key.

    Attributes:
        watches: what the guard watches, in one line.
        on_failure: what another value leads to.
    """

    watches: ClassVar[str]
    on_failure: ClassVar[OnFailure] = "select"

    def reader(self) -> Callable[[], Hashable]:
        """Return a function that reads the value now.

        Sync: The function does not block the host.
        """


class Guard(Protocol):
    """A guard that graphs have to be dropped for.

    Attributes:
        watches: what the guard watches, in one line.
        on_failure: what a change leads to.
        advice: what to do if it changes too often.
    """

    watches: ClassVar[str]
    on_failure: ClassVar[OnFailure] = "recapture"
    advice: ClassVar[str]

    def check(self) -> Callable[[], bool]:
        """Return a function that says whether all is still as it is now.

        Sync: The function does not block the host.
        """


class GuardSet:
    """The checks of several guards, all from the moment at which the set is made."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._checks = [(guard.check(), guard) for guard in guards]

    def first_failed(self) -> Guard | None:
        """Return the first guard whose check fails, None if all hold.

        Sync: Does not block the host.
        """
        for holds, guard in self._checks:
            if not holds():
                return guard
        return None
