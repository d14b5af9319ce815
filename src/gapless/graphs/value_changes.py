"""Values that graphs bake in, and that change: how often is too often."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from gapless.graphs.refusal import Refusal, or_the_model_alone


if TYPE_CHECKING:
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.entries import Entries
    from gapless.graphs.entry import Variant
    from gapless.graphs.replay.step_guards import Failure
    from gapless.graphs.updates.update_outside import Updates


# Every change of a guarded value costs watched runs and a capture. Allow 3; beyond that at most one per 20
# replays.
_MAX_CHANGES = 3
_MIN_REPLAYS_PER_CHANGE = 20

# Of so many the one that came most often is named.
_NUM_NEWEST = 32

# A number of an optimizer may change in each epoch, and the first epochs may be short.
_MAX_NUMBER_CHANGES = 10

# A number of an optimizer that changes after fewer steps is not captured again.
_OFTEN = 50

# Where it cannot be read anew: beyond so many graphs, so many replays of each are too few to be
# worth their captures.
_TOO_FEW = ((3, 3), (10, 20))


class ValueChanges:
    """The changes of what the graphs of one object were captured with."""

    def __init__(self, report: CaptureReport, entries: Entries, updates: Updates) -> None:
        self._report = report
        self._entries = entries
        self._updates = updates
        self._num = 0
        self._newest: deque[Failure] = deque(maxlen=_NUM_NEWEST)

    def note(self, variant: Variant) -> None:
        """Note what is otherwise than a variant was captured with; rest if that is so too often."""
        failure = variant.failure()
        if failure is None:
            return
        self._report.note_change(failure.text)
        self._num += 1
        self._newest.append(failure)
        num_steps = self._report.num_steps
        if failure.optimizer is not None and num_steps - variant.num_steps < _OFTEN:
            self._number_changes_often(failure)
        if failure.is_memory:
            self._entries.drop_dead()
        at_least = _MAX_CHANGES if failure.optimizer is None else _MAX_NUMBER_CHANGES
        if self._num > max(at_least, self._report.num_replays / _MIN_REPLAYS_PER_CHANGE):
            often = Counter(each.what for each in self._newest)
            # The last one of what changed most often.
            told = max(reversed(self._newest), key=lambda each: often[each.what])
            self._report.rest(_too_many_changes(told, self._num))

    def _number_changes_often(self, failure: Failure) -> None:
        assert failure.optimizer is not None
        if self._updates.may_read_anew(failure.optimizer, failure.number):
            # From here on its numbers are read anew in every step.
            self._updates.number_changed(failure.optimizer, failure.number)
            self._num -= 1
            return
        num_graphs, num_replays = self._report.num_graphs, self._report.num_replays
        if any(num_graphs > many and num_replays < few * num_graphs for many, few in _TOO_FEW):
            self._report.refuse(_rate_changes_often(failure))
            self._entries.drop_graphs()


def _too_many_changes(failure: Failure, num_changes: int) -> Refusal:
    times = "once" if num_changes == 1 else f"{num_changes} times"
    return Refusal(
        "too_many_changes",
        f"{failure.text} (changes so far: {times}), and a graph keeps what it was captured with; "
        f"{failure.advice}{or_the_model_alone(failure.text)}",
    )


def _rate_changes_often(failure: Failure) -> Refusal:
    return Refusal(
        "too_many_changes",
        f"{failure.text}, as it does after few steps, and a graph keeps what it was captured with: "
        "updates run as written; capture the whole step",
        is_final=True,
    )
