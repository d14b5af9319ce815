"""The pass that finds the lines: every wait of a stretch of steps, with the user's line that makes it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from gapless.device.cuda_waits import WarningsOfWaits, call_before_waits
from gapless.device.sync_warnings import SyncWarnings
from gapless.device.torch_private import RUN_BACKWARD
from gapless.device.user_line import OWN_FOLDER
from gapless.device.waiting_calls import intercept_waits
from gapless.doctor.lines.explicit_waits import (
    watch_collectives,
    watch_optimizers,
    watch_queries,
)
from gapless.doctor.lines.host_costs import BatchShapes, CollectorPauses, watch_loaders
from gapless.doctor.lines.wait_cause import cause_of_index
from gapless.doctor.lines.wait_notes import WaitNotes
from gapless.errors import DeviceError
from gapless.python_private import getframe
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gapless.doctor.advice.causes import Cause
    from gapless.doctor.seen_waits import SeenWait


# What torch's callbacks of `exact` report; why a stream is waited for is not known from that.
_CAUSES: dict[str, Cause] = {
    "event synchronize": "event",
    "device synchronize": "device",
}


class SitesPass:
    """Notes where the host waits; a `gapless.doctor.seen_waits.Pass`.

    Methods and functions that wait are replaced by ones that note the call and its duration; torch's
    warnings tell of all other waits for a stream. Both end with `stop`, and leave nothing behind.

    Args:
        marks: whether to write a mark into the profiler's trace for each wait; see `seen_waits.MARK`.
        exact: whether to use torch's callbacks instead of its warnings. They also see waits for events
            and devices that come from C++.

    Attributes:
        notes: what could not be watched, and why; one sentence each.
        shapes: of the batches of loaders.
    """

    def __init__(self, *, marks: bool = False, exact: bool = False) -> None:
        self.notes: list[str] = []
        self.shapes = BatchShapes()
        self._waits = WaitNotes(marks=marks)
        self._exact = exact
        self._patches = Patches()
        self._mode = WarningsOfWaits()
        self._warnings = SyncWarnings(self._heard, lambda: self._mode.script_wants_them)
        self._pauses = CollectorPauses(self._waits)
        self._forget: Callable[[], None] | None = None
        self._marks = marks
        self._forget_optimizers: Callable[[], None] | None = None

    @property
    def waits(self) -> list[SeenWait]:
        """What was seen, in its order; the number of a mark is the place in this list.

        To be asked for after `stop`: lines are looked up here.
        """
        return self._waits.waits()

    def start(self) -> None:
        """Begin to watch; a step begins. If that fails, nothing is left behind."""
        try:
            self._put_in()
        except BaseException:
            self.stop()
            raise

    def next_step(self) -> None:
        """Note that one step has ended and the next begins."""
        self._waits.step += 1
        if self._forget is None:
            # Each step: a script that begins with CUDA late, or resets its warnings, would not be heard from then on.
            self._mode.start(self._patches.put)
            self._warnings.come_first()

    def stop(self) -> None:
        """Take everything out again; the last step has ended."""
        self._waits.is_open = False
        with ExitStack() as ends:  # an error in one must not leave the others in the script
            for end in (self._forget_optimizers, self._pauses.stop, self._patches.take_out):
                ends.callback(end or _nothing)
            ends.callback(self._forget or self._warnings.stop)
            ends.callback(self._mode.stop)
            self._forget = self._forget_optimizers = None

    def _put_in(self) -> None:
        self._waits.is_open = True
        for watch in (intercept_waits, watch_queries, watch_collectives):
            watch(self._waits, self._patches)
        watch_loaders(self._waits, self._patches, self.shapes)
        self._pauses.start()
        if self._marks:
            self._forget_optimizers = watch_optimizers(self._waits)
        if self._exact:
            self._call_back()
        if self._forget is None:
            self._warnings.start()
            self._mode.start(self._patches.put)

    def _call_back(self) -> None:
        try:
            self._forget = call_before_waits(self._called_back)
        except DeviceError as error:
            self.notes.append(f"Waits were found by torch's warnings, not exactly: {error}.")

    def _called_back(self, what: str) -> None:
        """Note a wait that is about to begin, unless a wrapper has."""
        state = self._waits.thread
        if state.in_wait:
            return
        frame: FrameType | None = getframe(1)
        # Frames of what calls this back are skipped, or the wait would be blamed on them.
        while frame is not None and (
            frame.f_code.co_name == "fire_callbacks"
            or frame.f_code.co_filename.startswith(OWN_FOLDER)
        ):
            frame = frame.f_back
        cause = _CAUSES.get(what)
        if cause is None and frame is not None:
            cause = cause_of_index(frame)
        self._waits.begin(cause, "", frame=frame, detail=what)

    def _heard(self, frame: FrameType | None) -> None:
        """Note a wait that torch has warned of, unless a wrapper has."""
        state = self._waits.thread
        state.heard = True
        if state.in_wait:
            return
        if frame is None:
            self._waits.after(frame=None)
        elif frame.f_code.co_name == RUN_BACKWARD.name:
            self._waits.replayed()
        else:
            self._waits.after(frame=frame, cause=cause_of_index(frame))


def _nothing() -> None:
    pass
