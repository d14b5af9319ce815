"""Find unordered memory accesses, by vector clocks of the host and of all streams.

Every agent (the host, and each stream) has a clock: for each agent, the tick up to which that
agent's work precedes whatever the owner of the clock does next. An access by agent `a` at tick `t`
precedes what an agent does now if that agent's clock holds at least `t` for `a`. Two accesses to the
same bytes, at least one of them a write, are a race if no clock orders them: then only timing decides
whether values are right.

Accesses are bytes of blocks, so overlapping views collide, and a block that is freed and reused
keeps its history.

Source: Mattern, "Virtual Time and Global States of Distributed Systems", 1988 (vector clocks);
Flanagan and Freund, "FastTrack", PLDI 2009 (last write and reads since, instead of a history).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.testing.simulated.history import Access


if TYPE_CHECKING:
    from gapless.testing.simulated.history import History, Kind, Span


Clock = dict[str, int]

HOST = "host"


def join(clock: Clock, other: Clock) -> None:
    """Order the owner of `clock` after everything that precedes `other`."""
    for agent, tick in other.items():
        if clock.get(agent, 0) < tick:
            clock[agent] = tick


@dataclass(slots=True)
class Race:
    """Two unordered accesses to the same bytes.

    Attributes:
        buffer: name of the memory.
        first: the access that was launched first.
        second: the access that may overtake it.
        count: number of pairs from the same two lines.
    """

    buffer: str
    first: Access
    second: Access
    count: int = 1

    @property
    def missing_edge(self) -> str:
        """The calls of the API that would order the two."""
        first, second = self.first, self.second
        recorded = f"record_event on {first.agent} after {first.site}"
        if second.agent == HOST:
            return f"{recorded}, and let the host see it done before {second.site}"
        return f"{recorded}, and wait_event on {second.agent} before {second.site}"

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return (
            f"race on {self.buffer}{times}: {self.first}; {self.second}; nothing orders the two. "
            f"Missing edge: {self.missing_edge}"
        )


@dataclass(slots=True)
class RaceReport:
    """What the checker recorded.

    Attributes:
        num_accesses: accesses recorded.
        races: unordered pairs, one for each pair of lines.
        serialised: operations that ran at once and alone, because the shapes of their results
            depend on values; they may hide races.
    """

    num_accesses: int = 0
    races: list[Race] = field(default_factory=list)
    serialised: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [str(race) for race in self.races]
        found = f"{len(self.races)} unordered" if self.races else "no unordered"
        noun = "pairs" if len(self.races) > 1 else "pair"
        lines.append(f"{self.num_accesses:,} accesses recorded, {found} {noun} among them")
        if self.serialised:
            names = ", ".join(f"{name} x{count}" for name, count in self.serialised.items())
            lines.append(f"ran alone, which may hide races: {names}")
        return "\n".join(lines)


class RaceChecker:
    """Keep the clocks of the host and of all streams, and check every access against them."""

    def __init__(self) -> None:
        self.report = RaceReport()
        self._clocks: dict[str, Clock] = {HOST: {HOST: 1}}
        self._known: dict[tuple[str, str, Kind, str, Kind], Race] = {}

    def add_stream(self, name: str) -> None:
        """Add a stream; each of its launches follows what the host did before."""
        self._clocks[name] = {name: 0}

    def knows(self, agent: str) -> bool:
        """Whether there is an agent of that name."""
        return agent in self._clocks

    def launch(self, stream: str) -> None:
        """Order the stream's next work after everything the host did or waited for."""
        clock = self._clocks[stream]
        # All that the host did: so its own tick never has to grow.
        join(clock, self._clocks[HOST])
        clock[stream] += 1

    def snapshot(self, stream: str) -> Clock:
        """Return the clock of an event that is recorded on the stream now."""
        self.launch(stream)
        return dict(self._clocks[stream])

    def order(self, agent: str, behind: Clock) -> None:
        """Order what an agent does from now on after a snapshot."""
        join(self._clocks[agent], behind)

    def access(
        self,
        agent: str,
        kind: Kind,
        history: History,
        span: Span,
        *,
        buffer: str,
        what: str,
        site: str,
    ) -> None:
        """Record an access to the bytes of a block, and check it against earlier ones."""
        self.report.num_accesses += 1
        clock = self._clocks[agent]
        now = Access(agent, clock[agent], kind, what, site)
        for earlier in history.record(now, span):
            self._check(earlier, now, clock, buffer)

    def _check(self, earlier: Access, now: Access, clock: Clock, buffer: str) -> None:
        if clock.get(earlier.agent, 0) >= earlier.tick:
            return
        key = (earlier.site, earlier.agent, earlier.kind, now.site, now.kind)
        if key in self._known:
            self._known[key].count += 1
            return
        self._known[key] = Race(buffer, earlier, now)
        self.report.races.append(self._known[key])
