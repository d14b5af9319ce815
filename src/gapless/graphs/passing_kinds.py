"""Kinds of calls that come for a few calls and never again, such as of a number on a schedule.

The first calls of each kind run as written and are watched, and then it is captured. All of that is
in vain if the kind does not come again.
"""

from __future__ import annotations


# Kinds in a row of which none has come again, and calls of each: fewer are not worth the runs that
# are watched.
_NUM_WATCHED, _CALLS_OF_WATCHED = 32, 6

# Calls of each of the kinds that differ in the shapes of tensors alone.
_CALLS_OF_SHAPES = 2

# The same of captured ones: a capture takes as long as many calls.
_NUM_CAPTURED = ((4, 6), (11, 23))

# Beyond so many, kinds that were seen are forgotten.
_MAX_KNOWN = 10_000


class PassingKinds:
    """See whether the kinds of a step's calls come again."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._now: int | None = None
        self._in_row: set[int] = set()
        self._first_step = self._first_graph = 0

    def is_new(self, kind: int, *, num_steps: int, num_graphs: int) -> bool:
        """Take note of a call; return whether its kind was not seen before.

        Args:
            kind: the hash of its kind.
            num_steps: calls before it.
            num_graphs: captures before it.
        """
        if kind == self._now:
            return False
        self._now = kind
        if kind in self._known:
            if kind in self._in_row:
                self._in_row = set()
            return False
        if len(self._known) >= _MAX_KNOWN:
            self._known = set()
        self._known.add(kind)
        if not self._in_row:
            self._first_step, self._first_graph = num_steps, num_graphs
        self._in_row.add(kind)
        return True

    def hardly_repeat(self, *, num_steps: int) -> bool:
        """Return whether the last kinds had one call each, or little more.

        Shapes that had more may come again in the next epoch: a limit bounds their graphs.

        Args:
            num_steps: calls so far.
        """
        return num_steps - self._first_step < _CALLS_OF_SHAPES * len(self._in_row)

    def are_passing(self, *, num_steps: int, num_graphs: int) -> bool:
        """Return whether graphs of the last kinds are not worth their captures: none came again.

        Args:
            num_steps: calls so far.
            num_graphs: captures so far.
        """
        num_kinds, num_calls = len(self._in_row), num_steps - self._first_step
        num_captured = num_graphs - self._first_graph
        if num_kinds >= _NUM_WATCHED and num_calls < _CALLS_OF_WATCHED * num_kinds:
            return True
        return any(
            num_captured >= many and num_calls < few * num_kinds for many, few in _NUM_CAPTURED
        )
