"""Guards on what a graph bakes in and the step's own code does not name.

A graph repeats the same kernels on the same memory with the same numbers. What the step's code reads
from Python is watched by `gapless.graphs.reads.read_guards`; weights, gradients and optimizers, which
torch's code reads, are watched by guards of this kind.

Guards hand over functions rather than being asked themselves. These functions run before every
replay: they have to be quick, and must never make the host wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol


if TYPE_CHECKING:
    from collections.abc import Callable


class Guard(Protocol):
    """A guard on memory or numbers that a graph bakes in.

    Attributes:
        watches: what the guard watches, in one line.
        is_memory: whether a graph reads memory that is not used any more after a change.
        advice: what to do if it changes too often.
    """

    watches: ClassVar[str]
    is_memory: ClassVar[bool]
    advice: ClassVar[str]

    def check(self) -> Callable[[], bool]:
        """Return a function that says whether all is still as it is now.

        Sync: The function does not block the host.
        """
