"""Where the time of a step goes: on the host and on the device. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.doctor.replay.exposed import busy_us
from gapless.records.comparison import Spread
from gapless.records.finding import StepTimes


if TYPE_CHECKING:
    from gapless.doctor.diagnose.finding_groups import Groups, KnownWaits
    from gapless.doctor.diagnose.measured_times import MeasuredTimes
    from gapless.doctor.replay.recording import Recording
    from gapless.doctor.trace.chrome_trace import Trace


def step_times_of(known: KnownWaits, groups: Groups, times: MeasuredTimes) -> StepTimes | None:
    """Return the times of a step; None where none was timed."""
    wall = known.watched.step_ms or ((times.step_ms,) if times.step_ms is not None else ())
    if not wall:
        return None
    data_ms = sum(
        group.waited_ms or 0.0
        for key, group in groups.items()
        if key.cause == "loader" and key.thread == "main"
    )
    recording, played, trace = times.recording, times.played, known.trace
    if recording is None or played is None or trace is None:
        return StepTimes(num_steps=len(wall), wall_ms=Spread.of(wall), data_ms=data_ms)
    wait_ms = sum(played.wait_us.values()) / recording.num_steps / 1000.0
    busy = times.busy_ms or 0.0
    step = times.step_ms or played.step_ms
    launch_ms = _launch_ms(known, trace, recording, event_cost_us=times.event_cost_us)
    return StepTimes(
        num_steps=len(wall),
        wall_ms=Spread.of(wall),
        data_ms=data_ms,
        wait_ms=min(wait_ms, step),
        launch_ms=max(0.0, min(launch_ms, step - wait_ms - data_ms)),
        busy_ms=min(busy, step),
        compute_ms=min(busy, _compute_ms(trace, recording)),
        idle_ms=max(0.0, step - busy),
        num_launches=times.num_launches,
    )


def _inside(recording: Recording, start: float, end: float) -> tuple[float, float]:
    return max(start, recording.begin_us), min(end, recording.end_us)


def _compute_ms(trace: Trace, recording: Recording) -> float:
    spans = [
        _inside(recording, work.start_us, work.end_us) for work in trace.works if not work.crosses
    ]
    return busy_us(spans) / recording.num_steps / 1000.0


def _launch_ms(
    known: KnownWaits, trace: Trace, recording: Recording, *, event_cost_us: float
) -> float:
    """Return the time a step that the host was in torch or the driver, its waits taken out."""
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
