"""Streams as queues of tasks, events as marks in them, and when tasks run.

The schedulers:

asap     a task runs as soon as the virtual clock allows; without durations, at once. As on a GPU
         that is never behind the host.
lazy     a task runs only when the host waits for it. As on a GPU that is far behind.
random   streams advance by a few tasks at random moments; the seed reproduces them.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.testing.simulated.races import Clock


Scheduler = Literal["asap", "lazy", "random"]

# A host that polls an event this often has nothing else to do, so even the lazy device moves on.
_POLLS_BEFORE_LAZY_MOVES = 100


@dataclass(slots=True)
class Mark:
    """A point in a stream: the end of its first `number` tasks.

    Attributes:
        stream: the stream.
        number: number of tasks before the point.
        clock: vector clock: what precedes the point, for work that waits for it.
        time_ms: virtual time at which those tasks are done.
        capture: the graph whose capture made the point; None for real work.
    """

    stream: SimulatedStream
    number: int
    clock: Clock
    time_ms: float
    capture: object = None

    @property
    def is_done(self) -> bool:
        """Whether the tasks before it have run."""
        return self.stream.num_done >= self.number


@dataclass(slots=True)
class Task:
    """Work in a stream's queue.

    Attributes:
        run: does the work; None for a wait.
        end_ms: virtual time at which it is done.
        needs: a mark that must be done first.
        site: file:line that queued it.
    """

    run: Callable[[], None] | None
    end_ms: float
    needs: Mark | None = None
    site: str = ""


@dataclass(eq=False, slots=True)
class SimulatedStream:
    """A queue of tasks that run in order."""

    name: str
    queue: deque[Task] = field(default_factory=deque)
    num_queued: int = 0
    num_done: int = 0
    time_ms: float = 0.0

    @property
    def next_is_ready(self) -> bool:
        """Whether the first task in the queue may run."""
        return bool(self.queue) and (self.queue[0].needs is None or self.queue[0].needs.is_done)


@dataclass(eq=False, slots=True)
class SimulatedEvent:
    """The last recorded mark; None before the first record, as in CUDA."""

    mark: Mark | None = None
    num_polls: int = 0


class Queues:
    """Run the tasks of all streams as the scheduler says.

    Args:
        scheduler: `asap`, `lazy` or `random`.
        seed: of the random scheduler.

    Attributes:
        streams: all of them.
        failure: what queued work raised, until it is raised to the host.

    Raises:
        ValueError: the scheduler is unknown.
    """

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        if scheduler not in get_args(Scheduler):
            raise ValueError(
                f"unknown scheduler {scheduler!r}; the schedulers are "
                f"{', '.join(get_args(Scheduler))}"
            )
        self._scheduler = scheduler
        self._random = random.Random(seed)
        self.streams: list[SimulatedStream] = []
        self.failure: Exception | None = None

    def create(self, name: str) -> SimulatedStream:
        """Return a new stream."""
        self.streams.append(SimulatedStream(name))
        return self.streams[-1]

    def put(self, stream: SimulatedStream, task: Task) -> None:
        """Append a task to a stream."""
        stream.queue.append(task)
        stream.num_queued += 1

    def advance(self, now_ms: float) -> None:
        """Run what the scheduler runs by now."""
        if self._scheduler == "asap":
            self._run_until_time(now_ms)
        elif self._scheduler == "random":
            self._run_at_random()

    def _run_at_random(self) -> None:
        """Advance each stream by none, one or three tasks, starting with a random one."""
        first = self._random.randrange(len(self.streams))
        for stream in self.streams[first:] + self.streams[:first]:
            for _ in range((0, 0, 1, 3)[self._random.getrandbits(2)]):
                if stream.next_is_ready:
                    self._run_next(stream)

    def poll(self, event: SimulatedEvent, now_ms: float) -> bool:
        """Return whether an event is done; queries let time pass."""
        if event.mark is None:
            return True
        self.advance(now_ms)
        if not event.mark.is_done:
            event.num_polls += 1
            if event.num_polls >= _POLLS_BEFORE_LAZY_MOVES:
                self.run_until(event.mark)
        return event.mark.is_done

    def run_until(self, mark: Mark) -> None:
        """Run what a mark needs, and nothing else."""
        stream = mark.stream
        while stream.num_done < mark.number:
            needs = stream.queue[0].needs
            if needs is not None:
                self.run_until(needs)
            self._run_next(stream)

    def run_all(self) -> None:
        """Run everything that is queued."""
        for stream in self.streams:
            self.run_until(Mark(stream, stream.num_queued, {}, 0.0))

    def _run_until_time(self, now_ms: float) -> None:
        while True:
            ready = [stream for stream in self.streams if stream.next_is_ready]
            stream = min(ready, key=lambda found: found.queue[0].end_ms, default=None)
            if stream is None or stream.queue[0].end_ms > now_ms:
                return
            self._run_next(stream)

    def _run_next(self, stream: SimulatedStream) -> None:
        task = stream.queue.popleft()
        try:
            if task.run is not None and self.failure is None:
                task.run()
        except Exception as failure:
            failure.add_note(f"in work that was queued on {stream.name} at {task.site}")
            self.failure = failure
        finally:
            stream.num_done += 1
