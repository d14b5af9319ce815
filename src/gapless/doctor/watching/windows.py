"""What is watched when: warm-up, steps as they are, sites, times; then nothing any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.doctor.seen_waits import Pass


Phase = Literal["rest", "plain", "sites", "parts", "times", "backward"]

# A look at three of the first steps is what remains of a script that ends before its windows do.
_BEFORE_EARLY_LOOK, _EARLY_LOOK = 3, 3

_BACKWARD_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Window:
    """A stretch of steps.

    Attributes:
        phase: what is watched in it.
        num_steps: that it has.
    """

    phase: Phase
    num_steps: int


@dataclass(kw_only=True)
class SeenWindow:
    """What is left of a window that is over.

    Attributes:
        phase: what was watched.
        num_steps: that it had; fewer than planned if the script has ended.
        passes: that watched, stopped.
        step_ns: how long each step took.
    """

    phase: Phase
    num_steps: int = 0
    passes: Sequence[Pass] = ()
    step_ns: list[int] = field(default_factory=list)


def plan_windows(*, warm_up: int, num_steps: int, has_times: bool = True) -> list[Window]:
    """Return the windows of a script that has steps enough.

    Args:
        warm_up: steps before the first window.
        num_steps: of the windows of plain steps and of sites; that of parts has a quarter, that of
            times half as many.
        has_times: whether there is a device whose times are measured.
    """
    early = _BEFORE_EARLY_LOOK + _EARLY_LOOK
    if warm_up > early:
        first = [
            Window(phase="rest", num_steps=_BEFORE_EARLY_LOOK),
            Window(phase="sites", num_steps=_EARLY_LOOK),
            Window(phase="rest", num_steps=warm_up - early),
        ]
    else:
        first = [Window(phase="rest", num_steps=warm_up)] if warm_up else []
    windows = [
        *first,
        Window(phase="plain", num_steps=num_steps),
        Window(phase="sites", num_steps=num_steps),
        Window(phase="parts", num_steps=max(2, num_steps // 4)),
    ]
    if has_times:
        windows.append(Window(phase="times", num_steps=max(1, num_steps // 2)))
    return windows


class Phases:
    """Goes through windows step by step.

    Args:
        windows: in this order.
        start: returns the passes of a phase, started.
        wants_backward: called at the end; whether steps are watched for the lines of backward passes.
        on_seen: called when a window in which something was watched is over, before the next begins.
        clock: in nanoseconds.

    Attributes:
        seen: the windows that are over, also those that were cut short.
        is_over: whether nothing is watched any more.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        *,
        start: Callable[[Phase], Sequence[Pass]],
        wants_backward: Callable[[list[SeenWindow]], bool] = lambda _: False,
        on_seen: Callable[[], None] = lambda: None,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.seen: list[SeenWindow] = []
        self.is_over = False
        self._waiting = list(windows)
        self._start = start
        self._wants_backward: Callable[[list[SeenWindow]], bool] | None = wants_backward
        self._on_seen = on_seen
        self._clock = clock
        self._now: SeenWindow | None = None
        self._left = 0
        self._step_began = 0

    def step_ended(self) -> None:
        """Note that a step has ended and the next begins; the first call begins the first window."""
        if self.is_over:
            return
        if self._now is not None:
            self._now.step_ns.append(self._clock() - self._step_began)
            self._now.num_steps += 1
            self._left -= 1
        if self._now is None or self._left == 0:
            self._next_window()
        else:
            for one in self._now.passes:
                one.next_step()
        self._step_began = self._clock()

    def end(self) -> None:
        """Watch nothing any more: the script has ended, or all windows are over."""
        self.is_over = True
        self._close()

    def _next_window(self) -> None:
        self._close()
        if not self._waiting and self._wants_backward is not None:
            wants, self._wants_backward = self._wants_backward, None
            if wants(self.seen):
                self._waiting.append(Window(phase="backward", num_steps=_BACKWARD_STEPS))
        self.is_over = not self._waiting
        if self.seen and self.seen[-1].phase != "rest":
            self._on_seen()
        if self.is_over:
            return
        window = self._waiting.pop(0)
        self._left = window.num_steps
        passes = self._start(window.phase)
        self._now = SeenWindow(phase=window.phase, passes=passes)

    def _close(self) -> None:
        now, self._now = self._now, None
        if now is None:
            return
        self.seen.append(now)
        stop_all(now.passes)


def start_all(passes: Sequence[Pass]) -> None:
    """Start passes in their order; where one cannot start, none is left running."""
    for number, one in enumerate(passes):
        try:
            one.start()
        except BaseException:
            stop_all(passes[:number])
            raise


def stop_all(passes: Sequence[Pass]) -> None:
    """Stop passes, the last first, each of them whatever happens to the others."""
    if passes:
        try:
            passes[-1].stop()
        finally:
            stop_all(passes[:-1])


def longest(seen: Sequence[SeenWindow], phase: Phase) -> SeenWindow | None:
    """Return the window of a phase that had the most steps; None if none had any."""
    found = [one for one in seen if one.phase == phase and one.num_steps]
    return max(found, key=lambda one: one.num_steps) if found else None
