"""The pass that splits a step: batches, forward pass, backward pass, update, and what else the loop does.

It follows the lines of the training loop itself, and of functions between it and the end of a step, so
whatever makes the batches is timed: up to the first line that makes a node of autograd.
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from dataclasses import fields
from functools import wraps
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch.optim.optimizer import register_optimizer_step_pre_hook

from gapless.device.torch_private import RUN_BACKWARD, next_sequence_number
from gapless.device.user_line import OWN_FOLDER, TORCH_FOLDER, function_of, short_path
from gapless.doctor.seen_waits import StepParts
from gapless.python_private import getframe
from gapless.records.finding import PartTimes, Site
from gapless.unnoticed import Patches, unseen


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from torch.utils.hooks import RemovableHandle

PARTS = tuple(one.name for one in fields(PartTimes))
# An update lasts until the next line: torch fails where a hook is added or removed behind an update.
Kind = Literal["line", "call", "return", "backward", "after backward", "update", "step"]


class Event(NamedTuple):
    """A moment of the loop.

    Attributes:
        kind: what begins or ends.
        at_ns: when.
        nodes: that autograd had made by then.
        line: of the loop, or of a function that it calls; 0 for none.
        is_loop: whether the line is of the loop itself.
    """

    kind: Kind
    at_ns: int
    nodes: int
    line: int = 0
    is_loop: bool = False


class StepPartsPass:
    """Times the parts of steps; a `gapless.doctor.seen_waits.Pass`.

    Where another tool traces the script, or the loop is in no frame that stays, it times nothing.

    Attributes:
        parts: of a step, once it is stopped; None if they are not known.
    """

    def __init__(self) -> None:
        self.parts: StepParts | None = None
        self._events: list[Event] = []
        self._frames: list[FrameType] = []
        self._loop: FrameType | None = None
        self._codes: set[CodeType] = set()
        self._patches = Patches()
        self._hook: RemovableHandle | None = None

    def start(self) -> None:
        """Begin to watch; a step begins."""
        if sys.gettrace() is None:
            self._frames = _frames()

    def next_step(self) -> None:
        """Note that one step has ended and the next begins."""
        if self._loop is not None:
            self._note("step")
        elif self._frames:
            self._begin()

    def stop(self) -> None:
        """Take everything out again; the last step has ended."""
        if self._loop is not None:
            self._note("step")
            self.parts = parts_of(self._events, self._loop.f_code)
            sys.settrace(None)
            self._loop.f_trace = None
        if self._hook is not None:
            self._hook.remove()
        self._patches.take_out()
        self._loop, self._frames, self._events = None, [], []

    def _begin(self) -> None:
        """Follow the innermost frame that was there a step ago, and those that it has called."""
        frames = _frames()
        # Those of the step before are held until now: or a new frame could lie where one of them was.
        before = {id(one) for one in self._frames}
        self._frames = []
        place = next((n for n, one in enumerate(frames) if id(one) in before), None)
        if place is None or sys.gettrace() is not None:
            return
        self._loop = frames[place]
        self._codes = {one.f_code for one in frames[:place]}
        self._hook = register_optimizer_step_pre_hook(lambda *_: self._note("update"))
        if RUN_BACKWARD.is_there:
            self._patches.put(*RUN_BACKWARD, self._timed(RUN_BACKWARD.value))
        self._loop.f_trace = self._line
        sys.settrace(self._called)
        self._note("step")

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            with unseen:
                self._note("backward")
                try:
                    return original(*args, **kwargs)
                finally:
                    self._note("after backward")

        return run

    def _note(self, kind: Kind) -> None:
        self._events.append(Event(kind, perf_counter_ns(), next_sequence_number()))

    def _called(self, frame: FrameType, what: str, argument: Any) -> Any:
        if frame.f_code in self._codes:
            return self._line
        caller = frame.f_back
        if caller is not None and (caller is self._loop or caller.f_code in self._codes):
            frame.f_trace_lines = False
            self._note("call")
            return self._returned
        return None

    def _returned(self, frame: FrameType, what: str, argument: Any) -> Any:
        if what == "return":
            self._note("return")
        return self._returned

    def _line(self, frame: FrameType, what: str, argument: Any) -> Any:
        if what == "line":
            is_loop = frame is self._loop
            now, nodes = perf_counter_ns(), next_sequence_number()
            self._events.append(Event("line", now, nodes, frame.f_lineno, is_loop))
        return self._line


def _frames() -> list[FrameType]:
    """Return the frames of the stack that are not torch's or ours, the innermost first."""
    found = []
    frame: FrameType | None = getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith((OWN_FOLDER, TORCH_FOLDER)):
            found.append(frame)
        frame = frame.f_back
    return found


def parts_of(events: list[Event], code: CodeType) -> StepParts | None:
    """Return the parts of a step, in milliseconds, from what was noted; None if there was no whole step."""
    took: Counter[str] = Counter()
    of_line: Counter[int] = Counter()
    state = _State(code)
    num_steps = -1
    for event, after in zip(events, [*events[1:], None], strict=True):
        num_steps += event.kind == "step"
        state.at(event)
        if after is None:
            continue
        part = state.part(after)
        took[part] += after.at_ns - event.at_ns
        if part == "data":
            of_line[state.line] += after.at_ns - event.at_ns
    if num_steps < 1 or not took:
        return None
    line, _ = max(of_line.items(), key=lambda one: one[1], default=(0, 0))
    return StepParts(
        ms=PartTimes(**{part: took[part] / 1e6 / num_steps for part in PARTS}),
        data_line=_site(code, line) if line else None,
        data_line_ms=of_line[line] / 1e6 / num_steps,
    )


def _site(code: CodeType, line: int) -> Site:
    source = linecache.getline(code.co_filename, line).strip()
    path = short_path(code.co_filename, folder=str(Path.cwd()))
    return Site(path=path, line=line, function=function_of(code), source=source)


class _State:
    """Where in its loop a program is."""

    def __init__(self, code: CodeType) -> None:
        self._name = code.co_filename
        self.line = 0
        self._kind: Kind = "step"
        self._nodes = 0
        self._is_after_update = True
        self._has_made_nodes = False

    def at(self, event: Event) -> None:
        """Note an event."""
        self._kind, self._nodes = event.kind, event.nodes
        if event.kind == "update":
            self._is_after_update = True
        if event.kind == "line" and event.is_loop:
            if event.line <= self.line or self._is_header(event.line):
                self._is_after_update = self._has_made_nodes = False
            self.line = event.line

    def part(self, after: Event) -> str:
        """Return which part of the step the time until another event belongs to."""
        if self._kind in ("backward", "update"):
            return self._kind
        if after.nodes > self._nodes:
            self._has_made_nodes = True
            return "forward"
        if self._is_after_update or self._has_made_nodes:
            return "other"
        return "data"

    def _is_header(self, line: int) -> bool:
        return linecache.getline(self._name, line).lstrip().startswith(("for ", "async for "))
