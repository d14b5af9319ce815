"""A host and a device that play a loop and leave the trace that torch's profiler would leave.

Written apart from the doctor's own model: what a loop takes without one of its waits is measured by
playing it without that wait.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from gapless.doctor.diagnose.watched_run import WatchedRun, host_ms
from gapless.doctor.seen_waits import MARK, MARK_AFTER, MARK_WITHIN, STEP_MARK, SeenWait
from gapless.doctor.trace.chrome_trace import read_trace
from gapless.records.finding import Site


MAIN, AUTOGRAD, OTHER = 100, 101, 102
COMPUTE = 7
# `time.perf_counter_ns` and the trace's clock differ by this.
CLOCK_NS = 5_000_000_000


@dataclass
class Machine:
    """One process and one device; times in microseconds.

    Attributes:
        launch_us: that a call which queues work takes.
        latency_us: from the end of that call to the earliest start of the work.
        return_us: from the end of what is waited for to the end of the wait.
        event_cost_us: of the profiler, for each event that it records.
        queue_length: pieces of work that have not begun which the driver takes.
        skew_us: by which the device's clock runs behind the host's in the trace.
    """

    launch_us: float = 5.0
    latency_us: float = 3.0
    return_us: float = 10.0
    event_cost_us: float = 0.0
    queue_length: int = 1024
    skew_us: float = 0.0
    now: float = 1000.0
    thread: int = MAIN
    events: list[dict] = field(default_factory=list)
    free: dict[int, float] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    seen: list[SeenWait] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._correlations = itertools.count(1)

    def _event(self, cat, name, start, end, **args):
        if cat in ("kernel", "gpu_memcpy"):
            start, end = start - self.skew_us, end - self.skew_us
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

    @contextmanager
    def seeing(self, cause, call, line, *, thread="main", is_marked=True, is_after=False):
        """Note what happens in the body as a wait that was seen at a line."""
        place, started = len(self.seen), self.now
        noted = SeenWait(
            cause=cause,
            call=call,
            site=None if line is None else Site(path="train.py", line=line),
            thread=thread,
            step=len(self.steps) - 1,
            start_ns=round(started * 1000) + CLOCK_NS,
        )
        self.seen.append(noted)
        if is_marked and not is_after:
            self._event("cpu_op", f"{MARK}{place}", self.now, self.now + 1)
        yield
        if is_after:
            self._event("cpu_op", f"{MARK_AFTER}{place}", self.now, self.now + 1)
        else:
            self.seen[place] = replace(noted, end_ns=round(self.now * 1000) + CLOCK_NS)

    @contextmanager
    def optimizer_step(self, name, line):
        """Run the body in the step of an optimizer that was seen to be called at a line."""
        noted = SeenWait(
            cause="optimizer",
            call=f"{name}.step",
            site=Site(path="train.py", line=line),
            thread="main",
            step=len(self.steps) - 1,
            start_ns=round(self.now * 1000) + CLOCK_NS,
        )
        self.seen.append(noted)
        with self.operation(f"Optimizer.step#{name}.step"):
            self._event("cpu_op", f"{MARK_WITHIN}{len(self.seen) - 1}", self.now, self.now + 1)
            yield

    @contextmanager
    def operation(self, name, **args):
        """Run the body in an operation of torch."""
        start = self.now
        yield
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

    def graph(self, us, *, num_kernels):
        """Replay a graph of kernels one after the other, with one call."""
        correlation = next(self._correlations)
        start = self.now
        self.now += self.launch_us
        begins = max(self.now + self.latency_us, self.free.get(COMPUTE, 0.0))
        self.starts.append(begins)
        self._event("cuda_runtime", "cudaGraphLaunch", start, self.now, correlation=correlation)
        for _ in range(num_kernels):
            end = begins + us / num_kernels
            at = {"stream": COMPUTE, "device": 0, "correlation": correlation}
            self._event("kernel", "kernel", begins, end, tid=COMPUTE, **at)
            begins = end
        self.free[COMPUTE] = begins

    def wait_event(self, stream, done, *, on_stream=-1):
        """Let a stream wait for a time that `launch` returned; the driver may tell for which stream."""
        self.free[stream] = max(self.free.get(stream, 0.0), done)
        correlation, start = next(self._correlations), self.now
        self.now += 1.0
        self._event(
            "cuda_runtime", "cudaStreamWaitEvent", start, self.now, correlation=correlation
        )
        said = {"cuda_sync_kind": "Stream Wait Event", "stream": stream}
        said |= {"wait_on_stream": on_stream, "wait_on_cuda_event_record_corr_id": -1}
        self._event(
            "cuda_sync", "Stream Wait Event", start, start, correlation=correlation, **said
        )

    def record(self):
        """Record an event; return when all work of the stream before it will be done."""
        correlation, start = next(self._correlations), self.now
        self.now += 1.0
        self._event(
            "cuda_runtime", "cudaEventRecordWithFlags", start, self.now, correlation=correlation
        )
        return self.free.get(COMPUTE, 0.0)

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
        end = self.now
        self._event("cuda_runtime", name, start, end, correlation=correlation)
        if kind == "stream":
            said = {"cuda_sync_kind": "Stream Sync", "stream": stream, "correlation": correlation}
            self._event("cuda_sync", "Stream Sync", start, end, tid=stream, **said)

    def call(self, name, us):
        """Call something of the runtime that takes so long and queues nothing."""
        start = self.now
        self.now += us
        self._event("cuda_runtime", name, start, self.now, correlation=next(self._correlations))

    def item(self):
        """Read one value: a copy to the host, and a wait for it."""
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
    """Play a program, a function of the machine, once a step, under the profiler; return the machine."""
    made = Machine(**machine)
    for _ in range(num_steps):
        made.step()
        program(made)
    made.step()
    made.host(200.0)
    made.wait("device")  # the profiler's own
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


def watched(program, *, num_steps=11, event_cost_us=0.0, timed_return_us=10.0, **noted):
    """Return what is noted while a program runs: first plain, then with waits seen, then timed.

    `timed_return_us` is how late waits return under the profiler.
    """
    plain = Machine()
    for _ in range(21):
        plain.step()
        program(plain)
    plain.step()
    timed = played(
        program, num_steps=num_steps, event_cost_us=event_cost_us, return_us=timed_return_us
    )
    step_ns = [round(us * 1000) + CLOCK_NS for us in timed.steps]
    steps = [after - before for before, after in itertools.pairwise(plain.steps)]
    fields = {
        "has_device": True,
        "step_ms": tuple(us / 1000 for us in steps[1:]),
        "seen": tuple(plain.seen),
        "num_seen_steps": 21,
        "host_ms": host_ms([us / 1000 for us in steps], plain.seen),
        "timed": tuple(timed.seen),
        "trace": read_trace(timed.events, step_ns=step_ns),
    }
    return WatchedRun(**(fields | noted))
