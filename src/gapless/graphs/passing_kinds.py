"""Kinds of calls that come for a few calls and never again, such as of a number on a schedule.

The first calls of each kind run as written and are watched, and then it is captured. All of that is
in vain if the kind does not come again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.graphs.entry import Entry


# Kinds in a row of which none has come again, and calls of each: fewer are not worth the runs that
# are watched.
_NUM_WATCHED, _CALLS_OF_WATCHED = 32, 6

# Calls of each of the kinds that differ in the shapes of tensors alone.
_CALLS_OF_SHAPES = 2

# The same of captured ones: a capture takes as long as many calls.
_NUM_CAPTURED = ((4, 6), (11, 23))


class PassingKinds:
    """See whether the kinds of a step's calls come again."""

    def __init__(self) -> None:
        self._now: Entry | None = None
        self._row, self._num_in_row = 1, 0
        self._first_step = self._first_graph = 0

    def is_new(self, entry: Entry, *, num_steps: int, num_graphs: int) -> bool:
        """Take note of a call; return whether its kind was not seen before.

        Args:
            entry: its kind.
            num_steps: calls before it.
            num_graphs: captures before it.
        """
        if entry is self._now:
            return False
        self._now = entry
        if entry.row:
            if entry.row == self._row:
                self._row, self._num_in_row = self._row + 1, 0
            return False
        if not self._num_in_row:
            self._first_step, self._first_graph = num_steps, num_graphs
        entry.row = self._row
        self._num_in_row += 1
        return True

    def hardly_repeat(self, *, num_steps: int) -> bool:
        """Return whether the last kinds had one call each, or little more.

        Shapes that had more may come again in the next epoch: a limit bounds their graphs.

        Args:
            num_steps: calls so far.
        """
        return num_steps - self._first_step < _CALLS_OF_SHAPES * self._num_in_row

    def are_passing(self, *, num_steps: int, num_graphs: int) -> bool:
        """Return whether graphs of the last kinds are not worth their captures: none came again.

        Args:
            num_steps: calls so far.
            num_graphs: captures so far.
        """
        num_kinds, num_calls = self._num_in_row, num_steps - self._first_step
        num_captured = num_graphs - self._first_graph
        if num_kinds >= _NUM_WATCHED and num_calls < _CALLS_OF_WATCHED * num_kinds:
            return True
        return any(
            num_captured >= many and num_calls < few * num_kinds for many, few in _NUM_CAPTURED
        )
