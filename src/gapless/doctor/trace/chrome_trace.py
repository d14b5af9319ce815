"""What a trace of torch's profiler says: the host's calls, the device's work, autograd's nodes, our marks.

Source: the Chrome trace that `torch.profiler.profile.export_chrome_trace` writes. Its categories
`cuda_runtime`, `cuda_driver`, `kernel`, `gpu_memcpy`, `gpu_memset` and `cuda_sync` come from CUPTI,
`cpu_op` and `user_annotation` from torch. A call and the work that it queues have one correlation.
No torch here: traces are made up in tests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from gapless.device.waiting_operations import MAX_INLINE_COPY_BYTES
from gapless.doctor.seen_waits import MARK, MARK_AFTER, MARK_WITHIN, STEP_MARK


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WaitKind = Literal["stream", "event", "device", "copy", "pageable", "free", "host allocation"]

# Calls in which the host stands still until the device, or the driver's memory, is ready.
_BLOCKING: dict[str, WaitKind] = {
    "cudaStreamSynchronize": "stream",
    "cuStreamSynchronize": "stream",
    "cudaEventSynchronize": "event",
    "cuEventSynchronize": "event",
    "cudaDeviceSynchronize": "device",
    "cuCtxSynchronize": "device",
    "cudaMemcpy": "copy",
    "cudaMemcpy2D": "copy",
    "cudaFree": "free",
    "cuMemRelease": "free",
    "cuMemUnmap": "free",
    "cudaHostAlloc": "host allocation",
    "cudaMallocHost": "host allocation",
    "cudaHostRegister": "host allocation",
    "cudaFreeHost": "host allocation",
}
_STAGED = ("cudaMemcpyAsync", "cudaMemcpy2DAsync", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")
# Take long, but do not wait for the device's work.
ALLOCATING = ("cudaMalloc", "cudaMallocManaged", "cuMemCreate", "cuMemMap", "cuMemSetAccess")
WAITS_OF_STREAMS = ("cudaStreamWaitEvent", "cuStreamWaitEvent")
RECORDING = (
    "cudaEventRecord",
    "cudaEventRecordWithFlags",
    "cuEventRecord",
    "cuEventRecordWithFlags",
)
POLLING = ("cudaEventQuery", "cudaStreamQuery", "cuEventQuery", "cuStreamQuery")

_WORK_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill"}
_NODE = "autograd::engine::evaluate_function: "
_OPTIMIZER = "Optimizer.step#"
_MARKS = (MARK, MARK_AFTER, MARK_WITHIN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of the runtime or the driver; times in microseconds since the trace began."""

    name: str
    thread: int
    start_us: float
    end_us: float
    correlation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One piece of work of the device.

    Attributes:
        kind: "kernel", "copy" or "fill".
        crosses: whether it is a copy from or to the host.
        is_pageable: whether the host's side of it is not page-locked.
        to_host: whether it is a copy to the host.
    """

    name: str
    kind: str
    stream: int
    start_us: float
    end_us: float
    correlation: int
    num_bytes: int = 0
    crosses: bool = False
    is_pageable: bool = False
    to_host: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation of torch on a thread; `node` is the name where it is a node of a backward pass."""

    name: str
    thread: int
    start_us: float
    end_us: float
    sequence: int | None = None
    node: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A wait that was seen; `place` is its place in the list of what was seen.

    Attributes:
        is_after: whether the wait was over when the mark was made; else it was to begin.
        is_within: whether it is no wait, but a call that may hold some.
    """

    thread: int
    start_us: float
    place: int
    is_after: bool = False
    is_within: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Synchronisation:
    """What the driver says of a wait; -1 where it does not know.

    Attributes:
        stream: that the host waits for; or that waits, for an event.
        on_stream: on which the event was recorded that is waited for.
    """

    stream: int
    on_stream: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """One time that the host stood still: a blocking call, with the staged copy before it if there is one.

    Attributes:
        name: of the call.
        kind: what it waits for.
        correlation: of the call.
        copy: correlation of the copy that it waits for; None where that is not known.
    """

    name: str
    kind: WaitKind
    thread: int
    start_us: float
    end_us: float
    correlation: int
    copy: int | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A trace in order of time; times in microseconds since it began.

    Attributes:
        calls: of the runtime and the driver.
        works: of the device that did most.
        operations: of torch, by thread, in order of their start.
        marks: of waits that were seen.
        steps: beginnings of steps; the last one is the end of the last step.
        main: thread of the steps; None without any.
        synchronisations: by the correlation of the call.
        clock_us: to add to `time.perf_counter_ns() / 1000` to get the trace's time; None if unknown.
    """

    calls: tuple[Call, ...] = ()
    works: tuple[Work, ...] = ()
    operations: Mapping[int, Sequence[Operation]] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    steps: tuple[float, ...] = ()
    main: int | None = None
    synchronisations: Mapping[int, Synchronisation] = field(default_factory=dict)
    clock_us: float | None = None

    @cached_property
    def autograd(self) -> frozenset[int]:
        """Threads other than the main one that ran nodes of a backward pass."""
        return frozenset(
            thread
            for thread, operations in self.operations.items()
            if thread != self.main and any(operation.node for operation in operations)
        )

    def thread_name(self, thread: int) -> str:
        """Return "main", "autograd" or "thread N"."""
        if thread == self.main:
            return "main"
        return "autograd" if thread in self.autograd else f"thread {thread}"

    def to_us(self, perf_counter_ns: int) -> float | None:
        """Return a time of `time.perf_counter_ns` in the trace's time; None where that is unknown."""
        return None if self.clock_us is None else perf_counter_ns / 1000.0 + self.clock_us


def read_trace(events: Iterable[Mapping[str, Any]], *, step_ns: Sequence[int] = ()) -> Trace:
    """Sort the events of a Chrome trace.

    Args:
        events: in any order, with `ts` and `dur` in microseconds.
        step_ns: `time.perf_counter_ns()` at each mark of a step, which joins the two clocks.
    """
    whole = [event for event in events if event.get("ph") == "X"]
    origin = min((float(event["ts"]) for event in whole), default=0.0)
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for event in whole:
        by_kind[event.get("cat", "")].append(event)
    host = [*by_kind["cpu_op"], *by_kind["user_annotation"]]
    steps, main = _steps(host, origin)
    return Trace(
        calls=_calls([*by_kind["cuda_runtime"], *by_kind["cuda_driver"]], origin),
        works=_works(by_kind, origin),
        operations=_operations(host, origin),
        marks=_marks(host, origin),
        steps=steps,
        main=main,
        synchronisations=_synchronisations(by_kind["cuda_sync"]),
        clock_us=_clock(steps, step_ns),
    )


def _span(event: Mapping[str, Any], origin: float) -> tuple[float, float]:
    start = float(event["ts"]) - origin
    return start, start + max(0.0, float(event.get("dur", 0.0)))


def _int(value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]  # any value of a JSON file
    except (TypeError, ValueError):
        return -1


def _steps(host: list[Mapping[str, Any]], origin: float) -> tuple[tuple[float, ...], int | None]:
    marks = [event for event in host if event["name"] == STEP_MARK]
    if not marks:
        return (), None
    steps = tuple(sorted(float(event["ts"]) - origin for event in marks))
    return steps, Counter(_int(event["tid"]) for event in marks).most_common(1)[0][0]


def _marks(host: list[Mapping[str, Any]], origin: float) -> tuple[Mark, ...]:
    found = []
    for event in host:
        prefix = next((one for one in _MARKS if event["name"].startswith(one)), None)
        if prefix is not None:
            found.append(
                Mark(
                    thread=_int(event["tid"]),
                    start_us=float(event["ts"]) - origin,
                    place=_int(event["name"].removeprefix(prefix)),
                    is_after=prefix == MARK_AFTER,
                    is_within=prefix == MARK_WITHIN,
                )
            )
    return tuple(sorted(found, key=lambda mark: mark.start_us))


def _calls(events: list[Mapping[str, Any]], origin: float) -> tuple[Call, ...]:
    found = []
    for event in events:
        start, end = _span(event, origin)
        found.append(
            Call(
                # Built with a default stream per thread, a program calls `cudaMemcpy_ptds`: its waits would be missed.
                name=event["name"].removesuffix("_ptsz").removesuffix("_ptds"),
                thread=_int(event["tid"]),
                start_us=start,
                end_us=end,
                correlation=_int(event.get("args", {}).get("correlation")),
            )
        )
    return tuple(sorted(found, key=lambda call: (call.start_us, -call.end_us)))


def _works(by_kind: Mapping[str, list[Mapping[str, Any]]], origin: float) -> tuple[Work, ...]:
    """Return the work of the device that worked most."""
    by_device: dict[int, list[Work]] = defaultdict(list)
    for category, kind in _WORK_KINDS.items():
        for event in by_kind.get(category, ()):
            args = event.get("args", {})
            by_device[_int(args.get("device", 0))].append(_work(event, kind=kind, origin=origin))
    most = max(
        by_device.values(),
        key=lambda its: sum(one.end_us - one.start_us for one in its),
        default=[],
    )
    return tuple(sorted(most, key=lambda work: (work.start_us, work.end_us)))


def _work(event: Mapping[str, Any], *, kind: str, origin: float) -> Work:
    args, name = event.get("args", {}), event["name"]
    start, end = _span(event, origin)
    is_copy = kind == "copy"
    return Work(
        name=name,
        kind=kind,
        stream=_int(args.get("stream", event.get("tid"))),
        start_us=start,
        end_us=end,
        correlation=_int(args.get("correlation")),
        num_bytes=max(0, _int(args.get("bytes", 0))),
        crosses=is_copy and ("HtoD" in name or "DtoH" in name),
        is_pageable=is_copy and "Pageable" in name,
        to_host=is_copy and "DtoH" in name,
    )


def _operations(host: list[Mapping[str, Any]], origin: float) -> dict[int, tuple[Operation, ...]]:
    found: dict[int, list[Operation]] = defaultdict(list)
    for event in host:
        name, args = event["name"], event.get("args", {})
        if name == STEP_MARK or name.startswith(_MARKS):
            continue
        start, end = _span(event, origin)
        sequence = args.get("Sequence number")
        found[_int(event["tid"])].append(
            Operation(
                name=name,
                thread=_int(event["tid"]),
                start_us=start,
                end_us=end,
                sequence=None if sequence is None else _int(sequence),
                node=name.removeprefix(_NODE) if name.startswith(_NODE) else "",
            )
        )
    return {
        thread: tuple(sorted(operations, key=lambda one: (one.start_us, -one.end_us)))
        for thread, operations in found.items()
    }


def _synchronisations(events: list[Mapping[str, Any]]) -> dict[int, Synchronisation]:
    found = {}
    for event in events:
        args = event.get("args", {})
        found[_int(args.get("correlation"))] = Synchronisation(
            stream=_known(args.get("stream")),
            on_stream=_known(args.get("wait_on_stream")),
        )
    found.pop(-1, None)
    return found


def _known(value: object) -> int:
    number = _int(value)
    return number if 0 <= number < 2**31 else -1  # unsigned -1 is how CUPTI says "none"


def _clock(steps: Sequence[float], step_ns: Sequence[int]) -> float | None:
    if not steps or len(steps) != len(step_ns):
        return None
    offsets = sorted(us - ns / 1000.0 for us, ns in zip(steps, step_ns, strict=True))
    return offsets[len(offsets) // 2]


def find_waits(trace: Trace) -> tuple[Wait, ...]:
    """Return every time that the host stood still, in order of time.

    A copy from or to pageable memory and a wait for its stream right behind it are one wait.
    """
    copies = {work.correlation: work for work in trace.works if work.kind == "copy"}
    by_thread: dict[int, list[Call]] = defaultdict(list)
    for call in trace.calls:
        by_thread[call.thread].append(call)
    found = [wait for calls in by_thread.values() for wait in _waits_of_thread(calls, copies)]
    return tuple(sorted(found, key=lambda wait: wait.start_us))


def _waits_of_thread(calls: Sequence[Call], copies: Mapping[int, Work]) -> list[Wait]:
    found: list[Wait] = []
    staged: Call | None = None  # right before the call that is looked at
    reached = float("-inf")
    for call in calls:
        if call.end_us <= reached and call.name in _BLOCKING:
            continue  # the driver's call inside the runtime's: one wait would count twice
        reached = max(reached, call.end_us)
        kind = _BLOCKING.get(call.name)
        if staged is not None and kind != "stream" and _blocks(copies[staged.correlation]):
            found.append(_wait(staged, kind="pageable", copy=staged.correlation))
        if kind is not None:
            first = staged if staged is not None and kind == "stream" else None
            own = call.correlation if kind == "copy" else None
            found.append(
                _wait(call, kind=kind, first=first, copy=first.correlation if first else own)
            )
        staged = call if _is_staged(call, copies) else None
    if staged is not None and _blocks(copies[staged.correlation]):
        found.append(_wait(staged, kind="pageable", copy=staged.correlation))
    return found


def _wait(call: Call, *, kind: WaitKind, copy: int | None, first: Call | None = None) -> Wait:
    return Wait(
        name=call.name,
        kind=kind,
        thread=call.thread,
        start_us=call.start_us if first is None else first.start_us,
        end_us=call.end_us,
        correlation=call.correlation,
        copy=copy,
    )


def _is_staged(call: Call, copies: Mapping[int, Work]) -> bool:
    copy = copies.get(call.correlation)
    return call.name in _STAGED and copy is not None and copy.is_pageable


def _blocks(copy: Work) -> bool:
    return copy.to_host or copy.num_bytes > MAX_INLINE_COPY_BYTES


def calls_named(trace: Trace, names: tuple[str, ...]) -> tuple[Call, ...]:
    """Return the calls of these names, in order of time."""
    return tuple(call for call in trace.calls if call.name in names)


def node_around(trace: Trace, *, thread: int, at_us: float) -> Operation | None:
    """Return the innermost node of a backward pass that ran on a thread at a time; None if none did."""
    return next((one for one in _around(trace, thread, at_us) if one.node), None)


def optimizer_around(trace: Trace, *, thread: int, at_us: float) -> Operation | None:
    """Return the step of an optimizer that ran on a thread at a time; None if none did."""
    return next(
        (one for one in _around(trace, thread, at_us) if one.name.startswith(_OPTIMIZER)), None
    )


def operation_around(trace: Trace, *, thread: int, at_us: float) -> Operation | None:
    """Return the innermost operation of torch that ran on a thread at a time; None if none did."""
    return next(iter(_around(trace, thread, at_us)), None)


def _around(trace: Trace, thread: int, at_us: float) -> Iterable[Operation]:
    operations = trace.operations.get(thread, ())
    place = bisect_right(operations, at_us, key=lambda one: one.start_us)
    # So many at most: an enclosing operation has few others between, and a search of all would be quadratic.
    for operation in reversed(operations[max(0, place - 4000) : place]):
        if operation.end_us >= at_us:
            yield operation
