"""Listen to torch's warnings of waits, whatever filters the script sets, and hide them from the script."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

from gapless.python_private import SHOW_WARNING, getframe
from gapless.unnoticed import FilterInFront, Patches, below_stand_ins, is_stand_in_file, unseen


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


# What torch says of a wait. Other text follows.
SYNC_WARNING = "called a synchronizing CUDA operation"

# The stand-ins for methods of torch and of the script, which warnings name as their place.
_OWN_MODULES = r"gapless\.(doctor|trials|unnoticed|device\.(sync_warnings|waiting_calls))\b"


class _ThreadState(threading.local):
    """Whether the script's own filters are being asked."""

    asks = False


_thread = _ThreadState()


def _are_ours() -> bool:
    return not _thread.asks


# The listeners, the function replaced for them, and the filters: one of each for all listeners.
_hearing: list[SyncWarnings] = []
_patches = Patches()
_filters = (
    FilterInFront("always", module=_OWN_MODULES, applies=_are_ours),
    FilterInFront("always", message=SYNC_WARNING, applies=_are_ours),
)
_changing = threading.RLock()


class SyncWarnings:
    """Calls `hear(frame)` for each of torch's warnings of a wait, on the thread that waited.

    Torch warns when the call returns, so the wait is over then. Replaced is the function that shows a
    warning once the filters let it pass, since `catch_warnings` does not change that; and a filter for
    these warnings stays in front of all others, so that none mutes them, and none makes them an error.
    Whether the script sees a warning is then decided by its own filters, at the line of its own call.

    Several may listen at once, such as the doctor and a step that is watched before its capture: each
    gets every wait.

    Args:
        hear: takes the frame that made the call; None on a thread that runs no Python.
        are_wanted: whether the script has asked for these warnings itself, and is to see them too.
    """

    def __init__(
        self, hear: Callable[[FrameType | None], None], are_wanted: Callable[[], bool]
    ) -> None:
        self.hear = hear
        self.are_wanted = are_wanted

    def start(self) -> None:
        """Begin to listen."""
        with _changing:
            _hearing.append(self)
            if not _patches.are_in:
                _replace()
                for one in _filters:
                    one.put_in()

    def come_first(self) -> None:
        """Put the filters back in front, if the script has put others there."""
        for one in _filters:
            one.come_first()

    def stop(self) -> None:
        """Hear no more; nothing happens to who does not. Filters go out of every list that holds them."""
        with _changing:
            if self in _hearing:
                _hearing.remove(self)
            if not _hearing:
                for one in _filters:
                    one.take_out()
                _patches.take_out()


def _replace() -> None:
    if SHOW_WARNING is not None:
        show_message: Callable[[Any], None] = getattr(warnings, SHOW_WARNING)

        def show_others(message: Any) -> None:
            with unseen:
                _hear_or_show(message, getframe().f_back, show_message)

        _patches.put(warnings, SHOW_WARNING, show_others)
        return
    show = warnings.showwarning

    def show_others_in_public(*parts: Any, **more: Any) -> None:
        with unseen:
            message = warnings.WarningMessage(*parts, **more)
            _hear_or_show(message, getframe().f_back, lambda _: show(*parts, **more))

    _patches.put(warnings, "showwarning", show_others_in_public)


def _hear_or_show(message: Any, frame: FrameType | None, show: Callable[[Any], None]) -> None:
    if _thread.asks:
        _thread.asks = False
        show(message)
        return
    is_of_wait = str(message.message).startswith(SYNC_WARNING)
    if is_of_wait:
        hearing = tuple(_hearing)
        for one in hearing:
            one.hear(frame)
        if not all(one.are_wanted() for one in hearing):
            return
    if is_stand_in_file(message.filename):
        _warn_at(below_stand_ins(frame), message)
    elif is_of_wait:
        _warn_at(frame, message)
    else:
        show(message)


def _warn_at(frame: FrameType | None, message: Any) -> None:
    """Let the script's own filters decide about a warning of a frame."""
    if frame is None:
        return
    names = frame.f_globals
    _thread.asks = True
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
        _thread.asks = False
