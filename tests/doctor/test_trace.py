"""A trace of the profiler is read into calls, work, marks and waits."""

from doctor.simulated_trace import COMPUTE, MAIN, OTHER, Machine, played
from gapless.doctor.trace.chrome_trace import (
    ALLOCATING,
    calls_named,
    find_waits,
    node_around,
    read_trace,
)


def traced(*, of):
    machine = Machine()
    machine.step()
    of(machine)
    machine.step()
    return read_trace(machine.events)


def copy(machine, name, *, num_bytes, wait=False):
    machine.launch(50.0, kind="gpu_memcpy", name=name, num_bytes=num_bytes)
    if wait:
        machine.wait()


def test_calls_work_and_steps_are_sorted_out():
    """Steps give the main thread; work has its stream."""
    trace = traced(of=lambda machine: machine.launch(100.0))

    assert (trace.main, len(trace.steps)) == (MAIN, 2)
    assert [call.name for call in trace.calls] == ["cudaLaunchKernel"]
    (work,) = trace.works
    assert (work.kind, work.stream, work.correlation) == ("kernel", COMPUTE, 1)


def test_a_copy_of_pageable_memory_and_the_wait_behind_it_are_one_wait():
    """As the corpus counts them."""
    trace = traced(
        of=lambda machine: copy(
            machine, "Memcpy DtoH (Device -> Pageable)", num_bytes=4, wait=True
        )
    )

    (wait,) = find_waits(trace)

    assert (wait.kind, wait.name, wait.copy) == ("stream", "cudaStreamSynchronize", 1)
    assert wait.start_us == trace.calls[0].start_us


def test_a_large_pageable_copy_to_the_device_waits_by_itself():
    """And a small one, or a pinned one, does not."""

    def program(machine):
        copy(machine, "Memcpy HtoD (Pageable -> Device)", num_bytes=1 << 20)
        copy(machine, "Memcpy HtoD (Pageable -> Device)", num_bytes=1 << 10)
        copy(machine, "Memcpy HtoD (Pinned -> Device)", num_bytes=1 << 20)

    (wait,) = find_waits(traced(of=program))

    assert (wait.kind, wait.correlation) == ("pageable", 1)


def test_the_drivers_call_inside_the_runtimes_is_not_counted_again():
    """One wait is one wait."""

    def program(machine):
        start = machine.now
        machine.wait("device")
        machine.events.append(
            machine.events[-1] | {"name": "cuCtxSynchronize", "ts": start + 1, "dur": 2}
        )

    assert [wait.name for wait in find_waits(traced(of=program))] == ["cudaDeviceSynchronize"]


def test_a_call_for_the_default_stream_of_a_thread_is_the_same_call():
    """Its name has an ending."""

    def program(machine):
        machine.wait("event")
        machine.events[-1]["name"] += "_ptsz"

    assert [wait.name for wait in find_waits(traced(of=program))] == ["cudaEventSynchronize"]


def test_allocations_are_host_time_and_no_waits():
    """The driver's calls that ask for memory of the device."""

    def program(machine):
        machine.launch(1.0)
        machine.events.append(machine.events[-2] | {"name": "cudaMalloc"})

    trace = traced(of=program)

    assert [call.name for call in calls_named(trace, ALLOCATING)] == ["cudaMalloc"]
    assert find_waits(trace) == ()


def test_the_device_that_works_most_is_the_one_that_is_told_of():
    """What others do is left out."""

    def program(machine):
        machine.launch(10.0)
        machine.events[-1]["args"]["device"] = 3
        machine.launch(500.0)

    trace = traced(of=program)

    assert [work.end_us - work.start_us for work in trace.works] == [500.0]


def test_threads_have_names_and_nodes_are_found_by_thread():
    """What another thread runs at the same time is not looked at."""

    def program(machine):
        node = "autograd::engine::evaluate_function: MulBackward0"
        machine.thread = OTHER
        with machine.operation(node, **{"Sequence number": 5}):
            machine.host(100.0)
        machine.thread = MAIN

    trace = traced(of=program)
    (node,) = trace.operations[OTHER]
    middle = (node.start_us + node.end_us) / 2

    assert node_around(trace, thread=OTHER, at_us=middle).sequence == 5
    assert node_around(trace, thread=MAIN, at_us=middle) is None
    assert [trace.thread_name(one) for one in (MAIN, OTHER, 5)] == ["main", "autograd", "thread 5"]


def test_an_empty_trace_has_nothing():
    """Of a script that did nothing while it was watched."""
    trace = read_trace([])

    assert (trace.works, trace.steps, trace.main, trace.clock_us) == ((), (), None, None)
    assert find_waits(trace) == ()


def test_the_profilers_time_begins_at_zero():
    """Whatever its clock says."""
    assert min(played(lambda machine: machine.launch(5.0)).steps) > 0
    assert traced(of=lambda machine: machine.launch(5.0)).steps[0] == 0
