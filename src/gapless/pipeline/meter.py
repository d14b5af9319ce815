"""Device busy time and gaps, measured by event pairs and read late."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gapless.pipeline.streams import EventPool


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.device.base import Device, Event, Stream


# Takes a step's label, its busy time, and the time since the end of the step before, if one was.
StepObserver: TypeAlias = "Callable[[object, float, float | None], None]"


@dataclass(frozen=True, kw_only=True)
class GapReading:
    """What the device did while a loop ran.

    Attributes:
        busy_ms: time between the first and last kernel of each step, summed, in milliseconds.
        gap_ms: time between the end of a step and the start of the next, summed.
    """

    busy_ms: float
    gap_ms: float

    @property
    def gap_share(self) -> float | None:
        """Share of the time in gaps, 0 to 1; None before a step was read."""
        span = self.busy_ms + self.gap_ms
        return self.gap_ms / span if span else None

    def __sub__(self, earlier: GapReading) -> GapReading:
        return GapReading(
            busy_ms=self.busy_ms - earlier.busy_ms, gap_ms=self.gap_ms - earlier.gap_ms
        )


class GapMeter:
    """Record an event at both ends of every step, and read their times when they are done.

    It sees the gaps between steps. Idle time inside a step, between its kernels, counts as busy:
    events cannot tell it apart, a kernel trace can.

    Args:
        device: where the steps run.

    Attributes:
        observer: called for every step that is read, in order, with its label.
        label: of the step that is being queued; the next one has none.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._events = EventPool(device, timed=True)
        self.observer: StepObserver | None = None
        self.label: object = None
        self._pending: deque[tuple[Event, Event, object] | None] = deque()
        self._started: Event | None = None
        self._last_end: Event | None = None
        self._busy_ms = 0.0
        self._gap_ms = 0.0

    def start_step(self, stream: Stream) -> None:
        """Mark the start of a step.

        Sync: Does not block the host.
        """
        self._started = self._events.record(stream)

    def end_step(self, stream: Stream) -> None:
        """Mark the end of a step.

        Sync: Does not block the host.
        """
        assert self._started is not None
        self._pending.append((self._started, self._events.record(stream), self.label))
        self._started = self.label = None

    def is_idle(self) -> bool:
        """Return whether the device has done every step that ended.

        Sync: Does not block the host.
        """
        step = self._pending[-1] if self._pending else None
        return step is None or self._device.query_event(step[1])

    def pause(self) -> None:
        """Do not count the time until the next step as a gap, nor a step that did not end."""
        self._started = self.label = None
        self._pending.append(None)
        self.poll()
        if not self._pending:
            self._events.reset()

    def poll(self) -> None:
        """Take in the steps that are done.

        Sync: Does not block the host.
        """
        while self._pending:
            step = self._pending[0]
            if step is not None and not self._device.query_event(step[1]):
                return
            # First out, then counted: an interrupt may lose a step's time, but no step is
            # counted and no event given back twice.
            self._pending.popleft()
            self._take_in(step)

    def _take_in(self, step: tuple[Event, Event, object] | None) -> None:
        former, self._last_end = self._last_end, step[1] if step else None
        if step is not None:
            start, end, label = step
            gap_ms = None if former is None else self._device.elapsed_ms(former, start)
            busy_ms = self._device.elapsed_ms(start, end)
            self._gap_ms += gap_ms or 0.0
            self._busy_ms += busy_ms
            self._events.give_back(start)
            if self.observer is not None:
                self.observer(label, busy_ms, None if gap_ms is None else gap_ms + busy_ms)
        if former is not None:
            self._events.give_back(former)

    def reading(self) -> GapReading:
        """Return the totals of the steps taken in so far.

        Sync: Does not block the host.
        """
        return GapReading(busy_ms=self._busy_ms, gap_ms=self._gap_ms)
