"""Captures on several ranks: all ranks capture a kind of call together, or none does.

The collectives of a captured step, of its proof and of a step as written meet those of other ranks in
their order. So a rank that cannot capture must not go on alone. Every rank says how far it is, at calls
that counts alone decide on, and the rank that is least ready decides for all.
"""

from __future__ import annotations

from contextlib import nullcontext
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from gapless.graphs.refusal import Refusal


class Readiness(IntEnum):
    """How far a rank is with a kind of call."""

    NEVER = 0
    """It cannot capture it."""
    NOT_YET = 1
    """It has to see it run once more."""
    READY = 2
    """It can capture it now, or has done what it was to do."""


class Consent(Protocol):
    """Tells what all ranks can do."""

    @property
    def asks(self) -> bool:
        """Whether there are others to ask."""

    def watch(self) -> AbstractContextManager[None]:
        """See in the body, a run of the step as written, whether it talks to others."""

    def least(self, readiness: Readiness) -> Readiness:
        """Return the least readiness of all ranks; each calls this at the same calls of the step."""

    def refusals_of_reads(self, sites: Sequence[str]) -> list[Refusal]:
        """Return why a step that reads values of its batch is not captured on these ranks."""

    def capturing(self) -> AbstractContextManager[None]:
        """Tell the others that this one captures in the body, and does no updates."""


class Alone:
    """The consent of a process that trains alone."""

    asks = False
    watch = capturing = staticmethod(nullcontext[None])

    def least(self, readiness: Readiness) -> Readiness:
        """Return the same."""
        return readiness

    def refusals_of_reads(self, sites: Sequence[str]) -> list[Refusal]:
        """Return nothing: there is a graph for each value."""
        del sites
        return []
