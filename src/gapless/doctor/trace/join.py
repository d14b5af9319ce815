"""Join what was seen, which has lines, with what the trace says, which has times. No torch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.doctor.trace.chrome_trace import (
    POLLING,
    Wait,
    calls_named,
    find_waits,
    optimizer_around,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.seen_waits import SeenWait
    from gapless.doctor.trace.chrome_trace import Call, Mark, Trace

# A mark costs a few microseconds itself, and the clocks of marks and of what was seen differ a little.
_SLACK_US = 15.0

# Marks that may lie between the beginning of a wait and a blocking call in it.
_MAX_INSIDE = 16


@dataclass(frozen=True, kw_only=True)
class Joined:
    """The waits of a trace and what they belong to.

    Attributes:
        waits: in order of time.
        owners: for each of them the place of what was seen; None where no line is known.
        marked: places of what was seen that have a mark in the trace.
    """

    waits: tuple[Wait, ...]
    owners: tuple[int | None, ...]
    marked: frozenset[int]


def join(trace: Trace, seen: Sequence[SeenWait]) -> Joined:
    """Return the waits of a trace's steps, each with the place of what was seen that it belongs to.

    A blocking call belongs to the last wait that was seen to begin on its thread and was not over yet;
    where only the beginning was seen, to that if it is the first behind it.
    """
    marks = [mark for mark in trace.marks if 0 <= mark.place < len(seen)]
    # Up to the last step: behind it the profiler itself waits for the device, and no line is to blame.
    begin, end = (trace.steps[0], trace.steps[-1]) if trace.steps else (0.0, float("inf"))
    waits = sorted(
        (
            wait
            for wait in (*find_waits(trace), *_spins(trace, marks, seen))
            if begin <= wait.start_us < end
        ),
        key=lambda wait: wait.start_us,
    )
    owners: list[int | None] = [None] * len(waits)
    by_thread: dict[int, list[int]] = defaultdict(list)
    for place, wait in enumerate(waits):
        by_thread[wait.thread].append(place)
    for thread, places in by_thread.items():
        own = [mark for mark in marks if mark.thread == thread]
        before = [mark for mark in own if not (mark.is_after or mark.is_within)]
        _join_before(waits, places, before, seen, owners)
        _join_after(waits, places, [mark for mark in own if mark.is_after], owners)
        within = [mark for mark in own if mark.is_within]
        _join_within(trace, waits, places, within, owners)
    return Joined(
        waits=tuple(waits),
        owners=tuple(owners),
        marked=frozenset(mark.place for mark in marks),
    )


def _join_before(
    waits: Sequence[Wait],
    places: Sequence[int],
    marks: Sequence[Mark],
    seen: Sequence[SeenWait],
    owners: list[int | None],
) -> None:
    starts = [mark.start_us for mark in marks]
    before = float("-inf")  # where the wait before this one began
    for place in places:
        wait = waits[place]
        last = bisect_right(starts, wait.start_us)
        for mark in reversed(marks[max(0, last - _MAX_INSIDE) : last]):
            noted = seen[mark.place]
            if noted.end_ns is None:
                belongs = mark is marks[last - 1] and before < mark.start_us
            else:
                took_us = (noted.end_ns - noted.start_ns) / 1000.0
                belongs = wait.start_us <= mark.start_us + took_us + _SLACK_US
            if belongs:
                owners[place] = mark.place
                break
        before = wait.start_us


def _join_after(
    waits: Sequence[Wait],
    places: Sequence[int],
    marks: Sequence[Mark],
    owners: list[int | None],
) -> None:
    starts = [waits[place].start_us for place in places]
    for mark in marks:
        for place in reversed(places[: bisect_left(starts, mark.start_us)]):
            if waits[place].kind == "stream" and owners[place] is None:
                owners[place] = mark.place
                break


def _join_within(
    trace: Trace,
    waits: Sequence[Wait],
    places: Sequence[int],
    marks: Sequence[Mark],
    owners: list[int | None],
) -> None:
    """Give waits without an owner to the optimizer step in which they happened: it may sort tensors, which waits."""
    starts = [mark.start_us for mark in marks]
    for place in places:
        wait = waits[place]
        if owners[place] is not None or wait.kind != "stream":
            continue
        step = optimizer_around(trace, thread=wait.thread, at_us=wait.start_us)
        last = bisect_right(starts, wait.start_us) - 1
        if step is not None and last >= 0 and starts[last] >= step.start_us:
            owners[place] = marks[last].place


def _spins(trace: Trace, marks: Sequence[Mark], seen: Sequence[SeenWait]) -> list[Wait]:
    """Return a wait for each loop that asked whether work was done."""
    by_thread: dict[int, list[Call]] = defaultdict(list)
    for call in calls_named(trace, POLLING):
        by_thread[call.thread].append(call)
    found = []
    for mark in marks:
        noted = seen[mark.place]
        if noted.cause != "query" or mark.is_after or mark.is_within:
            continue
        polls = by_thread.get(mark.thread, [])
        first = bisect_left(polls, mark.start_us, key=lambda call: call.start_us)
        until = mark.start_us + _SLACK_US
        if noted.end_ns is not None:
            until += (noted.end_ns - noted.start_ns) / 1000.0
        last = bisect_right(polls, until, key=lambda call: call.start_us)
        if first < last:
            found.append(
                Wait(
                    name=polls[first].name,
                    kind="event",
                    thread=mark.thread,
                    start_us=polls[first].start_us,
                    end_us=polls[last - 1].end_us,
                    correlation=polls[first].correlation,
                )
            )
    return found
