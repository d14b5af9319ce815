"""Draw the conclusions: what each line costs, what mending it gains, and what holds the script back.

The waits that were seen have lines, the trace has times. The trace is played again without what the
profiler cost the host, so that its steps take as long as plain ones; of that, each moment in which
the device is idle is charged to its cause. Each wait is then left out in turn to see what that gains.
No torch here.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING, NamedTuple

from gapless.doctor.advice.causes import CODE_OF
from gapless.doctor.advice.finding_texts import cause_text, mend_text
from gapless.doctor.advice.verdict import Figures, verdict_of
from gapless.doctor.diagnose.drawn_timeline import draw
from gapless.doctor.diagnose.watched import HOST_COSTS, host_ms
from gapless.doctor.replay.exposed import busy_us, charge_gaps
from gapless.doctor.replay.player import event_cost, play
from gapless.doctor.replay.recording import HostInterval, record
from gapless.doctor.trace.chrome_trace import find_allocations, node_around, operation_around
from gapless.doctor.trace.join import Joined, join
from gapless.records.comparison import Spread
from gapless.records.finding import Finding, StepTimes


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.advice.causes import Cause
    from gapless.doctor.diagnose.watched import Watched
    from gapless.doctor.replay.exposed import HostKind
    from gapless.doctor.replay.player import Played
    from gapless.doctor.replay.recording import Recording
    from gapless.doctor.seen import NodeKey, SeenWait
    from gapless.doctor.trace.chrome_trace import Trace, Wait
    from gapless.records.finding import Site
    from gapless.records.timeline import Timeline

# Host time that is told by its beginning and its end, not by a call of the runtime.
_NAMED_KINDS: dict[str, HostKind] = {"loader": "loader", "collective": "collective", "gc": "gc"}
# A wait that may also go by without a blocking call of the runtime.
_MAY_NOT_BLOCK = (*HOST_COSTS, "query", "empty_cache", "collective", "unknown")

# Batches come in ever new shapes if more than so many of at least so many have one of their own.
_LEAST_BATCHES = 10
_LEAST_NEW_SHAPES = 0.5

# Below this share of the step a host cost is not worth a finding.
_LEAST_COST_SHARE = 0.01
# Likewise where nobody knows how much of it the device was idle.
_LEAST_UNKNOWN_SHARE = 0.05
_LEAST_LAUNCH_SHARE = 0.10
# So many findings are played again without; more would take long and cost little.
_MAX_PLAYED = 24

_OF_OPERATION: dict[str, Cause] = {
    "aten::_local_scalar_dense": "item",
    "aten::item": "item",
    "aten::nonzero": "shape",
    "aten::_unique2": "shape",
    "aten::unique_dim": "shape",
    "aten::masked_select": "shape",
    "aten::index_put_": "shape",
    "aten::_index_put_impl_": "shape",
    "aten::index": "shape",
    "aten::repeat_interleave": "shape",
    "aten::equal": "equal",
    "aten::is_nonzero": "bool",
    "aten::_to_copy": "copy",
    "aten::copy_": "copy",
}


# Plain steps that are shorter than without waits by such a share of them were not held up by the device.
_RAN_AHEAD = 0.02

# Threads of one pool, and those that a loop starts anew in each step, differ in a number alone:
# "asyncio_1", "ThreadPoolExecutor-0_3", "Thread-12 (log)".
_NUMBER = re.compile(r"[-_ ]\d+(?=$| \()")


class _Key(NamedTuple):
    """What makes two waits one finding."""

    cause: Cause
    call: str
    site: Site | None
    thread: str
    forward: Site | None = None


_OF_ALLOCATIONS = _Key("allocation", "cudaMalloc", None, "main")


@dataclass(kw_only=True)
class _Group:
    """The waits of one finding.

    Attributes:
        num_seen: calls in the window of sites.
        per_step: how often in a step.
        waited_ms: a step, as far as it was measured.
        waits: places in the trace's waits.
        owners: places in what was seen in the times window.
        charged_ms: idle time of a step that was charged to it.
        gain_ms: a step becomes shorter by if it alone is mended.
        detail: of one of its calls.
    """

    num_seen: int = 0
    per_step: float = 0.0
    waited_ms: float | None = None
    waits: set[int] = field(default_factory=set)
    owners: set[int] = field(default_factory=set)
    charged_ms: float | None = None
    gain_ms: float | None = None
    detail: str = ""

    @property
    def exposed_ms(self) -> float | None:
        """What mending it can gain at most.

        Idle time that two causes share, such as a slow loader behind a wait, is charged to one of
        them, but mending the other gains it as well.
        """
        if self.charged_ms is None:
            return None
        return max(self.charged_ms, self.gain_ms or 0.0)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The conclusions: fields of a session."""

    findings: tuple[Finding, ...]
    steps: StepTimes | None
    verdict: str
    notes: tuple[str, ...]
    timeline: Timeline | None


def diagnose(watched: Watched) -> Diagnosis:
    """Return what holds a script back, from what was noted while it ran."""
    try:
        return _Diagnosing(watched).diagnosis()
    except Exception as error:
        # The format of a trace is not promised; lines and counts do not need it.
        if watched.trace is None:
            raise
        note = f"Times were not measured: the profiler's trace cannot be read: {error!r}."
        return _Diagnosing(
            replace(watched, trace=None, timed=(), notes=(*watched.notes, note))
        ).diagnosis()


class _Diagnosing:
    """The state of one diagnosis."""

    def __init__(self, watched: Watched) -> None:
        watched = self._watched = _with_full_names(watched)
        self._notes = list(watched.notes)
        trace = watched.trace
        if trace is not None and (not trace.works or len(trace.steps) < 2):
            trace = None
        self._trace: Trace | None = trace
        self._joined = (
            Joined(waits=(), owners=(), marked=frozenset())
            if trace is None
            else join(trace, watched.timed)
        )
        self._keys = self._keys_of_waits()
        self._recording = self._record()
        self._cost_us = 0.0
        self._played: Played | None = None
        self._step_ms = _plain_step_ms(watched.step_ms)
        self._causes: dict[str, float] = defaultdict(float)  # idle ms of a step by cause
        self._busy_ms: float | None = None
        self._all_waits_ms = 0.0

    def _record(self) -> Recording | None:
        if self._trace is None:
            return None
        return record(self._trace, self._joined.waits, self._intervals(self._trace))

    def _intervals(self, trace: Trace) -> list[HostInterval]:
        found = [
            HostInterval(kind="allocation", start_us=call.start_us, end_us=call.end_us, owner=None)
            for call in find_allocations(trace)
            if call.thread == trace.main or call.thread in trace.autograd
        ]
        for place, seen in enumerate(self._watched.timed):
            start, end = trace.to_us(seen.start_ns), trace.to_us(seen.end_ns or seen.start_ns)
            if start is None or end is None:
                continue
            kind = _NAMED_KINDS.get(seen.cause)
            # The collector stops all threads, the others only their own.
            if kind is not None and (seen.thread == "main" or kind == "gc"):
                found.append(HostInterval(kind=kind, start_us=start, end_us=end, owner=place))
        return found

    # Which finding each wait belongs to

    def _keys_of_waits(self) -> list[_Key]:
        if self._trace is None:
            return []
        places = _places_of_nodes(self._trace)
        return [
            _key_of(self._watched.timed[owner])
            if owner is not None
            else self._key_of_unseen(self._trace, wait, places)
            for wait, owner in zip(self._joined.waits, self._joined.owners, strict=True)
        ]

    def _key_of_unseen(self, trace: Trace, wait: Wait, places: dict[int, NodeKey]) -> _Key:
        thread = trace.thread_name(wait.thread)
        if wait.kind in ("free", "host allocation"):
            cause: Cause = "allocation" if wait.kind == "free" else "host allocation"
            return _Key(cause, wait.name, None, thread)
        node = node_around(trace, thread=wait.thread, at_us=wait.start_us)
        if node is None or node.sequence is None:
            return _Key("unknown", wait.name, None, thread)
        line = self._forward_line(node.node, places.get(node.sequence))
        inner = operation_around(trace, thread=wait.thread, at_us=wait.start_us)
        cause = _OF_OPERATION.get(inner.name, "unknown") if inner is not None else "unknown"
        return _Key(cause if line else "unknown", f"{node.node} ({wait.name})", line, thread, line)

    def _forward_line(self, name: str, key: NodeKey | None) -> Site | None:
        lines = self._watched.forward_lines
        if key is not None and key in lines:
            return lines[key]
        same = {site for (node, _), site in lines.items() if node == name}
        return same.pop() if len(same) == 1 else None

    # The groups

    def diagnosis(self) -> Diagnosis:
        """Return the conclusions."""
        groups = self._groups()
        if self._recording is not None and self._trace is not None:
            self._measure(self._recording, groups)
        self._drop_harmless(groups)
        findings = self._findings(groups)
        steps = self._step_times(groups)
        figures = self._figures(steps)
        return Diagnosis(
            findings=tuple(finding for finding, _ in findings),
            steps=steps,
            verdict=verdict_of(figures, [finding for finding, _ in findings]),
            notes=tuple(dict.fromkeys(self._notes)),
            timeline=self._timeline(findings),
        )

    def _groups(self) -> dict[_Key, _Group]:
        groups: dict[_Key, _Group] = defaultdict(_Group)
        watched = self._watched
        knows_autograd = self._trace is not None
        steps = watched.num_seen_steps
        for seen, counts in (
            *((one, True) for one in watched.seen),
            *((one, False) for one in watched.timed),
        ):
            if knows_autograd and seen.thread == "autograd" and seen.site is None:
                continue  # the trace has it, with its node
            group = groups[_key_of(seen)]
            group.detail = group.detail or seen.detail
            if counts and steps:
                group.num_seen += seen.count
                group.per_step = group.num_seen / steps
                if seen.end_ns is not None:
                    took = (seen.end_ns - seen.start_ns) / 1e6 / steps
                    group.waited_ms = (group.waited_ms or 0.0) + took
        for place, seen in enumerate(watched.timed):
            if _key_of(seen) in groups:
                groups[_key_of(seen)].owners.add(place)
        for place, key in enumerate(self._keys):
            groups[key].waits.add(place)
        return groups

    def _drop_harmless(self, groups: dict[_Key, _Group]) -> None:
        """Drop what was expected to wait, but did not in the trace, where all its waits are known."""
        trace = self._trace
        if trace is None:
            return
        unknown = {
            trace.thread_name(wait.thread)
            for wait, key in zip(self._joined.waits, self._keys, strict=True)
            if key.cause == "unknown"
        }
        for key in [
            key
            for key, group in groups.items()
            if key.cause not in _MAY_NOT_BLOCK
            and not group.waits
            and group.owners & self._joined.marked
            and key.thread not in unknown
        ]:
            del groups[key]

    # Times

    def _measure(self, recording: Recording, groups: dict[_Key, _Group]) -> None:
        recorded_ms = play(recording).step_ms
        if self._step_ms is None:
            self._step_ms = recorded_ms
            self._notes.append("No plain steps were timed: times are those under the profiler.")
        else:
            self._cost_us = event_cost(
                recording, step_ms=self._step_ms, slower_ms=self._slower_ms()
            )
        played = self._played = play(recording, event_cost_us=self._cost_us, keep_spans=True)
        self._note_difference(recorded_ms, played.step_ms)
        self._charge(played, recording, groups)
        for place in played.wait_us:
            group = groups[self._keys[place]]
            group.charged_ms = group.charged_ms or 0.0
        self._note_unknown()
        self._waited(played, recording, groups)
        self._gains(played, recording, groups)

    def _slower_ms(self) -> float | None:
        """Return by how much the host works longer in a step under the profiler; None if not known."""
        trace, without = self._trace, self._watched.host_ms
        if trace is None or without is None:
            return None
        steps = [(end - start) / 1000.0 for start, end in pairwise(trace.steps)]
        # A call that might have held waits, and did not, is none.
        owners = set(self._joined.owners)
        seen = [
            one
            for place, one in enumerate(self._watched.timed)
            if one.end_ns is not None or place in owners
        ]
        under = host_ms(steps, seen)
        return None if under is None else max(0.0, under - without)

    def _note_difference(self, recorded_ms: float, played_ms: float) -> None:
        plain = self._step_ms or recorded_ms
        if recorded_ms > 1.25 * plain:
            self._notes.append(
                f"A step takes {recorded_ms:.1f} ms under the profiler and {plain:.1f} ms without: "
                f"{self._cost_us:.1f} us of host time were taken off for each event that it recorded."
            )
        if abs(played_ms - plain) > 0.1 * plain:
            self._notes.append(
                f"The recorded steps played again take {played_ms:.1f} ms each, the plain ones "
                f"{plain:.1f} ms: exposed times and gains are rough."
            )

    def _note_unknown(self) -> None:
        known = sum(key.site is not None for key in self._keys)
        if known < len(self._keys):
            self._notes.append(
                f"{known} of {len(self._keys)} blocking calls of the recorded steps have a line."
            )

    def _charge(self, played: Played, recording: Recording, groups: dict[_Key, _Group]) -> None:
        steps = recording.num_steps
        inside = [
            (max(played.begin_us, one.start_us), min(played.end_us, one.end_us))
            for one in played.device
        ]
        self._busy_ms = busy_us(inside) / steps / 1000.0
        gaps = charge_gaps(
            played.device, played.host, begin_us=played.begin_us, end_us=played.end_us
        )
        # Plain steps have no more idle time than they are longer than the device's work.
        idle_ms = sum(gap.us for gap in gaps) / steps / 1000.0
        most_ms = max(0.0, (self._step_ms or played.step_ms) - self._busy_ms)
        scale = min(1.0, most_ms / idle_ms) if idle_ms else 1.0
        for gap in gaps:
            for charge in gap.charges:
                ms = charge.us * scale / steps / 1000.0
                self._causes[charge.cause] += ms
                key = self._key_of_charge(charge.cause, charge.owner)
                if key is not None:
                    groups[key].charged_ms = (groups[key].charged_ms or 0.0) + ms

    def _key_of_charge(self, cause: str, owner: int | None) -> _Key | None:
        if cause == "wait" and owner is not None:
            return self._keys[owner]
        if cause in _NAMED_KINDS and owner is not None:
            return _key_of(self._watched.timed[owner])
        if cause == "allocation":
            return _OF_ALLOCATIONS
        return None

    def _waited(self, played: Played, recording: Recording, groups: dict[_Key, _Group]) -> None:
        """Take counts and durations of waits from the trace; of rare ones, from the longer window."""
        for key, group in groups.items():
            if key == _OF_ALLOCATIONS:
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
                    if recording.begin_us <= self._joined.waits[place].start_us < recording.end_us
                ]
                us = sum(
                    self._joined.waits[place].end_us - self._joined.waits[place].start_us
                    for place in of_round
                )
            if not of_round:
                continue
            marked = len(group.owners & self._joined.marked)
            if group.per_step and marked:
                calls = len(group.waits) / marked
                group.waited_ms = us / len(of_round) / 1000.0 * calls * group.per_step
                group.per_step *= calls
            else:
                group.per_step = len(of_round) / recording.num_steps
                group.waited_ms = us / 1000.0 / recording.num_steps

    def _count_allocations(self, group: _Group, recording: Recording) -> None:
        assert self._trace is not None
        took = [
            call.end_us - call.start_us
            for call in find_allocations(self._trace)
            if recording.begin_us <= call.start_us < recording.end_us
        ]
        group.per_step = len(took) / recording.num_steps
        group.waited_ms = sum(took) / recording.num_steps / 1000.0

    def _gains(self, played: Played, recording: Recording, groups: dict[_Key, _Group]) -> None:
        chain = {act.wait for act in recording.acts if act.wait is not None}

        def gain(waits: set[int], named: set[int]) -> float:
            without = play(
                recording,
                event_cost_us=self._cost_us,
                without_waits=waits,
                without_named=named,
            )
            return max(0.0, played.step_ms - without.step_ms)

        all_waits_ms = gain({wait for wait in chain if self._is_wait(wait)}, set())
        scale = self._scale_of_gains(played.step_ms, all_waits_ms)
        self._all_waits_ms = scale * all_waits_ms
        most = sorted(groups.items(), key=lambda one: -(one[1].charged_ms or 0.0))
        most.sort(key=lambda one: -(one[1].waited_ms or 0.0) - (one[1].charged_ms or 0.0))
        for key, group in most[:_MAX_PLAYED]:
            if key.cause in _NAMED_KINDS and not group.waits:
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
        plain_ms = self._step_ms or played_ms
        if not all_waits_ms or plain_ms < (1.0 - _RAN_AHEAD) * without_ms:
            return 1.0
        return min(1.0, max(0.0, plain_ms - without_ms) / all_waits_ms)

    def _is_wait(self, place: int) -> bool:
        return self._joined.waits[place].kind not in ("free", "host allocation")

    # Findings

    def _findings(self, groups: dict[_Key, _Group]) -> list[tuple[Finding, _Group]]:
        found = [
            (self._finding(key, group), group)
            for key, group in groups.items()
            # What came in the first recorded step alone, the profiler may have caused itself.
            if group.per_step > 0.0 and (key.cause not in HOST_COSTS or self._is_worth(key, group))
        ]
        found += [(finding, _Group()) for finding in self._of_the_whole_step()]
        return sorted(
            found,
            key=lambda one: (
                -1.0 if one[0].exposed_ms is None else one[0].exposed_ms,
                one[0].waited_ms or 0.0,
                one[0].per_step,
            ),
            reverse=True,
        )

    def _is_worth(self, key: _Key, group: _Group) -> bool:
        step = self._step_ms
        if key.cause in ("shapes", "launch") or step is None:
            return True
        if group.exposed_ms is None:
            return (group.waited_ms or 0.0) >= _LEAST_UNKNOWN_SHARE * step
        return group.exposed_ms >= _LEAST_COST_SHARE * step

    def _finding(self, key: _Key, group: _Group) -> Finding:
        exposed = group.exposed_ms
        return Finding(
            code=CODE_OF[key.cause],
            site=key.site,
            thread=key.thread,
            call=key.call,
            per_step=group.per_step,
            waited_ms=group.waited_ms,
            exposed_ms=exposed,
            gain_ms=None if group.gain_ms is None else min(group.gain_ms, exposed or 0.0),
            share=None if exposed is None or not self._step_ms else exposed / self._step_ms,
            cause=cause_text(key.cause, key.call, group.detail),
            mend=mend_text(key.cause, key.call, group.detail, key.site.source if key.site else ""),
            forward=key.forward,
        )

    def _of_the_whole_step(self) -> list[Finding]:
        """Return findings that no line is to blame for."""
        found = []
        launch_ms, step = self._causes["launch"], self._step_ms
        if step and self._recording is not None and launch_ms >= _LEAST_LAUNCH_SHARE * step:
            num = self._num_launches() or 0.0
            detail = (
                f"{num:,.0f} launches a step; between them the device is idle {launch_ms:.1f} of "
                f"{step:.1f} ms, which is what capturing the step can gain at most"
            )
            if any(map(self._is_wait, range(len(self._joined.waits)))):
                detail += ", once its waits are out"
            found.append(
                self._whole("launch", "launches", num, exposed_ms=launch_ms, detail=detail)
            )
        if self._watched.recompilations and self._watched.num_shapes_steps:
            per_step = self._watched.recompilations / self._watched.num_shapes_steps
            detail = f"torch.compile compiled {self._watched.recompilations} times"
            found.append(self._whole("shapes", "torch.compile", per_step, detail=detail))
        if self._watched.has_device and self._shapes_never_end():
            shapes, batches = self._watched.num_batch_shapes, self._watched.num_batches
            per_step = shapes / max(1, self._watched.num_seen_steps)
            detail = f"{batches} batches of loaders had {shapes} different shapes"
            found.append(self._whole("shapes", "DataLoader", per_step, detail=detail))
        return found

    def _shapes_never_end(self) -> bool:
        """Whether there are batches enough to say so, and hardly two of them are alike."""
        watched = self._watched
        return (
            watched.num_batches >= _LEAST_BATCHES
            and watched.num_batch_shapes > _LEAST_NEW_SHAPES * watched.num_batches
        )

    def _whole(
        self,
        cause: Cause,
        call: str,
        per_step: float,
        *,
        detail: str,
        exposed_ms: float | None = None,
    ) -> Finding:
        return Finding(
            code=CODE_OF[cause],
            site=None,
            call=call,
            per_step=per_step,
            exposed_ms=exposed_ms,
            share=exposed_ms / self._step_ms if exposed_ms and self._step_ms else None,
            cause=cause_text(cause, call, detail),
            mend=mend_text(cause, call, detail),
        )

    # The step

    def _num_launches(self) -> float | None:
        if self._recording is None:
            return None
        return sum(bool(act.works) for act in self._recording.acts) / self._recording.num_steps

    def _step_times(self, groups: dict[_Key, _Group]) -> StepTimes | None:
        watched = self._watched
        wall = watched.step_ms or ((self._step_ms,) if self._step_ms is not None else ())
        if not wall:
            return None
        data_ms = sum(
            group.waited_ms or 0.0
            for key, group in groups.items()
            if key.cause == "loader" and key.thread == "main"
        )
        steps = StepTimes(num_steps=len(wall), wall_ms=Spread.of(wall), data_ms=data_ms)
        if self._recording is None or self._played is None or self._trace is None:
            return steps
        number = self._recording.num_steps
        wait_ms = sum(self._played.wait_us.values()) / number / 1000.0
        busy = self._busy_ms or 0.0
        step = self._step_ms or self._played.step_ms
        return StepTimes(
            num_steps=len(wall),
            wall_ms=steps.wall_ms,
            data_ms=data_ms,
            wait_ms=min(wait_ms, step),
            launch_ms=max(0.0, min(self._launch_ms(), step - wait_ms - data_ms)),
            busy_ms=min(busy, step),
            compute_ms=min(busy, self._compute_ms()),
            idle_ms=max(0.0, step - busy),
            num_launches=self._num_launches(),
        )

    def _inside(self, start: float, end: float) -> tuple[float, float]:
        assert self._recording is not None
        return max(start, self._recording.begin_us), min(end, self._recording.end_us)

    def _compute_ms(self) -> float:
        assert self._trace is not None
        assert self._recording is not None
        spans = [
            self._inside(work.start_us, work.end_us)
            for work in self._trace.works
            if not work.crosses
        ]
        return busy_us(spans) / self._recording.num_steps / 1000.0

    def _launch_ms(self) -> float:
        """Return the time a step that the host was in torch or the driver, its waits taken out."""
        trace, recording = self._trace, self._recording
        assert trace is not None
        assert recording is not None
        chain = {trace.main, *trace.autograd}
        spans = [
            self._inside(one.start_us, one.end_us) for one in trace.calls if one.thread in chain
        ]
        for thread, operations in trace.operations.items():
            if thread in chain:
                spans += [self._inside(one.start_us, one.end_us) for one in operations]
        waits = [
            self._inside(one.start_us, one.end_us)
            for one in self._joined.waits
            if one.thread in chain
        ]
        own = busy_us([*spans, *waits]) - busy_us(waits)
        events = sum(act.num_events for act in recording.acts)
        own -= min(0.9 * own, self._cost_us * events)
        return own / recording.num_steps / 1000.0

    def _figures(self, steps: StepTimes | None) -> Figures:
        return Figures(
            has_device=self._watched.has_device,
            step_ms=self._step_ms,
            busy_share=None if steps is None else steps.busy_share,
            idle_ms=dict(self._causes),
            all_waits_ms=self._all_waits_ms,
            num_launches=self._num_launches() or 0.0,
        )

    def _timeline(self, findings: Sequence[tuple[Finding, _Group]]) -> Timeline | None:
        if self._trace is None or self._recording is None:
            return None
        groups = [group for _, group in findings]
        codes = [finding.code for finding, _ in findings]
        finding_of_wait = {
            wait: number for number, group in enumerate(groups) for wait in group.waits
        }
        finding_of_owner = {
            owner: number for number, group in enumerate(groups) for owner in group.owners
        }
        return draw(
            self._trace,
            self._joined.waits,
            self._intervals(self._trace),
            begin_us=self._trace.steps[min(1, len(self._trace.steps) - 2)],
            end_us=self._trace.steps[-1],
            finding_of_wait=finding_of_wait,
            finding_of_owner=finding_of_owner,
            finding_of_launches=codes.index(CODE_OF["launch"])
            if CODE_OF["launch"] in codes
            else None,
        )


def _with_full_names(watched: Watched) -> Watched:
    """Return what was noted with one name for a call of a line.

    A wait that had begun before it was watched is known by torch's warning alone: as "item", where the
    others of its line are "Tensor.item".
    """
    full = {
        (one.site, one.call.rpartition(".")[2]): one.call
        for one in (*watched.seen, *watched.timed)
        if "." in one.call
    }

    def named(waits: Sequence[SeenWait]) -> tuple[SeenWait, ...]:
        return tuple(replace(one, call=full.get((one.site, one.call), one.call)) for one in waits)

    return replace(watched, seen=named(watched.seen), timed=named(watched.timed))


def _key_of(seen: SeenWait) -> _Key:
    return _Key(seen.cause, seen.call, seen.site, _NUMBER.sub("", seen.thread))


def _plain_step_ms(steps: Sequence[float]) -> float | None:
    """Return what a plain step takes: their mean, without a single one that took much longer.

    A median would leave out what happens every ten steps.
    """
    if not steps:
        return None
    usual = median(steps)
    long = [one for one in steps if one > 3.0 * usual]
    return mean(one for one in steps if len(long) != 1 or one not in long)


def _places_of_nodes(trace: Trace) -> dict[int, NodeKey]:
    """Return for each sequence number the node's name and its place among those of its step."""
    nodes = sorted(
        (
            (operation.start_us, operation)
            for operations in trace.operations.values()
            for operation in operations
            if operation.node and operation.sequence is not None
        ),
        key=lambda one: one[0],
    )
    found: dict[int, NodeKey] = {}
    for begin, end in zip(trace.steps, trace.steps[1:], strict=False):
        counts: Counter[str] = Counter()
        of_step = [node for start, node in nodes if begin <= start < end]
        for node in sorted(of_step, key=lambda one: one.sequence or 0):
            found[node.sequence or 0] = (node.node, counts[node.node])
            counts[node.node] += 1
    return found
