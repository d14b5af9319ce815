"""Kinds of calls that come for a few calls and never again, such as of a number on a schedule.

The first calls of each kind run as written and are watched, and then it is captured. All of that is
in vain if the kind does not come again.
"""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError
from gapless.graphs.refusal import Refusal
from gapless.pipeline.tree.flatten import OF_SHAPE


if TYPE_CHECKING:
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.entry import Entry
    from gapless.pipeline.tree.flatten import Tree


# Kinds in a row of which none has come again, and calls of each: fewer are not worth the runs that
# are watched.
_NUM_WATCHED, _CALLS_OF_WATCHED = 32, 6

# Of so many the report says what was new in each call: who tries ten steps reads it.
_NUM_TOLD = 6

# Calls of each of the kinds that differ in the shapes of tensors alone.
_CALLS_OF_SHAPES = 2

# The same of captured ones: a capture takes as long as many calls.
_NUM_CAPTURED = ((4, 6), (11, 23))

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class PassingKinds:
    """See whether the kinds of a step's calls come again; rest if they do not.

    Args:
        step: whose arguments are named.
    """

    def __init__(self, step: object, report: CaptureReport) -> None:
        self._step = step
        self._report = report
        self._now: Entry | None = None
        self._row, self._num_in_row = 1, 0
        self._first_step = self._first_graph = 0
        self._former: Tree | None = None
        self._told = ""

    def note(self, entry: Entry, tree: Tree) -> None:
        """Capture nothing for a while if none of the last kinds of calls came again."""
        if self._told and (entry is self._now or entry.row):
            self._tell("")
        if entry is self._now:
            return
        self._now = entry
        if not self._is_new(entry):
            return
        former, self._former = self._former, None
        if self._report.forbids_all:
            return
        if former is not None:
            difference = former.difference(tree)
            if self._num_in_row == _NUM_TOLD and not self._are_passing():
                self._tell(f"{_with_names(difference, self._step)} was new in each call")
            elif difference != OF_SHAPE or self._hardly_repeat():
                self._tell("")
                self._report.rest(_unlike_calls(difference, self._step))
        elif self._are_passing() or (self._num_in_row == _NUM_TOLD - 1 and self._hardly_repeat()):
            # To be compared with the next; its tensors are not held.
            with suppress(BatchError):  # a container that cannot be made anew
                self._former = tree.map(lambda _: torch.empty(0, device="cpu"))

    def _tell(self, text: str) -> None:
        """Say in the report, and nowhere else, why nothing is captured yet."""
        if self._report.note in (None, self._told):
            self._report.note = text or None
        self._told = text

    def _is_new(self, entry: Entry) -> bool:
        """Return whether a kind was not seen before."""
        if entry.row:
            if entry.row == self._row:
                self._row, self._num_in_row = self._row + 1, 0
            return False
        if not self._num_in_row:
            self._first_step = self._report.num_steps
            self._first_graph = self._report.num_graphs
        entry.row = self._row
        self._num_in_row += 1
        return True

    def _hardly_repeat(self) -> bool:
        """Return whether the last kinds had one call each, or little more.

        Shapes that had more may come again in the next epoch: a limit bounds their graphs.
        """
        return self._report.num_steps - self._first_step < _CALLS_OF_SHAPES * self._num_in_row

    def _are_passing(self) -> bool:
        """Return whether graphs of the last kinds are not worth their captures: none came again."""
        num_kinds, num_calls = self._num_in_row, self._report.num_steps - self._first_step
        num_captured = self._report.num_graphs - self._first_graph
        if num_kinds >= _NUM_WATCHED and num_calls < _CALLS_OF_WATCHED * num_kinds:
            return True
        return any(
            num_captured >= many and num_calls < few * num_kinds for many, few in _NUM_CAPTURED
        )


def _unlike_calls(difference: str, step: object) -> Refusal:
    return Refusal(
        "unlike_calls",
        "none of the last kinds of calls came again, and a graph takes calls of one kind: "
        f"{_with_names(difference, step)} differs; pad tensors to fewer shapes, and pass a number that "
        "changes as a tensor on the device",
    )


def _with_names(difference: str, step: Any) -> str:
    """Call the arguments of a step, or of a module, by their names."""
    function = step.forward if isinstance(step, torch.nn.Module) else step
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # code in C, or no function
        return difference
    names = [one.name for one in parameters if one.kind in _BY_POSITION]
    found = re.fullmatch(r"(?:batch|argument (\d+)) (\(.*\))", difference)
    if found is None:
        return difference
    number = int(found[1] or 1)
    return f"argument {names[number - 1]!r} {found[2]}" if number <= len(names) else difference
