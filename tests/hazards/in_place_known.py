"""What capture in place is known not to do bit for bit."""

from __future__ import annotations

import pytest

from hazards.harness import CPU


_RAISES = (
    "a backward pass that was not captured runs the forward pass again, and raises if what that "
    "reads has changed since, where the one as written has kept all it needs"
)
_CASTS = (
    "a second call in one block of autocast shares casts of the first as written; where that is new, the "
    "first was a replay, and a warning says that gradients of this one step are rounded otherwise"
)
_SWAPS = (
    "torch swaps no tensor to which there is a weak reference, and a capture holds one to each weight: "
    "release the model before"
)
_KNOWN = {
    "autocast_with_a_late_second_call": _CASTS,
    "weight_moves_between_two_backward_passes": _RAISES,
    "dropout_between_two_backward_passes": _RAISES,
    "weights_are_swapped": _SWAPS,
}


_LATE = {
    "trained_in_another_thread": "a dispatch mode is of one thread: eager operators of another one run at once, "
    "where the simulated device queues replays",
}


def late_marks(case, kind):
    """Return the marks of a case on a device that is late."""
    if case.name in _LATE:
        return [pytest.mark.xfail(reason=_LATE[case.name], strict=True)]
    return xfail_marks(case, kind)


def xfail_marks(case, kind):
    """Return the mark of a case that is known to fail."""
    if case.name not in _KNOWN or kind == CPU:
        return []
    return [pytest.mark.xfail(reason=_KNOWN[case.name], strict=True)]
