"""The simulation itself: work is queued, waited for, recorded and timed here."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gapless.device.simulated.memory import Memory, byte_ranges
from gapless.device.simulated.queues import Mark, Queues, SimulatedEvent, SimulatedStream, Task
from gapless.device.simulated.races import HOST, RaceChecker
from gapless.device.simulated.timeline import WAIT, Timeline
from gapless.device.sites import call_site


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gapless.device.simulated.memory import Block
    from gapless.device.simulated.queues import Scheduler
    from gapless.device.simulated.races import Kind
    from gapless.device.simulated.timeline import Lane


@dataclass(frozen=True, slots=True)
class Touch:
    """An access that a piece of work makes: which bytes of which block."""

    kind: Kind
    block: Block
    ranges: list[tuple[int, int]]

    @classmethod
    def of(cls, kind: Kind, tensor: torch.Tensor, block: Block) -> Touch:
        """Return the access to all elements of a tensor."""
        return cls(kind, block, byte_ranges(tensor))


@dataclass(slots=True)
class Work:
    """Work for a stream.

    Attributes:
        what: the operation's name in reports.
        run: does it, later.
        touches: what it reads and writes.
        lane: the engine that it runs on.
        draw: takes this work's random numbers from the generator, when it is launched.
    """

    what: str
    run: Callable[[], None]
    touches: list[Touch]
    lane: Lane = "compute"
    draw: Callable[[], None] | None = None


@dataclass(eq=False)
class SimulatedGraph:
    """Work that was captured, to be launched again as one piece.

    Attributes:
        works: in order of launch.
    """

    simulation: Simulation
    works: list[Work] = field(default_factory=list)

    def replay(self) -> None:
        """Launch all captured work on the current stream.

        Sync: Does not block the host.
        """
        for work in self.works:
            if work.draw is not None:
                work.draw()

        def run() -> None:
            for work in self.works:
                work.run()

        touches = [touch for work in self.works for touch in work.touches]
        self.simulation.launch(Work("graph replay", run, touches))


class Simulation:
    """Streams, memory, clocks and checker of one simulated device.

    Args:
        scheduler: when queued work runs: `asap`, `lazy` or `random`.
        seed: of the random scheduler.
        durations: milliseconds by name of the work; see `Timeline`.

    Attributes:
        current: the stream that work goes to.
        waits: host waits so far as (what, site), hidden ones included.
        on_wait: called with the same before each of them.
    """

    def __init__(
        self, *, scheduler: Scheduler, seed: int, durations: Mapping[str, float] | None
    ) -> None:
        self.memory = Memory()
        self.queues = Queues(scheduler, seed)
        self.checker = RaceChecker()
        self.timeline = Timeline(durations or {})
        self._num_streams = 0
        self.current = self.create_stream("default stream")
        self.waits: list[tuple[str, str]] = []
        self.on_wait: list[Callable[[str, str], None]] = []
        self.is_quiet = False
        self.are_waits_forbidden = False
        self._graph: SimulatedGraph | None = None
        self._region: str | None = None

    def create_stream(self, name: str | None = None) -> SimulatedStream:
        """Return a new stream."""
        self._num_streams += 1
        stream = self.queues.create(name or f"stream {self._num_streams - 2}")
        self.checker.add_stream(stream.name)
        return stream

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Let operations in the body run on the host at once, as the simulation's own."""
        if self.is_quiet:
            yield
            return
        self.is_quiet = True
        try:
            # Work that runs late must not see the modes of whoever happens to be running.
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                yield
        finally:
            self.is_quiet = False

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return device memory of the current stream, or of the graph in capture."""
        pool = self.current if self._graph is None else self._graph
        return self.memory.allocate(num_bytes, pool=pool, release=self._release)

    def _release(self, block: Block) -> Callable[[], bool]:
        """Return whether a block that nobody holds may be used again, as `record_stream` asks."""
        marks = [self.mark(stream) for stream in block.used_by]
        block.used_by.clear()

        def is_free() -> bool:
            if not all(mark.is_done for mark in marks):
                return False
            for mark in marks:
                self.checker.order(HOST, mark.clock)
            return True

        return is_free

    def launch(self, work: Work) -> None:
        """Queue work on the current stream."""
        stream, site = self.current, call_site()
        self.checker.launch(stream.name)
        self._record(stream.name, work.touches, work.what, site)
        if self._graph is not None:
            self._graph.works.append(work)
            return
        if work.draw is not None:
            work.draw()
        self.timeline.spend("launch")
        stream.time_ms = self.timeline.run(
            work.lane, self._duration_name(work), after_ms=stream.time_ms, stream=stream.name
        )
        self.queues.put(stream, Task(work.run, stream.time_ms, site=site))
        self.advance()

    def delay(self, stream: SimulatedStream, ms: float) -> None:
        """Keep a stream busy for so many virtual milliseconds."""
        stream.time_ms = max(stream.time_ms, self.timeline.now_ms) + ms
        self.queues.put(stream, Task(None, stream.time_ms, site=call_site()))
        self.advance()

    def advance(self) -> None:
        """Run what the scheduler would run by now."""
        with self.quiet():
            self.queues.advance(self.timeline.now_ms)

    def _duration_name(self, work: Work) -> str:
        if work.lane != "compute":
            return work.lane
        if self._region is None:
            return "kernel"
        # The first operation stands for its whole region.
        name, self._region = self._region, ""
        return name

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Let all kernels of the body together take the time of `name`."""
        before, self._region = self._region, name
        try:
            yield
        finally:
            self._region = before

    def host_access(self, kind: Kind, tensor: torch.Tensor, block: Block, what: str) -> None:
        """Record that the host itself reads or writes a tensor."""
        self._record(HOST, [Touch.of(kind, tensor, block)], what, call_site())

    def _record(self, agent: str, touches: list[Touch], what: str, site: str) -> None:
        for touch in touches:
            block = touch.block
            for span in touch.ranges:
                self.checker.access(
                    agent, touch.kind, block.history, span, buffer=block.name, what=what, site=site
                )

    def mark(self, stream: SimulatedStream) -> Mark:
        """Return the point behind everything queued on a stream so far."""
        time = max(stream.time_ms, self.timeline.now_ms)
        return Mark(stream, stream.num_queued, self.checker.snapshot(stream.name), time)

    def let_wait(self, stream: SimulatedStream, mark: Mark | None) -> None:
        """Hold a stream back until a mark; nothing if the event was never recorded."""
        if mark is None:
            return
        self.checker.order(stream.name, mark.clock)
        if self._graph is not None:
            return
        stream.time_ms = max(stream.time_ms, mark.time_ms)
        self.queues.put(stream, Task(None, stream.time_ms, needs=mark, site=call_site()))
        self.advance()

    def query(self, event: SimulatedEvent) -> bool:
        """Return whether an event is done; if it is, the host is ordered behind it."""
        with self.quiet():
            is_done = self.queues.poll(event, self.timeline.now_ms)
        if is_done and event.mark is not None:
            self.checker.order(HOST, event.mark.clock)
        return is_done

    def wait(self, mark: Mark | None, what: str) -> None:
        """Let the host wait for a mark.

        Raises:
            RuntimeError: waits are forbidden here, or a graph is being captured.
            Exception: whatever queued work raised, as a GPU tells at the next wait.
        """
        site = call_site()
        if self._graph is not None:
            raise RuntimeError(f"{what} at {site} waits for the device inside a capture")
        if self.are_waits_forbidden:
            raise RuntimeError(f"{what} at {site} makes the host wait for the device")
        self.waits.append((what, site))
        for observer in self.on_wait:
            observer(what, site)
        if mark is None:
            return
        self.timeline.pass_until(mark.time_ms, WAIT)
        with self.quiet():
            self.queues.run_until(mark)
        self.checker.order(HOST, mark.clock)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what queued work raised, once."""
        failure, self.queues.failure = self.queues.failure, None
        if failure is not None:
            raise failure

    def capture(self, work: Callable[[], None]) -> SimulatedGraph:
        """Return the work that a function queues, without doing it.

        Raises:
            RuntimeError: a capture is running, or the function makes the host wait.
        """
        if self._graph is not None:
            raise RuntimeError("cannot capture inside a capture")
        self._graph = graph = SimulatedGraph(self)
        try:
            work()
        finally:
            self._graph = None
        return graph
