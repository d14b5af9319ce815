"""Times of a step: of plain ones, and of recorded ones that are played again. No torch.

The trace is played again without what the profiler cost the host, so that its steps take as long as plain
ones; of that, each moment in which the device is idle is charged to its cause. Each wait is then left out
in turn to see what that gains.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING

from gapless.doctor.diagnose.finding_groups import NAMED_KINDS, OF_ALLOCATIONS
from gapless.doctor.diagnose.watched_run import HOST_COSTS, host_ms
from gapless.doctor.replay.exposed import busy_us, charge_gaps
from gapless.doctor.replay.player import event_cost, play
from gapless.doctor.replay.recording import record
from gapless.doctor.trace.chrome_trace import ALLOCATING, calls_named
from gapless.records.comparison import Spread
from gapless.records.finding import PartTimes, StepTimes


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.doctor.diagnose.finding_groups import Group, Groups, KnownWaits
    from gapless.doctor.replay.player import Played
    from gapless.doctor.replay.recording import Recording
    from gapless.doctor.trace.chrome_trace import Trace, Work

# At most so many findings are replayed without their wait; the others cost little.
_MAX_PLAYED = 24

# Between two pieces of work a device pauses for some microseconds; for so long only where it does something else.
_HELD_US = 100.0

# Plain steps that are shorter by this share than the replayed steps without waits were not held up by the device.
_RAN_AHEAD = 0.02


class MeasuredTimes:
    """Times in milliseconds a step.

    Args:
        known: waits of the run.

    Attributes:
        step_ms: of a plain step; None where none was timed.
        recording: of the steps of the trace; None where there is nothing to be played.
        played: without what the profiler cost.
        event_cost_us: that the profiler cost the host for each event.
        busy_ms: in which the device has work; None where that was not measured.
        idle_ms: of the device, by cause.
        all_waits_ms: that a step becomes shorter by without all its waits.
        notes: how far the figures can be relied on, one sentence each.
    """

    def __init__(self, known: KnownWaits) -> None:
        self._known = known
        self.step_ms = _plain_step_ms(known.watched.step_ms)
        self.recording: Recording | None = None
        if known.trace is not None:
            self.recording = record(known.trace, known.joined.waits, known.intervals)
        self.played: Played | None = None
        self.event_cost_us = 0.0
        self.busy_ms: float | None = None
        self.idle_ms: dict[str, float] = defaultdict(float)
        self.all_waits_ms = 0.0
        self.notes: list[str] = []

    @property
    def num_launches(self) -> float | None:
        """How often the host launches work, a step."""
        if self.recording is None:
            return None
        return sum(bool(act.works) for act in self.recording.acts) / self.recording.num_steps

    def measure(self, groups: Groups) -> None:
        """Play the recorded steps, if there are any; note of each group how long it waits and what that costs."""
        recording = self.recording
        if recording is None:
            return
        recorded_ms = play(recording).step_ms
        if self.step_ms is None:
            self.step_ms = recorded_ms
            self.notes.append("No plain steps were timed: times are those under the profiler.")
        else:
            self.event_cost_us = event_cost(
                recording, step_ms=self.step_ms, slower_ms=self._slower_ms()
            )
        played = self.played = play(recording, event_cost_us=self.event_cost_us, keep_spans=True)
        self._note_difference(recorded_ms, played.step_ms)
        self._charge(played, recording, groups)
        for place in played.wait_us:
            group = groups[self._known.keys[place]]
            group.charged_ms = group.charged_ms or 0.0
        self._note_unknown()
        self._waited(played, recording, groups)
        self._gains(played, recording, groups)

    def _slower_ms(self) -> float | None:
        """Return by how much the host works longer in a step under the profiler; None if not known."""
        trace, without = self._known.trace, self._known.watched.host_ms
        if trace is None or without is None:
            return None
        steps = [(end - start) / 1000.0 for start, end in pairwise(trace.steps)]
        # Without calls that might have held waits but did not: with a wait whose end is unknown, nothing is known.
        owners = set(self._known.joined.owners)
        seen = [
            one
            for place, one in enumerate(self._known.watched.timed)
            if one.end_ns is not None or place in owners
        ]
        under = host_ms(steps, seen)
        return None if under is None else max(0.0, under - without)

    def _note_difference(self, recorded_ms: float, played_ms: float) -> None:
        plain = self.step_ms or recorded_ms
        if recorded_ms > 1.25 * plain:
            self.notes.append(
                f"A step takes {recorded_ms:.1f} ms under the profiler and {plain:.1f} ms without: "
                f"{self.event_cost_us:.1f} us of host time were taken off for each event that it recorded."
            )
        if abs(played_ms - plain) > 0.1 * plain:
            self.notes.append(
                f"The recorded steps played again take {played_ms:.1f} ms each, the plain ones "
                f"{plain:.1f} ms: exposed times and gains are rough."
            )

    def _note_unknown(self) -> None:
        known = sum(key.site is not None for key in self._known.keys)
        if known < len(self._known.keys):
            self.notes.append(
                f"{known} of {len(self._known.keys)} blocking calls of the recorded steps have a line."
            )

    def _charge(self, played: Played, recording: Recording, groups: Groups) -> None:
        steps = recording.num_steps
        inside = [
            (max(played.begin_us, one.start_us), min(played.end_us, one.end_us))
            for one in played.device
        ]
        self.busy_ms = busy_us(inside) / steps / 1000.0
        gaps = charge_gaps(
            played.device, played.host, begin_us=played.begin_us, end_us=played.end_us
        )
        # At most what a plain step takes beyond the device's work: under the profiler the device idles longer.
        idle_ms = sum(gap.us for gap in gaps) / steps / 1000.0
        most_ms = max(0.0, (self.step_ms or played.step_ms) - self.busy_ms)
        scale = min(1.0, most_ms / idle_ms) if idle_ms else 1.0
        for gap in gaps:
            for charge in gap.charges:
                ms = charge.us * scale / steps / 1000.0
                held = charge.cause == "device" and charge.us > _HELD_US
                self.idle_ms["held" if held else charge.cause] += ms
                key = self._known.key_of_charge(charge.cause, charge.owner)
                if key is not None:
                    groups[key].charged_ms = (groups[key].charged_ms or 0.0) + ms

    def _waited(self, played: Played, recording: Recording, groups: Groups) -> None:
        """Take counts and durations of waits from the trace; of rare ones, from the longer window."""
        for key, group in groups.items():
            if key == OF_ALLOCATIONS:
                self._count_allocations(group, recording)
            if key.cause in HOST_COSTS:
                continue
            of_round = [place for place in group.waits if place in played.wait_us]
            us: float
            if of_round:
                us = sum((played.wait_us[place] for place in of_round), 0.0)
            else:
                of_round = [
                    place
                    for place in group.waits
                    if recording.begin_us
                    <= self._known.joined.waits[place].start_us
                    < recording.end_us
                ]
                us = sum(
                    self._known.joined.waits[place].end_us
                    - self._known.joined.waits[place].start_us
                    for place in of_round
                )
            if not of_round:
                continue
            marked = len(group.owners & self._known.joined.marked)
            if group.per_step and marked:
                calls = len(group.waits) / marked
                group.waited_ms = us / len(of_round) / 1000.0 * calls * group.per_step
                group.per_step *= calls
            else:
                group.per_step = len(of_round) / recording.num_steps
                group.waited_ms = us / 1000.0 / recording.num_steps

    def _count_allocations(self, group: Group, recording: Recording) -> None:
        assert self._known.trace is not None
        took = [
            call.end_us - call.start_us
            for call in calls_named(self._known.trace, ALLOCATING)
            if recording.begin_us <= call.start_us < recording.end_us
        ]
        group.per_step = len(took) / recording.num_steps
        group.waited_ms = sum(took) / recording.num_steps / 1000.0

    def _gains(self, played: Played, recording: Recording, groups: Groups) -> None:
        chain = {act.wait for act in recording.acts if act.wait is not None}

        def gain(waits: set[int], named: set[int]) -> float:
            without = play(
                recording,
                event_cost_us=self.event_cost_us,
                without_waits=waits,
                without_named=named,
            )
            return max(0.0, played.step_ms - without.step_ms)

        all_waits_ms = gain({wait for wait in chain if self._known.is_wait(wait)}, set())
        scale = self._scale_of_gains(played.step_ms, all_waits_ms)
        self.all_waits_ms = scale * all_waits_ms
        most = sorted(groups.items(), key=lambda one: -(one[1].charged_ms or 0.0))
        most.sort(key=lambda one: -(one[1].waited_ms or 0.0) - (one[1].charged_ms or 0.0))
        for key, group in most[:_MAX_PLAYED]:
            if key.cause in NAMED_KINDS and not group.waits:
                group.gain_ms = gain(set(), group.owners)
                group.charged_ms = group.charged_ms or 0.0
            elif group.waits & chain:
                group.gain_ms = scale * gain(group.waits & chain, set())

    def _scale_of_gains(self, played_ms: float, all_waits_ms: float) -> float:
        """Return the share of the played gains that plain steps have room for.

        A plain step cannot become shorter than it would be without any wait, and what the profiler
        adds behind a wait is not gained without it. Where plain steps are shorter than that already,
        the host ran ahead of the device in them, and their length says nothing.
        """
        without_ms = played_ms - all_waits_ms
        plain_ms = self.step_ms or played_ms
        if not all_waits_ms or plain_ms < (1.0 - _RAN_AHEAD) * without_ms:
            return 1.0
        return min(1.0, max(0.0, plain_ms - without_ms) / all_waits_ms)


def _plain_step_ms(steps: Sequence[float]) -> float | None:
    """Return what a plain step takes: their mean, without a single one that took much longer.

    A median would leave out what happens every ten steps.
    """
    if not steps:
        return None
    usual = median(steps)
    long = [one for one in steps if one > 3.0 * usual]
    return mean(one for one in steps if len(long) != 1 or one not in long)


# --- where the time of a step goes ---


def step_times_of(known: KnownWaits, groups: Groups, times: MeasuredTimes) -> StepTimes | None:
    """Return the times of a step; None where none was timed."""
    wall = known.watched.step_ms or ((times.step_ms,) if times.step_ms is not None else ())
    if not wall:
        return None
    loaders = [(key, group) for key, group in groups.items() if key.cause == "loader"]
    data_ms = sum(group.waited_ms or 0.0 for key, group in loaders if key.thread == "main")
    parts = known.watched.step_parts
    parts_ms = None if parts is None else _with_data(parts.of(mean(wall)).ms, data_ms)
    recording, played, trace = times.recording, times.played, known.trace
    if recording is None or played is None or trace is None:
        return StepTimes(
            num_steps=len(wall),
            wall_ms=Spread.of(wall),
            # Without a device nothing else is waited for before a forward pass.
            data_ms=data_ms if known.watched.has_device or parts_ms is None else parts_ms.data,
            parts_ms=parts_ms,
            has_loader=bool(loaders),
        )
    wait_ms = sum(played.wait_us.values()) / recording.num_steps / 1000.0
    step = times.step_ms or played.step_ms
    busy = min(step, times.busy_ms or 0.0)
    launch_ms = _launch_ms(known, trace, recording, event_cost_us=times.event_cost_us)
    return StepTimes(
        num_steps=len(wall),
        wall_ms=Spread.of(wall),
        data_ms=data_ms,
        wait_ms=min(wait_ms, step),
        launch_ms=max(0.0, min(launch_ms, step - wait_ms - data_ms)),
        busy_ms=busy,
        compute_ms=min(busy, _works_ms(trace, recording, lambda work: not work.crosses)),
        collective_ms=min(
            busy, _works_ms(trace, recording, lambda work: work.name.startswith("nccl"))
        ),
        idle_ms=step - busy,
        num_launches=times.num_launches,
        parts_ms=parts_ms,
        has_loader=bool(loaders),
    )


def _with_data(parts: PartTimes, data_ms: float) -> PartTimes:
    """Return parts of which data has at least what was seen of loaders, in another window of the run."""
    rest = sum(vars(parts).values()) - parts.data
    more = min(max(0.0, data_ms - parts.data), rest)
    scaled = {name: ms * (1.0 - more / rest) if rest else ms for name, ms in vars(parts).items()}
    return PartTimes(**scaled | {"data": parts.data + more})


def _inside(recording: Recording, start: float, end: float) -> tuple[float, float]:
    return max(start, recording.begin_us), min(end, recording.end_us)


def _works_ms(trace: Trace, recording: Recording, counts: Callable[[Work], bool]) -> float:
    """Return the time a step in which the device did work of a kind."""
    spans = [
        _inside(recording, work.start_us, work.end_us) for work in trace.works if counts(work)
    ]
    return busy_us(spans) / recording.num_steps / 1000.0


def _launch_ms(
    known: KnownWaits, trace: Trace, recording: Recording, *, event_cost_us: float
) -> float:
    """Return the time a step that the host was in torch or the driver, without its waits."""
    chain = {trace.main, *trace.autograd}
    spans = [
        _inside(recording, one.start_us, one.end_us) for one in trace.calls if one.thread in chain
    ]
    for thread, operations in trace.operations.items():
        if thread in chain:
            spans += [_inside(recording, one.start_us, one.end_us) for one in operations]
    waits = [
        _inside(recording, one.start_us, one.end_us)
        for one in known.joined.waits
        if one.thread in chain
    ]
    own = busy_us([*spans, *waits]) - busy_us(waits)
    events = sum(act.num_events for act in recording.acts)
    own -= min(0.9 * own, event_cost_us * events)
    return own / recording.num_steps / 1000.0
