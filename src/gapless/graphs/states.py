"""The way of a kind of call from plain runs to a graph, and back: one table.

A kind is plain at first, is watched in some runs, and is seen then. Each set of values that its code reads
from Python is a variant of it, which goes on alone: it is captured, waits for its proof, is ready, and is
audited now and then. A call without a graph runs as written, and brings its kind one state further.

A kind can be refused in any state, and goes on from there if that is lifted.

The table has each event in each state. One of a graph that comes late leaves the state as it is: another
thread, or the step itself, may have let the graph go, or captured another, while a call was captured or audited.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class State(Enum):
    """How far a kind of call is, or one of its variants."""

    PLAIN = auto()
    """Nothing is known of it."""
    WATCHED = auto()
    """It was watched, and has to be once more."""
    SEEN = auto()
    """What its runs read and write is known; it can be captured."""
    CAPTURED = auto()
    """Its graph waits for the verdict of its proof."""
    READY = auto()
    """Its graph is in use."""
    AUDITED = auto()
    """Its graph waits for the verdict of an audit."""
    REFUSED = auto()
    """It runs as written, for good or until that is lifted."""


class Event(Enum):
    """What happens to it."""

    WATCHED = auto()
    """A run was watched, and there has to be another."""
    SEEN = auto()
    """The last run was watched."""
    CHANGED = auto()
    """The step reads other values than in any variant, or what it read is forgotten."""
    CAPTURED = auto()
    """A graph was captured."""
    PROVED = auto()
    """The graph gave the bits of the step, or cannot be proved."""
    AUDITED = auto()
    """The graph was replayed beside the step."""
    EQUAL = auto()
    """Both gave the same."""
    DROPPED = auto()
    """The graph is gone: a proof or an audit failed, memory has moved, or its room is wanted."""


_OF_KINDS: Final = {
    (State.PLAIN, Event.WATCHED): State.WATCHED,
    (State.PLAIN, Event.SEEN): State.SEEN,
    (State.PLAIN, Event.CHANGED): State.WATCHED,
    (State.WATCHED, Event.WATCHED): State.WATCHED,
    (State.WATCHED, Event.SEEN): State.SEEN,
    (State.WATCHED, Event.CHANGED): State.WATCHED,
    (State.SEEN, Event.WATCHED): State.WATCHED,
    (State.SEEN, Event.SEEN): State.SEEN,
    (State.SEEN, Event.CHANGED): State.WATCHED,
}

_OF_VARIANTS: Final = {
    (State.SEEN, Event.CAPTURED): State.CAPTURED,
    (State.SEEN, Event.DROPPED): State.SEEN,
    (State.CAPTURED, Event.PROVED): State.READY,
    (State.CAPTURED, Event.DROPPED): State.SEEN,
    (State.READY, Event.AUDITED): State.AUDITED,
    (State.READY, Event.DROPPED): State.SEEN,
    (State.AUDITED, Event.EQUAL): State.READY,
    (State.AUDITED, Event.DROPPED): State.SEEN,
}

OF_KINDS: Final = (State.PLAIN, State.WATCHED, State.SEEN)
OF_VARIANTS: Final = (State.SEEN, State.CAPTURED, State.READY, State.AUDITED)

_LATE: Final = {
    (state, event): state
    for state in OF_VARIANTS
    for event in (Event.CAPTURED, Event.PROVED, Event.AUDITED, Event.EQUAL, Event.DROPPED)
}

TRANSITIONS: Final[dict[tuple[State, Event], State]] = {**_LATE, **_OF_KINDS, **_OF_VARIANTS}
