"""A host and a device that play a loop and leave the trace that torch's profiler would leave.

Written apart from the doctor's own model: what a loop takes without one of its waits is measured by
playing it without that wait.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from gapless.doctor.seen import MARK, STEP_MARK


MAIN, AUTOGRAD, OTHER = 100, 101, 102
COMPUTE = 7


@dataclass
class Machine:
    """One process and one device; times in microseconds.

    Attributes:
        launch_us: that a call which queues work takes.
        latency_us: from the end of that call to the earliest start of the work.
        return_us: from the end of what is waited for to the end of the wait.
        event_cost_us: of the profiler, for each event that it records.
        queue_length: pieces of work that have not begun which the driver takes.
    """

    launch_us: float = 5.0
    latency_us: float = 3.0
    return_us: float = 10.0
    event_cost_us: float = 0.0
    queue_length: int = 1024
    now: float = 1000.0
    thread: int = MAIN
    events: list[dict] = field(default_factory=list)
    free: dict[int, float] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._correlations = itertools.count(1)

    def _event(self, cat, name, start, end, **args):
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 1,
                "tid": args.pop("tid", self.thread),
                "ts": start,
                "dur": end - start,
                "args": args,
            }
        )
        if cat in ("cpu_op", "cuda_runtime"):
            self.now += self.event_cost_us

    def step(self):
        """Begin a step; called once more behind the last one."""
        self.steps.append(self.now)
        self._event("cpu_op", STEP_MARK, self.now, self.now + 1)

    def host(self, us):
        """Let the host work on its own."""
        self.now += us

    def mark(self, place):
        """Note that a wait which was seen begins."""
        self._event("cpu_op", f"{MARK}{place}", self.now, self.now + 1)

    def operation(self, name, **args):
        """Return the span of an operation of torch, to be ended with `end_operation`."""
        return name, self.now, args

    def end_operation(self, operation):
        """End it."""
        name, start, args = operation
        self._event("cpu_op", name, start, self.now, **args)

    def launch(self, us, *, stream=COMPUTE, kind="kernel", name="kernel", call=None, num_bytes=4):
        """Queue work of so long; return when it will be done."""
        correlation = next(self._correlations)
        start = self.now
        if len(self.starts) >= self.queue_length:
            self.now = max(self.now, self.starts[-self.queue_length])
        self.now += self.launch_us
        begins = max(self.now + self.latency_us, self.free.get(stream, 0.0))
        self.starts.append(begins)
        self.free[stream] = begins + us
        call = call or {"kernel": "cudaLaunchKernel"}.get(kind, "cudaMemcpyAsync")
        self._event("cuda_runtime", call, start, self.now, correlation=correlation)
        self._event(
            kind,
            name,
            begins,
            begins + us,
            tid=stream,
            stream=stream,
            device=0,
            correlation=correlation,
            bytes=num_bytes,
        )
        return begins + us

    def wait_event(self, stream, done):
        """Let a stream wait for a time that `launch` returned."""
        self.free[stream] = max(self.free.get(stream, 0.0), done)

    def wait(self, kind="stream", *, done=None, stream=COMPUTE):
        """Let the host wait for a stream, for the device, or for a time that `launch` returned."""
        name = {
            "stream": "cudaStreamSynchronize",
            "device": "cudaDeviceSynchronize",
            "event": "cudaEventSynchronize",
        }[kind]
        start, correlation = self.now, next(self._correlations)
        if done is None:
            done = (
                max(self.free.values(), default=0.0)
                if kind == "device"
                else self.free.get(stream, 0)
            )
        self.now = max(self.now, done) + self.return_us
        self._event("cuda_runtime", name, start, self.now, correlation=correlation)

    def item(self, place=None):
        """Read one value: a copy to the host, and a wait for it."""
        if place is not None:
            self.mark(place)
        self.launch(2.0, kind="gpu_memcpy", name="Memcpy DtoH (Device -> Pinned)")
        self.wait()

    def pageable(self, us, *, num_bytes=1 << 22):
        """Copy pageable memory to the device; the call returns when the copy is done."""
        correlation, start = next(self._correlations), self.now
        begins = max(self.now + self.latency_us, self.free.get(COMPUTE, 0.0))
        self.free[COMPUTE] = begins + us
        self.starts.append(begins)
        self.now = begins + us + self.return_us
        self._event("cuda_runtime", "cudaMemcpyAsync", start, self.now, correlation=correlation)
        self._event(
            "gpu_memcpy",
            "Memcpy HtoD (Pageable -> Device)",
            begins,
            begins + us,
            tid=COMPUTE,
            stream=COMPUTE,
            device=0,
            correlation=correlation,
            bytes=num_bytes,
        )


def played(program, *, num_steps=11, **machine):
    """Play a program, a function of the machine, once a step; return the machine."""
    made = Machine(**machine)
    for _ in range(num_steps):
        made.step()
        program(made)
    made.step()
    return made


def step_ms(program, *, num_steps=60, **machine):
    """Return what a step of a program takes in the long run, in ms."""
    made = Machine(**machine)
    ends = []
    for _ in range(2):
        for _ in range(num_steps):
            program(made)
        ends.append(max(made.now, *made.free.values()))
    return (ends[1] - ends[0]) / num_steps / 1000
