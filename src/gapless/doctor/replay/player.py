"""Play recorded steps again: as they were, without the profiler's cost, or without one of their waits.

Played, the host goes through its list; work starts when it is queued, when its stream is free, and when
the work that it depends on is done; a wait returns when its work is done. The steps are played several
times in a row: how much later each round ends than the one before is the time that they take in the long
run. So what removing a wait gains is the difference of two such times: the idle time that only moves
on to the next wait, or to a host that is slower than the device, is not in it. No torch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.doctor.replay.exposed import DeviceSpan, HostSpan


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gapless.doctor.replay.exposed import HostKind
    from gapless.doctor.replay.recording import Act, Recording

# The driver takes about so many pieces of work that have not begun; then a launch waits.
_QUEUE_LENGTH = 1000

# What the profiler and our marks cost the host for each event that is recorded: usually, how far that
# may be from it, and at most; and at most where it was measured.
_EVENT_COST_US = 1.0
_EVENT_COST_SPREAD_US = 1.5
_MAX_EVENT_COST_US = 6.0
_MAX_MEASURED_COST_US = 20.0
# So much steps of two windows differ by chance.
_BY_CHANCE = 0.01
_NUM_ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of playing a recording.

    Attributes:
        step_ms: of one step in the long run.
        device: work of the last two rounds, where it was to be kept.
        host: waits, launches and named intervals of them, likewise.
        begin_us: when the device was done with the round before the last.
        end_us: when it was done with the last round.
        wait_us: that the host stood still, by wait, in the last round, likewise.
    """

    step_ms: float
    device: list[DeviceSpan]
    host: list[HostSpan]
    begin_us: float
    end_us: float
    wait_us: Mapping[int, float]


def play(
    recording: Recording,
    *,
    event_cost_us: float = 0.0,
    without_waits: Collection[int] = (),
    without_named: Collection[int] = (),
    num_rounds: int = _NUM_ROUNDS,
    keep_spans: bool = False,
) -> Played:
    """Play a recording several times in a row.

    Args:
        recording: the steps.
        event_cost_us: host time that is subtracted for each event that was recorded.
        without_waits: waits that are left out.
        without_named: owners of named host time that is left out.
        num_rounds: at least 2.
        keep_spans: whether what the host and the device did is returned as well.
    """
    return _Player(
        recording,
        event_cost_us=event_cost_us,
        without_waits=frozenset(without_waits),
        without_named=frozenset(without_named),
        keeps=keep_spans,
    ).play(num_rounds)


class _Player:
    """The state of the host and the device while a recording is played."""

    def __init__(
        self,
        recording: Recording,
        *,
        event_cost_us: float,
        without_waits: frozenset[int],
        without_named: frozenset[int],
        keeps: bool,
    ) -> None:
        self._recording = recording
        self._cost = event_cost_us
        self._without_waits = without_waits
        self._without_named = without_named
        self._keeps = keeps
        self._now = 0.0
        self._act_start = 0.0
        self._free: dict[int, float] = {}
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._device_end = 0.0
        self._host: list[HostSpan] = []
        self._device: list[DeviceSpan] = []
        self._wait_us: dict[int, float] = defaultdict(float)

    def _pause_of(self, act: Act) -> float:
        left_out = sum(
            end - start for _, owner, start, end in act.named if owner in self._without_named
        )
        return _shorter(act.pause_us - left_out, self._cost * act.num_events)

    def play(self, num_rounds: int) -> Played:
        """Go through all rounds."""
        acts = [
            (act, self._pause_of(act), _shorter(act.call_us, self._cost))
            for act in self._recording.acts
        ]
        done: list[float] = []
        for round_ in range(num_rounds):
            keep = self._keeps and round_ >= num_rounds - 2
            for act, pause, call_us in acts:
                if act.aside:
                    self._queue(act, self._act_start + act.pause_us, keep=keep)
                    continue
                if keep and act.named:
                    self._keep_named(act, pause)
                self._now += pause
                self._play_act(act, call_us, keep=keep)
            if keep and round_ == num_rounds - 2:
                self._wait_us.clear()
            done.append(self._device_end)
        step_us = (done[-1] - done[-2]) / self._recording.num_steps
        return Played(
            step_ms=step_us / 1000.0,
            device=self._device,
            host=self._host,
            begin_us=done[-2],
            end_us=done[-1],
            wait_us=self._wait_us,
        )

    def _play_act(self, act: Act, call_us: float, *, keep: bool) -> None:
        start, wait = self._now, act.wait
        kind: HostKind = "launch"
        if wait is None:
            if act.works and len(self._starts) >= _QUEUE_LENGTH:  # the driver has no room for more
                start = max(start, self._starts[-_QUEUE_LENGTH])
            self._queue(act, start, keep=keep)
            self._now = start + call_us
        else:
            self._queue(act, start, keep=keep)
            if wait not in self._without_waits:
                self._now = self._returned(act, start)
                kind = "wait"
                if keep:
                    self._wait_us[wait] += self._now - start
        self._act_start = start
        if keep and self._now > start:
            span = HostSpan(kind=kind, start_us=start, end_us=self._now, owner=wait)
            self._host.append(span)

    def _keep_named(self, act: Act, pause: float) -> None:
        """Note named host time; it keeps its place in a pause that may be shorter."""
        scale = pause / act.pause_us if act.pause_us else 0.0
        for kind, owner, start, end in act.named:
            if owner not in self._without_named:
                a, b = self._now + start * scale, self._now + end * scale
                self._host.append(HostSpan(kind=kind, start_us=a, end_us=b, owner=owner))

    def _queue(self, act: Act, called: float, *, keep: bool) -> None:
        for place in act.works:
            work = self._recording.works[place]
            start = called + work.latency_us
            free = self._free.get(work.stream, 0.0)
            if free + work.lead_us > start:
                start = free + work.lead_us
            for before in work.after:
                if before <= len(self._ends) and self._ends[-before] > start:
                    start = self._ends[-before]
            start += work.delay_us
            end = start + work.duration_us
            self._free[work.stream] = end if end > free else free
            self._starts.append(start)
            self._ends.append(end)
            if end > self._device_end:
                self._device_end = end
            if keep:
                self._device.extend(
                    DeviceSpan(
                        start_us=start + a,
                        end_us=start + b,
                        launch_us=called,
                        ready_us=called + work.latency_us,
                    )
                    for a, b in work.busy
                )

    def _returned(self, act: Act, start: float) -> float:
        done = start
        if act.until == 0:
            done = max(start, self._device_end)
        elif act.until is not None and act.until <= len(self._ends):
            done = max(start, self._ends[-act.until])
        return done + act.return_us


def _shorter(us: float, cost_us: float) -> float:
    """Take the profiler's cost off host time, but never more than most of it."""
    return max(0.1 * us, us - cost_us)


def event_cost(recording: Recording, *, step_ms: float, slower_ms: float | None = None) -> float:
    """Return what an event cost the host, in us.

    Where it is known by how much the host was slower under the profiler, that is what all events cost.
    Else the cost is chosen so that the recording played takes as long as plain steps. In a step that is
    bound by the device the cost hardly shows in that; there it is near the usual one and not read out
    of noise: what is least likely by chance, of the cost and of the difference that is left, counts most.

    Args:
        recording: the steps.
        step_ms: of a plain step.
        slower_ms: by which the host worked longer in a step for being recorded; None if not known.
    """
    if slower_ms is not None:
        return _measured_cost(recording, _host_ms(recording, 0.0) - slower_ms)

    def unlikely(cost_us: float) -> float:
        played = play(recording, num_rounds=3, event_cost_us=cost_us).step_ms
        left = (played - step_ms) / (_BY_CHANCE * step_ms)
        return left**2 + ((cost_us - _EVENT_COST_US) / _EVENT_COST_SPREAD_US) ** 2

    costs = [float(us) for us in range(int(_MAX_EVENT_COST_US) + 1)]
    best = min(costs, key=unlikely)
    low, high = max(0.0, best - 1.0), min(_MAX_EVENT_COST_US, best + 1.0)
    for _ in range(5):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if unlikely(first) <= unlikely(second):
            high = second
        else:
            low = first
    return (low + high) / 2


def _measured_cost(recording: Recording, host_ms: float) -> float:
    """Return the cost with which the host works so long in a step."""
    low, high = 0.0, _MAX_MEASURED_COST_US
    for _ in range(20):
        middle = (low + high) / 2
        if _host_ms(recording, middle) > host_ms:
            low = middle
        else:
            high = middle
    return low


def _host_ms(recording: Recording, event_cost_us: float) -> float:
    """Return how long the host works in a recorded step; its waits for the device are left out."""
    us = sum(
        _shorter(act.pause_us, event_cost_us * act.num_events)
        + (_shorter(act.call_us, event_cost_us) if act.wait is None else 0.0)
        for act in recording.acts
    )
    return us / recording.num_steps / 1000.0
