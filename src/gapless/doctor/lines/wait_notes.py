"""Note waits while a script runs, cheaply; say afterwards where they were and why."""

from __future__ import annotations

import itertools
import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gapless.device.torch_private import ProfilerMark, current_node
from gapless.device.user_line import Place, UserCode, module_that_runs, place_in_framework, site_of
from gapless.doctor.lines.call_syntax import operation_at
from gapless.doctor.lines.wait_cause import cause_by_name, cause_through, function_called
from gapless.doctor.seen_waits import MARK, MARK_AFTER, MARK_WITHIN, SeenWait
from gapless.python_private import DummyThread, getframe
from gapless.unnoticed import is_of_signal_handler


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gapless.doctor.advice.causes import Cause
    from gapless.records.finding import Site


_REPLAYED = "a node of the backward pass; torch told of it when the pass had ended"


@dataclass(slots=True)
class Note:
    """One wait as it is noted: a `SeenWait` whose place nobody has looked up yet.

    `cause` is None where nothing but the place is known.
    """

    cause: Cause | None
    call: str
    place: Place
    thread: str
    step: int
    start_ns: int
    end_ns: int | None = None
    detail: str = ""
    count: int = 1


class ThreadState(threading.local):
    """What a thread is doing.

    Attributes:
        in_wait: whether a wait that is noted already is going on.
        heard: whether torch has warned of a wait since it was last made False.
        name: of the thread; empty until it is known.
    """

    in_wait = False
    heard = False
    name = ""


class WaitNotes:
    """The waits of one pass; a `gapless.device.waiting_calls.Listener`.

    Args:
        marks: whether to write a mark into the profiler's trace for each.

    Attributes:
        around: takes what a call waits for, its name and a detail; returns the context to make it in.
    """

    def __init__(self, *, marks: bool) -> None:
        self.step = 0
        self.is_open = False
        self.thread = ThreadState()
        self._marks = marks
        self._own = UserCode(module_that_runs())
        self._numbers = itertools.count()
        self._notes: dict[int, Note] = {}
        self._folder = os.getcwd()  # noqa: PTH109  # paths are shortened as text
        self._process = os.getpid()
        self.around: Callable[..., Noted] = partial(Noted, self)

    @property
    def are_wanted(self) -> bool:
        """Whether a wait of this thread is to be noted: not one that is a part of another."""
        return self.is_open and not self.thread.in_wait

    def begin(
        self, cause: Cause | None, call: str, *, frame: FrameType | None, detail: str = ""
    ) -> Note:
        """Note a wait of a frame that begins now, and mark it; its end is the caller's to fill in."""
        note = self._note(cause, call, frame=frame, detail=detail)
        self._keep(note, mark=MARK)
        note.start_ns = time.perf_counter_ns()
        return note

    def after(self, *, frame: FrameType | None, cause: Cause | None = None) -> None:
        """Note a wait that is over, made by a frame, of which nothing else is known; mark it."""
        self._keep(self._note(cause, "", frame=frame), mark=MARK_AFTER)

    def within(self, cause: Cause, call: str, *, frame: FrameType | None) -> None:
        """Mark a call of a frame that may hold waits of which nothing tells."""
        if self._marks:
            self._keep(self._note(cause, call, frame=frame), mark=MARK_WITHIN)

    def cost(
        self,
        cause: Cause,
        call: str,
        *,
        start_ns: int,
        frame: FrameType | None,
        detail: str = "",
        mark: str = "",
    ) -> Note:
        """Note time that a frame has lost since `start_ns`, with a mark or without."""
        note = self._note(cause, call, frame=frame, detail=detail)
        note.start_ns, note.end_ns = start_ns, note.start_ns
        self._keep(note, mark=mark)
        return note

    def replayed(self) -> None:
        """Note a wait of the autograd engine, which torch tells of when `.backward()` ends."""
        note = self._note("unknown", "Tensor.backward", frame=None, detail=_REPLAYED)
        note.thread = "autograd"
        self._keep(note, mark="")

    def waits(self) -> list[SeenWait]:
        """Return what was noted, each at the place that its mark gives."""
        explained: dict[object, Explanation] = {}
        return [self._seen(self._notes[number], explained) for number in sorted(self._notes)]

    def _note(
        self, cause: Cause | None, call: str, *, frame: FrameType | None, detail: str = ""
    ) -> Note:
        state = self.thread
        return Note(
            cause,
            call,
            self._own.place(frame),
            state.name or _name_this_thread(state),
            self.step,
            time.perf_counter_ns(),
            detail=detail,
        )

    def _keep(self, note: Note, *, mark: str) -> None:
        # A forked process, such as a worker of a loader, has inherited the patches, but nobody reads its notes.
        if not self.is_open or os.getpid() != self._process:
            return
        number = next(self._numbers)
        self._notes[number] = note
        if mark and self._marks:
            with ProfilerMark(f"{mark}{number}"):
                pass

    def _seen(self, note: Note, explained: dict[object, Explanation]) -> SeenWait:
        key = (note.cause, note.call, note.place.key)
        if key not in explained:
            explained[key] = explain(note, folder=self._folder)
        cause, call, site, framework = explained[key]
        return SeenWait(
            cause=cause,
            call=call,
            site=site,
            thread=note.thread,
            step=note.step,
            start_ns=note.start_ns,
            end_ns=note.end_ns,
            detail=", ".join(part for part in (note.detail, framework) if part),
            count=note.count,
        )


class Noted:
    """A context in which a call that waits is made: its wait is noted with its beginning and end."""

    __slots__ = ("_call", "_cause", "_detail", "_note", "_notes")

    def __init__(self, notes: WaitNotes, cause: Cause, call: str, detail: str = "") -> None:
        self._notes, self._cause, self._call, self._detail = notes, cause, call, detail

    def __enter__(self) -> None:
        self._note: Note | None = None
        try:
            frame = getframe(1)
            self._note = self._notes.begin(
                self._cause, self._call, frame=frame, detail=self._detail
            )
        except Exception as error:  # such as too deep a recursion; the call goes on unnoted
            if is_of_signal_handler(error):
                raise
        self._notes.thread.in_wait = True

    def __exit__(self, *_: object) -> None:
        self._notes.thread.in_wait = False
        if self._note is not None:
            self._note.end_ns = time.perf_counter_ns()


class Explanation(NamedTuple):
    """What a place turns out to be.

    Attributes:
        cause: why the call waits.
        call: its name.
        site: the user's line.
        framework: where in a framework it waits, such as "in somelib/trainer.py:12"; empty if in none.
    """

    cause: Cause
    call: str
    site: Site | None
    framework: str = ""


def explain(note: Note, *, folder: str) -> Explanation:
    """Return what the place of a noted call turns out to be."""
    place = note.place
    innermost = place.innermost
    operation = "" if innermost is None else operation_at(innermost, place.inner_instruction)
    site = None if place.code is None else site_of(place.code, place.instruction, folder=folder)
    if note.cause == "gc":
        # The collector runs by itself at any line, which would be blamed for it.
        is_asked_for = operation == "collect"
        return Explanation(
            "gc", "gc.collect" if is_asked_for else note.call, site if is_asked_for else None
        )
    cause = cause_by_name(operation) if note.cause is None else note.cause
    cause = cause_through(place.through, otherwise=cause)
    if operation == "format" and cause in ("float", "int"):
        cause = "format"
    through = "" if site is None else function_called(place.through)
    framework = "" if cause == "loader" else place_in_framework(place)
    call = through or note.call or operation or note.detail
    return Explanation(cause, call, site, framework and f"in {framework}")


def _name_this_thread(state: ThreadState) -> str:
    """Return the name of this thread, and keep it where it is sure."""
    ident = threading.get_ident()
    thread = next((one for one in threading.enumerate() if one.ident == ident), None)
    if thread is threading.main_thread():
        state.name = "main"
    elif thread is not None and not isinstance(thread, DummyThread):
        state.name = thread.name
    elif current_node() is not None:
        state.name = "autograd"
    return state.name or "unknown thread"
