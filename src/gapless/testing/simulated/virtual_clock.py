"""The virtual clock: how long work takes, as data, and what ran when.

Durations do not change what is computed, only when. So the same simulation also says whether the
device was idle and whether copies ran beside kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Mapping


Lane = Literal["host", "h2d", "compute", "d2h"]

# Name of the span in which the host waits for the device.
WAIT = "wait"

LANES: tuple[Lane, ...] = ("host", "h2d", "compute", "d2h")


@dataclass(frozen=True, slots=True)
class Span:
    """Work that took time.

    Attributes:
        lane: the host, or one of the device's engines.
        name: of the work.
        start_ms: virtual time of its start.
        end_ms: virtual time of its end.
        stream: name of the stream; None for the host.
    """

    lane: Lane
    name: str
    start_ms: float
    end_ms: float
    stream: str | None = None

    def within(self, since: float, until: float) -> float:
        """Return how much of it lies within a time interval, in milliseconds."""
        return max(0.0, min(self.end_ms, until) - max(self.start_ms, since))


@dataclass
class Timeline:
    """Keep the virtual time of the host and of the device's engines.

    There is one engine for each direction of copies, as on a GPU, and one for kernels, as if each
    kernel filled the device.

    Args:
        durations: milliseconds by name of the work: `h2d`, `d2h`, `kernel`, `launch` (host time
            of every operation), or the name of a region. Other work takes no time.

    Attributes:
        spans: what took time, in order of launch.
        now_ms: the host's virtual time.
    """

    durations: Mapping[str, float]
    spans: list[Span] = field(default_factory=list)
    now_ms: float = 0.0
    _free_at: dict[Lane, float] = field(default_factory=lambda: dict.fromkeys(LANES, 0.0))

    def run(self, lane: Lane, name: str, *, after_ms: float, stream: str) -> float:
        """Place work on an engine, not before `after_ms`; return the time of its end."""
        took = self.durations.get(name, 0.0)
        start = max(self.now_ms, after_ms)
        if not took:
            return start
        start = max(start, self._free_at[lane])
        self._free_at[lane] = start + took
        self.spans.append(Span(lane, name, start, start + took, stream))
        return start + took

    def spend(self, name: str) -> None:
        """Let the host work for the duration of `name`."""
        self.pass_until(self.now_ms + self.durations.get(name, 0.0), name)

    def pass_until(self, time_ms: float, name: str) -> None:
        """Let the host work or wait until a time; do nothing if that is past."""
        if time_ms > self.now_ms:
            self.spans.append(Span("host", name, self.now_ms, time_ms))
            self.now_ms = time_ms

    def busy_ms(self, lane: Lane, *, since: float = 0.0, until: float = float("inf")) -> float:
        """Return how long a lane was busy within a time interval; a waiting host is not busy."""
        return sum(
            span.within(since, until)
            for span in self.spans
            if span.lane == lane and span.name != WAIT
        )

    def waited_ms(self, *, since: float = 0.0, until: float = float("inf")) -> float:
        """Return how long the host waited for the device within a time interval."""
        return sum(span.within(since, until) for span in self.spans if span.name == WAIT)

    def overlap_ms(self, first: Lane, second: Lane) -> float:
        """Return for how long two lanes were busy at the same time."""
        return sum(
            self.busy_ms(second, since=span.start_ms, until=span.end_ms)
            for span in self.spans
            if span.lane == first
        )

    def draw(self, *, ms_per_column: float = 1.0, until: float | None = None) -> str:
        """Return the lanes as lines of text: letters for work, dots for idle time.

        Work is drawn with the first letter of its name, in alternating case so that neighbours differ.
        """
        end = max((span.end_ms for span in self.spans), default=0.0)
        columns = round((end if until is None else min(end, until)) / ms_per_column)
        lines = []
        for lane in LANES:
            line = ["."] * columns
            for number, span in enumerate(span for span in self.spans if span.lane == lane):
                letter = span.name[0].upper() if number % 2 else span.name[0].lower()
                first = round(span.start_ms / ms_per_column)
                last = min(columns, round(span.end_ms / ms_per_column))
                line[first:last] = letter * max(0, last - first)
            lines.append(f"{lane:8}{''.join(line)}")
        return "\n".join(lines)
