"""Hear torch's warnings of waits, whatever the script does with warnings, and keep them from the script."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

from gapless.device.cuda_waits import SYNC_WARNING
from gapless.python_private import SHOW_WARNING, getframe
from gapless.unnoticed import FilterInFront, below_stand_ins, is_stand_in_file, unseen


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gapless.unnoticed import Patches


# Warnings in the name of what stands in for a method of torch or of the script.
_OWN_MODULES = r"gapless\.(doctor|trials|unnoticed|device\.(sync_warnings|waiting_calls))\b"


class _ThreadState(threading.local):
    """Whether the script's own filters are being asked."""

    asks = False


class SyncWarnings:
    """Calls `hear(frame)` for each of torch's warnings of a wait, on the thread that waited.

    Torch warns when the call returns, so the wait is over then. Replaced is the function that shows a
    warning once the filters let it pass, since `catch_warnings` does not change that; and a filter for
    these warnings stays in front of all others, so that none mutes them, and none makes them an error.
    What the script is to see is asked of its own filters then, at the line where it would be without us.

    Args:
        hear: takes the frame that made the call.
        are_wanted: whether the script has asked for these warnings itself, and is to see them too.
    """

    def __init__(self, hear: Callable[[FrameType], None], are_wanted: Callable[[], bool]) -> None:
        self._hear = hear
        self._are_wanted = are_wanted
        self._thread = _ThreadState()
        self._filters = (
            FilterInFront("always", module=_OWN_MODULES, applies=self._are_ours),
            FilterInFront("always", message=SYNC_WARNING, applies=self._are_ours),
        )

    def start(self, patches: Patches) -> None:
        """Begin to hear."""
        show: Any = None if SHOW_WARNING is None else getattr(warnings, SHOW_WARNING)

        def show_others(message: Any) -> None:
            with unseen:
                if self._thread.asks:
                    self._thread.asks = False
                    show(message)
                    return
                frame = getframe(1)
                is_of_wait = str(message.message).startswith(SYNC_WARNING)
                if is_of_wait:
                    self._hear(frame)
                if is_of_wait and not self._are_wanted():
                    return
                if is_stand_in_file(message.filename):
                    self._warn_at(below_stand_ins(frame), message)
                elif is_of_wait:
                    self._warn_at(frame, message)
                else:
                    show(message)

        if SHOW_WARNING is not None:
            patches.put(warnings, SHOW_WARNING, show_others)
        for one in self._filters:
            one.put_in()

    def come_first(self) -> None:
        """Put the filters back in front, where the script has put other ones in their place."""
        for one in self._filters:
            one.come_first()

    def stop(self) -> None:
        """Take the filters out of every list that holds them; `catch_warnings` makes new ones."""
        for one in self._filters:
            one.take_out()

    def _are_ours(self) -> bool:
        return not self._thread.asks

    def _warn_at(self, frame: FrameType | None, message: Any) -> None:
        """Let the script's own filters decide about a warning of a frame."""
        if frame is None:
            return
        names = frame.f_globals
        self._thread.asks = True
        try:
            warnings.warn_explicit(
                message.message,
                message.category,
                frame.f_code.co_filename,
                frame.f_lineno,
                module=names.get("__name__") or "<string>",
                registry=names.setdefault("__warningregistry__", {}),
                source=message.source,
            )
        finally:
            self._thread.asks = False
