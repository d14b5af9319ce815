"""The engine of the simulation: it launches work, waits for it, records and times it.

`dispatch` and `host_reads` call it for every torch operation, `simulated_device` for every method of
the device. It asks `queues` when work runs, `races` whether accesses are ordered, `virtual_clock`
how long work takes, and `allocator` for memory.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.capture_edges import capture_edges, check_may_cut
from gapless.device.torch_private import DisableTorchDispatch, DisableTorchFunction
from gapless.device.user_line import call_site
from gapless.device.waits import declared_reason
from gapless.testing.simulated.allocator import Memory, spans_of
from gapless.testing.simulated.history import History
from gapless.testing.simulated.queues import Mark, Queues, SimulatedEvent, SimulatedStream, Task
from gapless.testing.simulated.races import HOST, RaceChecker
from gapless.testing.simulated.virtual_clock import WAIT, Timeline


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gapless.device.base import Cut
    from gapless.testing.simulated.allocator import Block
    from gapless.testing.simulated.history import Kind, Span
    from gapless.testing.simulated.queues import Scheduler
    from gapless.testing.simulated.virtual_clock import Lane


@dataclass(frozen=True, slots=True)
class Touch:
    """An access that work makes: which bytes of which block, counted as in its history."""

    kind: Kind
    block: Block
    spans: list[Span]

    @classmethod
    def of(cls, kind: Kind, tensor: torch.Tensor, block: Block) -> Touch:
        """Return the access to all elements of a tensor."""
        return cls(kind, block, spans_of(tensor, block.start))


@dataclass(slots=True)
class Work:
    """Work for a stream.

    Attributes:
        what: the operation's name in reports.
        run: does it, later; takes what `draw` returned.
        touches: what it reads and writes.
        lane: the device's engine that it runs on.
        draw: called at the launch, takes this work's random numbers from the generator; returns
            what `run` needs to find them again.
        needs_grad: the caller's grad mode; without it some kernels omit results.
    """

    what: str
    run: Callable[[Any], None]
    touches: list[Touch]
    lane: Lane = "compute"
    draw: Callable[[], Any] | None = None
    needs_grad: bool = field(default_factory=torch.is_grad_enabled)

    def task(self) -> Callable[[], None]:
        """Take the random numbers; return the function that a stream runs later."""
        state = self.draw() if self.draw is not None else None

        def run() -> None:
            # Kernels write to any tensor; tensors of inference mode can only be written in it. Modes
            # of the code that runs by now must not see this work.
            with (
                torch.inference_mode(),
                torch.set_grad_enabled(self.needs_grad),
                DisableTorchFunction(),
                DisableTorchDispatch(),
            ):
                self.run(state)

        return run


@dataclass(eq=False)
class Segment:
    """Captured work that is launched as one piece.

    Attributes:
        works: in order of launch.
        checker: finds races within the captured work, which has not run yet.
        histories: of that checker, by the history of real accesses.
        last: the end of the last replay.
        pool: memory pool of the graph; graphs may share one.
    """

    simulation: Simulation
    pool: object
    works: list[Work] = field(default_factory=list)
    checker: RaceChecker = field(default_factory=RaceChecker)
    histories: dict[History, History] = field(default_factory=dict)
    last: Mark | None = None

    def replay(self) -> None:
        """Launch all captured work on the current stream."""
        simulation = self.simulation
        # Replays of one graph share their memory, so the driver runs them in order.
        simulation.let_wait(simulation.current, self.last)
        touches = [touch for work in self.works for touch in work.touches]
        simulation.launch(Work("graph replay", _run_all, touches, draw=self._tasks))
        self.last = simulation.mark(simulation.current)

    def _tasks(self) -> list[Callable[[], None]]:
        return [work.task() for work in self.works]


@dataclass(eq=False)
class SimulatedGraph:
    """Captured work, in one segment or several with calls between them.

    Attributes:
        pool: memory pool of the graph; graphs may share one.
        parts: segments and calls, in order.
    """

    pool: object
    parts: list[Segment | Callable[[], object]] = field(default_factory=list)

    def replay(self) -> None:
        """Launch the segments on the current stream, with the calls between them.

        Sync: Does not block the host, unless a call does.
        """
        for part in self.parts:
            if not isinstance(part, Segment):
                part()
            elif part.works:
                part.replay()

    def replay_segment(self, number: int) -> None:
        """Launch one segment on the current stream.

        Sync: Does not block the host.
        """
        segment = [part for part in self.parts if isinstance(part, Segment)][number]
        if segment.works:
            segment.replay()


def _stream_of(block: Block) -> object:
    """Return the stream that a block was allocated on, in or outside of a capture."""
    return block.stream[1] if isinstance(block.stream, tuple) else block.stream


def _run_all(tasks: list[Callable[[], None]]) -> None:
    for task in tasks:
        task()


class Simulation:
    """Streams, memory, clocks and checker of one simulated device.

    Args:
        scheduler: when queued work runs: `asap`, `lazy` or `random`.
        seed: of the random scheduler.
        durations: milliseconds by name of the work; see `Timeline`.
        pageable_limit_bytes: a copy of more pageable memory to the device makes the host wait.

    Attributes:
        current: the stream that receives work.
        waits: host waits so far as (what, site), including hidden ones.
        on_wait: observers, called with the same pair before each wait.
        is_quiet: operations run on the host at once, as the simulation's own.
        are_waits_forbidden: an undeclared host wait raises.
        calling: the arguments of the torch function that runs; empty outside of them.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        seed: int,
        durations: Mapping[str, float] | None,
        pageable_limit_bytes: int,
    ) -> None:
        self.memory = Memory(self._release, self._reuse)
        self.queues = Queues(scheduler, seed)
        self.checker = RaceChecker()
        self.timeline = Timeline(durations or {})
        self.pageable_limit_bytes = pageable_limit_bytes
        self._num_streams = 0
        self._segment: Segment | None = None
        self.current = self._default_stream = self.create_stream("default stream")
        self.waits: list[tuple[str, str]] = []
        self.on_wait: list[Callable[[str, str], None]] = []
        self.is_quiet = False
        self.are_waits_forbidden = False
        self.calling: tuple[Any, ...] = ()
        self._region: str | None = None

    @property
    def is_capturing(self) -> bool:
        """Whether work is captured now."""
        return self._segment is not None

    @property
    def _clocks(self) -> RaceChecker:
        """The checker for what is queued now; a capture has its own, since its work does not run."""
        return self.checker if self._segment is None else self._segment.checker

    def create_stream(self, name: str | None = None) -> SimulatedStream:
        """Return a new stream."""
        self._num_streams += 1
        stream = self.queues.create(self._unused(name or f"stream {self._num_streams - 2}"))
        self.checker.add_stream(stream.name)
        return stream

    def _unused(self, name: str) -> str:
        """Return a name that no other stream has; the checker identifies streams by name."""
        return name if not self.checker.knows(name) else f"{name} ({self._num_streams})"

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Let operations of the body run on the host at once, as the simulation's own."""
        if self.is_quiet:
            yield
            return
        self.is_quiet = True
        try:
            # Work that runs late must not see the modes of the code that runs by now.
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                yield
        finally:
            self.is_quiet = False

    def find(self, tensor: torch.Tensor) -> Block | None:
        """Return the block that a tensor lies in, None for memory of the host's own."""
        with self.quiet():
            return self.memory.find(tensor)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return device memory of the current stream, or of the graph being captured."""
        if self._segment is None:
            return self.memory.allocate(num_bytes, stream=self.current)
        # As torch's pools, which keep the memory of each stream apart.
        return self.memory.allocate(num_bytes, stream=(self._segment.pool, self.current))

    def record_stream(self, tensor: torch.Tensor, stream: SimulatedStream) -> None:
        """Keep a tensor's memory from being reused before `stream` is done with it."""
        block = self.find(tensor)
        if block is not None and stream is not _stream_of(block):
            block.used_by.add(stream)

    def _release(self, block: Block) -> dict[SimulatedStream, Mark]:
        """Return the ends of the work that uses a block which is freed (see `record_stream`)."""
        # Marks of work that really runs, even during a capture.
        marks = {
            stream: Mark(
                stream, stream.num_queued, self.checker.snapshot(stream.name), stream.time_ms
            )
            for stream in block.used_by
        }
        block.used_by.clear()
        return marks

    def _reuse(self, marks: dict[SimulatedStream, Mark]) -> None:
        """Order the host after work whose end its allocator has seen."""
        for mark in marks.values():
            self.checker.order(HOST, mark.clock)

    def launch(self, work: Work) -> None:
        """Queue work on the current stream."""
        stream, site = self.current, call_site()
        self._clocks.launch(stream.name)
        self._record(stream.name, work.touches, work.what, site)
        if self._segment is not None:
            self._segment.works.append(work)
            return
        task = work.task()
        self.timeline.spend("launch")
        stream.time_ms = self.timeline.run(
            work.lane, self._duration_name(work), after_ms=stream.time_ms, stream=stream.name
        )
        self.queues.put(stream, Task(task, stream.time_ms, site=site))
        self.advance()

    def delay(self, stream: SimulatedStream, ms: float) -> None:
        """Keep a stream busy for `ms` virtual milliseconds."""
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
        # The first operation takes the time of its whole region.
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
            history = block.history
            if self._segment is not None:
                history = self._segment.histories.setdefault(history, History())
            for span in touch.spans:
                self._clocks.access(
                    agent, touch.kind, history, span, buffer=block.name, what=what, site=site
                )

    def mark(self, stream: SimulatedStream) -> Mark:
        """Return the point after everything queued on a stream so far."""
        time = max(stream.time_ms, self.timeline.now_ms)
        clock = self._clocks.snapshot(stream.name)
        return Mark(stream, stream.num_queued, clock, time, capture=self._segment)

    def _check_capture(self, mark: Mark) -> None:
        if mark.capture is not self._segment:
            here, there = (
                ("inside", "outside") if self._segment is not None else ("outside", "inside")
            )
            raise RuntimeError(
                f"the event used at {call_site()} was recorded {there} a capture, so it has no "
                f"meaning {here} of it"
            )

    def let_wait(self, stream: SimulatedStream, mark: Mark | None) -> None:
        """Let a stream wait for a mark; do nothing if the event was never recorded."""
        if mark is None:
            return
        self._check_capture(mark)
        self._clocks.order(stream.name, mark.clock)
        if self._segment is not None:
            return
        stream.time_ms = max(stream.time_ms, mark.time_ms)
        self.queues.put(stream, Task(None, stream.time_ms, needs=mark, site=call_site()))
        self.advance()

    def query(self, event: SimulatedEvent) -> bool:
        """Return whether an event is done; if so, the host is ordered after it."""
        if self._segment is not None:
            raise RuntimeError(f"query_event at {call_site()} queries the device inside a capture")
        if event.mark is not None:
            self._check_capture(event.mark)
        with self.quiet():
            is_done = self.queues.poll(event, self.timeline.now_ms)
        if is_done and event.mark is not None:
            self.checker.order(HOST, event.mark.clock)
        return is_done

    def wait(self, mark: Mark | None, what: str) -> None:
        """Let the host wait for a mark.

        Raises:
            RuntimeError: waits are forbidden here, or a graph is being captured.
            Exception: what queued work raised; as on a GPU, it surfaces at the next wait.
        """
        site = call_site()
        if self._segment is not None:
            raise RuntimeError(f"{what} at {site} waits for the device inside a capture")
        if self.are_waits_forbidden and declared_reason() is None:
            raise RuntimeError(f"{what} at {site} makes the host wait for the device")
        self.waits.append((what, site))
        for observer in self.on_wait:
            observer(what, site)
        if mark is None:
            return
        self._check_capture(mark)
        self.timeline.pass_until(mark.time_ms, WAIT)
        with self.quiet():
            self.queues.run_until(mark)
        self.checker.order(HOST, mark.clock)
        self.raise_failure()

    def run_alone(self, mark: Mark, what: str) -> None:
        """Run everything up to a mark at once, without ordering it with the host.

        Raises:
            RuntimeError: a graph is being captured.
            Exception: what queued work raised.
        """
        if self._segment is not None:
            raise RuntimeError(
                f"{what} at {call_site()} cannot be captured: its results depend on values"
            )
        self.queues.run_until(mark)
        self.raise_failure()

    def finish(self) -> None:
        """Run everything that is queued, without ordering it with the host."""
        with self.quiet():
            self.queues.run_all()

    def raise_failure(self) -> None:
        """Raise what queued work raised, but only once."""
        failure, self.queues.failure = self.queues.failure, None
        if failure is not None:
            raise failure

    def capture(
        self,
        work: Callable[[Cut], object],
        *,
        like: SimulatedGraph | None = None,
        keeps_casts: bool = False,
    ) -> SimulatedGraph:
        """Capture the work that a function queues, without running it.

        Raises:
            RuntimeError: a capture is running, the current stream is the default stream (which
                CUDA cannot capture), or the function makes the host wait.
        """
        if self._segment is not None:
            raise RuntimeError("cannot capture inside a capture")
        if self.current is self._default_stream:
            raise RuntimeError("cannot capture on the default stream")
        stream, graph = self.current, SimulatedGraph(object() if like is None else like.pool)

        def cut(call: Callable[[], object]) -> None:
            check_may_cut()
            graph.parts.append(call)
            self._begin_segment(graph)

        self._begin_segment(graph)
        try:
            with capture_edges(keeps_casts=keeps_casts):
                work(cut)
        finally:
            self._segment = None
            self.current = stream
        return graph

    def _begin_segment(self, graph: SimulatedGraph) -> None:
        self._segment = Segment(self, graph.pool)
        self._segment.checker.report = self.checker.report
        for stream in self.queues.streams:
            self._segment.checker.add_stream(stream.name)
        graph.parts.append(self._segment)
