"""Hear torch's warnings of waits, whatever the script does with warnings, and keep them from the script."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from gapless.device.cuda_sites import SYNC_WARNING
from gapless.doctor.user_line import OURS


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gapless.doctor.patched_attributes import Patches


# In brackets, so that it is not equal to a filter that the script may have of its own.
_OURS = f"(?:{SYNC_WARNING})"

# Each puts a filter in front of ours, or takes all away.
_CHANGERS = ("simplefilter", "filterwarnings", "resetwarnings")


class SyncWarnings:
    """Calls `hear(frame)` for each of torch's warnings of a wait, on the thread that waited.

    Torch warns when the call returns, so the wait is over then. Replaced is the function that shows a
    warning once the filters let it pass, since `catch_warnings` does not change that; and a filter for
    these warnings stays in front of all others, so that none mutes them, and none makes them an error.

    Args:
        hear: takes the frame that made the call.
        are_wanted: whether the script has asked for these warnings itself, and is to see them too.
    """

    def __init__(self, hear: Callable[[FrameType], None], are_wanted: Callable[[], bool]) -> None:
        self._hear = hear
        self._are_wanted = are_wanted
        self._filter: Any = None
        self._add = warnings.filterwarnings
        self._lists: list[list[Any]] = []

    def start(self, patches: Patches) -> None:
        """Begin to hear."""
        show = warnings._showwarnmsg  # type: ignore[attr-defined]

        def show_others(message: Any) -> None:
            frame = sys._getframe(1)
            if not str(message.message).startswith(SYNC_WARNING):
                _show_where_it_was(message, frame)
                show(message)
                return
            self._hear(frame)
            if self._are_wanted():
                show(message)

        patches.put(warnings, "_showwarnmsg", show_others)
        self._add = warnings.filterwarnings
        for name in _CHANGERS:
            patches.put(warnings, name, self._then_come_first(getattr(warnings, name)))
        self.come_first()

    def come_first(self) -> None:
        """Put the filter back in front, where the script has changed the filters."""
        filters: Any = warnings.filters
        if not filters or filters[0] != self._filter:
            self._add("always", message=_OURS)
            self._filter = filters[0]
        if not any(one is filters for one in self._lists):
            self._lists.append(filters)

    def stop(self) -> None:
        """Take the filter out of every list that holds it; `catch_warnings` makes new ones."""
        now: Any = warnings.filters
        for filters in [*self._lists, now]:
            while self._filter in filters:
                filters.remove(self._filter)
        self._lists.clear()
        self._filter = None

    def _then_come_first(self, change: Callable[..., None]) -> Callable[..., None]:
        def changed(*args: Any, **kwargs: Any) -> None:
            change(*args, **kwargs)
            if self._filter is not None:
                self.come_first()

        changed.__name__ = changed.__qualname__ = change.__name__
        changed.__module__, changed.__doc__ = "warnings", change.__doc__
        return changed


def _show_where_it_was(message: Any, frame: FrameType | None) -> None:
    """Let a warning of a call that we have wrapped name the line that made it, as without us."""
    if not message.filename.startswith(OURS):
        return
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    if frame is not None:
        message.filename, message.lineno = frame.f_code.co_filename, frame.f_lineno
