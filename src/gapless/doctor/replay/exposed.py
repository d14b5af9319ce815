"""Idle time of the device, and why: each moment of it is charged to one cause.

The device is busy while any stream of it has work. For each gap the next work and the call that
queued it are known. Work that could have begun before the gap did, as far as the host is concerned, was
held up by the device itself. Else the host was late: from the moment it last began to wait for the
device, that wait is the cause; before, what the host was at.

All times are microseconds of one clock. No torch: gaps are made up in tests.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What a host thread was at. Time in none of them is the host's own code.
HostKind = Literal["wait", "loader", "collective", "gc", "allocation", "launch"]
GapCause = Literal[
    "wait", "loader", "collective", "gc", "allocation", "launch", "host code", "device"
]

# The clocks of the host and the device differ by so much at most.
_SKEW_US = 5.0

# Host code between two launches of torch's own operations is a part of launching.
_LAUNCH_PAUSE_US = 200.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSpan:
    """Work of the device.

    Attributes:
        launch_us: when the host began to queue it.
        ready_us: when it could have begun, had the device been free for it: a launch takes some
            microseconds to get there.
    """

    start_us: float
    end_us: float
    launch_us: float
    ready_us: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpan:
    """What the host was at; `owner` says which wait it was, in the caller's own numbers."""

    kind: HostKind
    start_us: float
    end_us: float
    owner: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """A part of a gap and its cause."""

    cause: GapCause
    start_us: float
    end_us: float
    owner: int | None = None

    @property
    def us(self) -> float:
        """Its length."""
        return self.end_us - self.start_us


@dataclass(frozen=True, kw_only=True, slots=True)
class ChargedGap:
    """Time in which no stream of the device had work, with charges that add up to it."""

    start_us: float
    end_us: float
    charges: tuple[Charge, ...]

    @property
    def us(self) -> float:
        """Its length."""
        return self.end_us - self.start_us


def busy_us(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    return sum(end - start for start, end in union(spans))


def union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans in order of time, with those that touch or overlap made one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def charge_gaps(
    device: Sequence[DeviceSpan],
    host: Sequence[HostSpan],
    *,
    begin_us: float,
    end_us: float,
) -> list[ChargedGap]:
    """Return the gaps of a stretch of time, each moment charged to its cause.

    Args:
        device: of all streams.
        host: spans of the threads that queue work; waits do not overlap each other.
        begin_us: of the stretch. Idle time before the first work that begins in it counts.
        end_us: likewise; idle time behind the last work counts as the host's.
    """
    works = sorted(device, key=lambda work: work.start_us)
    starts = [work.start_us for work in works]
    waits = _Spans(span for span in host if span.kind == "wait")
    others = _Spans(span for span in host if span.kind != "wait")
    found = []
    for start, end in _gaps(works, begin_us, end_us):
        place = bisect_left(starts, end)
        following = works[place] if place < len(works) else None
        charges = _charges(start, end, following, waits=waits, others=others)
        found.append(ChargedGap(start_us=start, end_us=end, charges=tuple(charges)))
    return found


def _gaps(works: Sequence[DeviceSpan], begin: float, end: float) -> list[tuple[float, float]]:
    busy = union((max(begin, one.start_us), min(end, one.end_us)) for one in works)
    edges = [begin, *(edge for span in busy for edge in span), end]
    return [(edges[i], edges[i + 1]) for i in range(0, len(edges), 2) if edges[i + 1] > edges[i]]


def _charges(
    start: float,
    end: float,
    following: DeviceSpan | None,
    *,
    waits: _Spans,
    others: _Spans,
) -> list[Charge]:
    launch, ready = (end, end) if following is None else (following.launch_us, following.ready_us)
    if ready <= start:
        return [Charge(cause="device", start_us=start, end_us=end)]
    if ready < end - _SKEW_US:
        held_up = Charge(cause="device", start_us=ready, end_us=end)
        late = _host_charges(start, ready, launch, waits=waits, others=others)
        return [*late, held_up]
    return _host_charges(start, end, launch, waits=waits, others=others)


def _host_charges(
    start: float, end: float, launch: float, *, waits: _Spans, others: _Spans
) -> list[Charge]:
    near, known = waits.touching(start - _SKEW_US, end), others.touching(start, end)
    # Cut where anything begins or ends: between two cuts the cause is one.
    cuts = {start, end, launch if start < launch < end else start}
    for span in (*near, *known):
        cuts.update(edge for edge in (span.start_us, span.end_us) if start < edge < end)
    pieces = [_piece(a, b, launch, near, known) for a, b in pairwise(sorted(cuts))]
    return _merged(_with_code(pieces))


class _Spans:
    """Spans in order of their start, which may overlap, asked for those that touch a gap."""

    def __init__(self, spans: Iterable[HostSpan]) -> None:
        self._spans = sorted(spans, key=lambda span: span.start_us)
        self._starts = [span.start_us for span in self._spans]
        # Where all spans up to each one have ended.
        self._reached = list(accumulate((span.end_us for span in self._spans), max))

    def touching(self, start: float, end: float) -> list[HostSpan]:
        """Return the spans that overlap a gap or end where it begins, in order."""
        found = []
        for place in range(bisect_right(self._starts, end) - 1, -1, -1):
            if self._reached[place] < start:
                break
            if self._spans[place].end_us >= start:
                found.append(self._spans[place])
        return found[::-1]


def _piece(
    start: float,
    end: float,
    launch: float,
    waits: Sequence[HostSpan],
    others: Sequence[HostSpan],
) -> Charge:
    held = next((wait for wait in reversed(waits) if wait.start_us <= start), None)
    middle = (start + end) / 2
    if held is not None and middle <= held.end_us:
        return Charge(cause="wait", start_us=start, end_us=end, owner=held.owner)
    at = [span for span in others if span.start_us <= middle <= span.end_us]
    for kind in ("loader", "collective", "gc", "allocation"):
        span = next((span for span in at if span.kind == kind), None)
        if span is not None:
            return Charge(cause=span.kind, start_us=start, end_us=end, owner=span.owner)
    if held is not None:
        return Charge(cause="wait", start_us=start, end_us=end, owner=held.owner)
    is_launch = bool(at) or start >= launch
    return Charge(cause="launch" if is_launch else "host code", start_us=start, end_us=end)


def _with_code(pieces: list[Charge]) -> list[Charge]:
    """Count short pauses between launches as launching."""
    own = sum(piece.us for piece in pieces if piece.cause == "host code")
    if own > _LAUNCH_PAUSE_US:
        return pieces
    return [
        Charge(cause="launch", start_us=piece.start_us, end_us=piece.end_us)
        if piece.cause == "host code"
        else piece
        for piece in pieces
    ]


def _merged(pieces: list[Charge]) -> list[Charge]:
    merged: list[Charge] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last and (last.cause, last.owner) == (piece.cause, piece.owner):
            merged[-1] = replace(last, end_us=piece.end_us)
        else:
            merged.append(piece)
    return merged
