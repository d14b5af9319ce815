"""Recorded steps played again predict what a loop takes without one of its waits."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from doctor.simulated_trace import MAIN, OTHER, played, step_ms
from gapless.doctor.replay import recording as recording_module
from gapless.doctor.replay.player import event_cost, play
from gapless.doctor.replay.recording import Act, HostInterval, Recording, record
from gapless.doctor.replay.work_queue import Queued
from gapless.doctor.trace.chrome_trace import find_waits, read_trace


def recorded(program, **machine):
    trace = read_trace(played(program, **machine).events)
    return record(trace, find_waits(trace))


def gain_of_all(recording):
    places = {act.wait for act in recording.acts if act.wait is not None}
    return play(recording).step_ms - play(recording, without_waits=places).step_ms


def planted(exposed, *, wait, waits=True):
    device_us = 10_000.0

    def program(machine):
        for _ in range(40):
            machine.launch(device_us / 40)
        if waits:
            wait(machine)
        machine.host(device_us * exposed / (1 - exposed))

    return program


WAITS = {
    "item": lambda machine: machine.item(),
    "stream": lambda machine: machine.wait(),
    "device": lambda machine: machine.wait("device"),
    "event": lambda machine: machine.wait("event"),
    "pageable copy": lambda machine: machine.pageable(100.0),
}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("exposed", [0.0, 0.1, 0.3, 0.6])
def test_the_gain_of_removing_a_planted_wait_is_what_removing_it_saves(exposed, name):
    """Within a tenth of it or 2 % of the step, whatever the wait is."""
    program = planted(exposed, wait=WAITS[name])
    saved = step_ms(program) - step_ms(planted(exposed, wait=WAITS[name], waits=False))

    gain = gain_of_all(recorded(program))

    assert gain == pytest.approx(saved, rel=0.1, abs=0.02 * step_ms(program))


def test_what_the_profiler_costs_the_host_does_not_count_as_gain():
    """Its cost is taken off until the recording takes as long as plain steps do."""

    def program(machine, waits=True):
        machine.launch(10_000.0)
        if waits:
            machine.item()
        for _ in range(400):
            with machine.operation("aten::view"):
                machine.host(10.0)

    plain = step_ms(program)
    saved = plain - step_ms(lambda machine: program(machine, waits=False))
    recording = recorded(program, event_cost_us=4.0)
    cost = event_cost(recording, step_ms=plain)
    places = {act.wait for act in recording.acts if act.wait is not None}

    as_it_is = play(recording, event_cost_us=cost).step_ms
    without = play(recording, event_cost_us=cost, without_waits=places).step_ms

    assert cost == pytest.approx(4.0, rel=0.1)
    assert as_it_is == pytest.approx(plain, rel=0.01)
    assert as_it_is - without == pytest.approx(saved, rel=0.05)


def test_noise_of_steps_that_the_device_bounds_is_no_cost_of_the_profiler():
    """A cost read out of it would make the host's work look shorter than it is."""

    def program(machine, waits=True):
        for _ in range(300):
            with machine.operation("aten::mul"):
                machine.host(12.0)
                machine.launch(33.0)
        if waits:
            machine.item()
        machine.host(12_000.0)

    plain = step_ms(program)
    saved = plain - step_ms(lambda machine: program(machine, waits=False))
    recording = recorded(program, event_cost_us=1.2)
    cost = event_cost(recording, step_ms=0.996 * plain)
    places = {act.wait for act in recording.acts if act.wait is not None}

    as_it_is = play(recording, event_cost_us=cost).step_ms
    without = play(recording, event_cost_us=cost, without_waits=places).step_ms

    assert as_it_is - without == pytest.approx(saved, rel=0.05)


def test_a_wait_for_an_event_is_for_work_before_one_that_was_recorded():
    """Of this step's twenty pieces some are done by then, but no event was recorded behind them."""
    done = [0.0]

    def program(machine):
        for _ in range(20):
            machine.host(60.0)
            machine.launch(200.0)
        machine.wait("event", done=done[0])
        done[0] = machine.record()
        machine.host(5_000.0)

    recording = recorded(program)

    assert {act.until for act in recording.acts if act.wait is not None} == {21}


def test_what_the_profilers_end_holds_up_is_no_latency_of_a_launch():
    """Work of the last step that runs behind it, which is when the profiler ends."""

    def program(machine):
        machine.item()
        machine.host(100.0)
        for _ in range(20):
            machine.launch(100.0)

    machine = played(program)
    for event in machine.events:
        if event["cat"] == "kernel" and event["ts"] > machine.steps[-1]:
            event["ts"] += 30_000.0
    trace = read_trace(machine.events)
    held_up = play(record(trace, find_waits(trace))).step_ms

    assert held_up == pytest.approx(step_ms(program), rel=0.01)


def test_a_wait_for_work_of_before_the_trace_is_for_none_of_it():
    """A step begins behind the update; what the first wait of the trace is for had been queued before."""
    num, done = itertools.count(), [0.0]

    def program(machine):
        machine.wait("event", done=done[0])
        done[0] = machine.record()
        machine.host(2_500.0)
        slow = next(num) == 0  # the profiler's first step
        for _ in range(20):
            machine.host(240.0 if slow else 60.0)
            machine.launch(300.0)

    recording = recorded(program)

    assert [act.until for act in recording.acts if act.wait is not None] == [None, *9 * [21]]
    assert gain_of_all(recording) == pytest.approx(0.0, abs=0.01)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("host"), st.floats(0, 3000)),
        st.tuples(st.just("launch"), st.floats(2, 3000)),
        st.tuples(st.just("side"), st.floats(2, 500)),
        st.tuples(st.just("wait"), st.sampled_from(["stream", "device", "item"])),
    ),
    min_size=1,
    max_size=14,
)


def program_of(acts, *, without=None):
    def program(machine):
        machine.launch(50.0)
        for place, (kind, value) in enumerate(acts):
            if kind == "host":
                machine.host(value)
            elif kind == "launch":
                machine.launch(value)
            elif kind == "side":
                machine.launch(value, stream=9)
            elif place != without:
                machine.item() if value == "item" else machine.wait(value)

    return program


@settings(max_examples=30, deadline=None)
@given(ACTS)
def test_played_as_they_were_steps_take_what_they_took(acts):
    """Whatever the loop does, the long run of its recording is that of the loop."""
    recording = recorded(program_of(acts))

    assert play(recording).step_ms == pytest.approx(step_ms(program_of(acts)), rel=0.02, abs=0.02)


@settings(max_examples=30, deadline=None)
@given(ACTS, st.data())
def test_the_gain_of_one_wait_of_several_is_what_removing_it_saves(acts, data):
    """Where the idle time only moves on to the next wait, nothing is gained."""
    places = [place for place, (kind, _) in enumerate(acts) if kind == "wait"]
    if not places:
        return
    chosen = data.draw(st.sampled_from(places))
    trace = read_trace(played(program_of(acts)).events)
    waits = find_waits(trace)
    recording = record(trace, waits)
    of_step = [i for i in range(len(waits)) if i % len(places) == places.index(chosen)]
    plain = step_ms(program_of(acts))
    saved = plain - step_ms(program_of(acts, without=chosen))

    gain = play(recording).step_ms - play(recording, without_waits=of_step).step_ms

    assert gain == pytest.approx(saved, rel=0.1, abs=max(0.02 * plain, 0.02))


def test_the_host_runs_ahead_only_as_far_as_the_driver_lets_it():
    """A pause every ten steps is hidden by a thousand launches, not by all of the steps before."""

    def program(*, waits):
        numbers = itertools.count()

        def step(machine):
            for _ in range(300):
                machine.launch(6.0)
            if waits:
                machine.item()
            if next(numbers) % 10 == 5:
                machine.host(12_000.0)

        return step

    plain = step_ms(program(waits=True), launch_us=2.0)
    without = step_ms(program(waits=False), launch_us=2.0)
    recording = recorded(program(waits=True), launch_us=2.0)

    assert gain_of_all(recording) == pytest.approx(plain - without, rel=0.1)


def test_work_of_a_thread_aside_stays_where_it_was():
    """A thread that only prefetches does not lengthen the host's time."""

    def program(machine):
        machine.launch(1000.0)
        machine.thread = OTHER
        machine.launch(300.0, stream=9)
        machine.thread = 100
        machine.item()
        machine.host(500.0)

    recording = recorded(program)

    assert play(recording).step_ms == pytest.approx(step_ms(program), rel=0.02)


@pytest.mark.parametrize("skew_us", [-4.0, 4.0])
@pytest.mark.parametrize("name", WAITS)
def test_clocks_that_differ_a_little_do_not_change_the_gain(name, skew_us):
    """A wait may seem to return before its work is done."""
    program = planted(0.3, wait=WAITS[name])
    plain = step_ms(program)
    saved = plain - step_ms(planted(0.3, wait=WAITS[name], waits=False))

    assert gain_of_all(recorded(program, skew_us=skew_us)) == pytest.approx(
        saved, rel=0.1, abs=0.02 * plain
    )


def test_a_graph_is_one_launch_of_all_its_work():
    """Left out, a wait behind it gains what it would gain behind single kernels."""

    def program(machine, waits=True):
        machine.graph(8000.0, num_kernels=40)
        if waits:
            machine.item()
        machine.host(3000.0)

    plain = step_ms(program)
    saved = plain - step_ms(lambda machine: program(machine, waits=False))
    recording = recorded(program)

    assert len(recording.works) == 20
    assert gain_of_all(recording) == pytest.approx(saved, rel=0.1)


@pytest.mark.parametrize("is_told", [True, False])
def test_work_that_waits_for_another_stream_still_does_without_the_hosts_wait(is_told):
    """A copy that the next kernel needs is not hidden by leaving out a wait."""

    def program(machine, waits=True):
        done = machine.launch(4000.0, stream=9)
        machine.wait_event(7, done, on_stream=9 if is_told else -1)
        done = machine.launch(6000.0)
        machine.wait_event(9, done, on_stream=7 if is_told else -1)
        if waits:
            machine.item()
        machine.host(2000.0)

    plain = step_ms(program)
    saved = plain - step_ms(lambda machine: program(machine, waits=False))
    recording = recorded(program)

    assert play(recording).step_ms == pytest.approx(plain, rel=0.01)
    assert gain_of_all(recording) == pytest.approx(saved, rel=0.1, abs=0.02 * plain)


def test_work_whose_launch_was_not_recorded_stays_where_it_was():
    """It is busy time all the same."""
    machine = played(planted(0.3, wait=WAITS["item"]))
    launches = [one for one in machine.events if one["name"] == "cudaLaunchKernel"]
    machine.events.remove(launches[100])
    trace = read_trace(machine.events)
    waits = find_waits(trace)

    assert len(record(trace, waits).works) == 41 * 10


# What is read in a trace


def waits_until(program, *, without=None, **options):
    """Return until which work the waits of a program wait, and how late they return, in us."""
    machine = played(program, **options)
    trace = read_trace([one for one in machine.events if one["cat"] != without])
    acts = record(trace, find_waits(trace)).acts
    return {(act.until, round(act.return_us)) for act in acts if act.wait is not None}


def pin(machine):
    machine.launch(10.0)
    machine.host(20.0)
    machine.call("cudaHostAlloc", 50.0)


def all_streams(machine):
    machine.launch(500.0, stream=9)
    machine.launch(100.0)
    machine.wait("device")


def beside(copies):
    def program(machine):
        machine.launch(113.0, stream=9)
        copies(machine)

    return program


def read_pageable(machine):
    machine.launch(98.0)
    machine.launch(2.0, kind="gpu_memcpy", name="Memcpy DtoH (Device -> Pageable)")
    machine.wait()


def of_two_streams(machine):
    machine.launch(1000.0, stream=9)
    machine.launch(100.0)
    done = max(machine.free.values())
    machine.record()
    machine.wait("event", done=done)


@pytest.mark.parametrize(
    ("program", "without", "expected"),
    [
        pytest.param(pin, None, (None, 50), id="memory is page-locked"),
        pytest.param(all_streams, None, (0, 10), id="all streams"),
        pytest.param(
            beside(lambda machine: machine.pageable(100.0)), None, (1, 10), id="its copy"
        ),
        pytest.param(
            beside(read_pageable),
            "cuda_sync",
            (1, 10),
            id="the stream of its copy",
        ),
        pytest.param(of_two_streams, None, (2, 10), id="the later one before an event"),
    ],
)
def test_a_wait_is_for_one_piece_of_work(program, without, expected):
    """Not for work of another stream that was done at nearly the same time."""
    assert waits_until(program, without=without) == {expected}


def test_a_wait_before_all_work_is_for_none():
    """As in a script that synchronises before it begins."""

    def program(machine):
        machine.wait("device")
        machine.launch(10.0)

    assert waits_until(program, num_steps=1) == {(None, 10)}


def test_work_behind_a_busy_stream_has_the_latency_of_a_launch():
    """How long it stood in the queue is no property of its own."""

    def program(machine):
        for _ in range(3):
            machine.launch(1000.0)
        machine.item()
        machine.host(100.0)

    latencies = {round(work.latency_us) for work in recorded(program).works}

    assert latencies == {8}


def test_work_may_begin_before_its_streams_earlier_work_ends():
    """As kernels of a graph, or where clocks differ."""

    def program(machine):
        machine.launch(1000.0)
        machine.launch(100.0)
        machine.events[-1]["ts"] -= 50.0
        machine.item()

    assert {round(work.lead_us) for work in recorded(program).works} == {0, -50}


def test_a_long_trace_is_cut_to_its_last_steps(monkeypatch):
    """So that playing it stays quick."""
    for most, num_steps in ((100, 2), (1, 1)):
        monkeypatch.setattr(recording_module, "_MAX_WORKS", most)

        assert recorded(planted(0.3, wait=WAITS["item"])).num_steps == num_steps


def test_work_that_goes_on_beside_is_not_waited_for():
    """An event that was recorded before it may be meant, where the driver does not tell which."""

    def program(machine):
        done = machine.launch(10.0, stream=9)
        machine.host(50.0)
        machine.launch(5000.0, stream=9)
        machine.wait_event(7, done)
        machine.launch(10.0)
        machine.wait()

    assert [work.after for work in recorded(program).works] == [()] * 3 * 10


def test_a_stream_may_wait_behind_all_work():
    """As the last thing of a script."""

    def program(machine):
        machine.wait_event(7, machine.launch(10.0, stream=9))

    machine = played(program)
    trace = read_trace([one for one in machine.events if one["cat"] != "cuda_sync"])

    assert len(record(trace, find_waits(trace)).works) == 10


def test_of_intervals_that_overlap_the_first_one_has_the_time():
    """A collection within the loader is the loader's."""
    machine = played(lambda machine: (machine.host(100.0), machine.launch(10.0)))
    trace = read_trace(machine.events)
    at = trace.steps[-2]
    intervals = [
        HostInterval(kind="loader", start_us=at, end_us=at + 60.0, owner=0),
        HostInterval(kind="gc", start_us=at + 40.0, end_us=at + 80.0, owner=1),
    ]

    acts = record(trace, find_waits(trace), intervals).acts

    assert [(kind, end - start) for act in acts for kind, _, start, end in act.named] == [
        ("loader", 60.0),
        ("gc", 20.0),
    ]


def test_a_launch_aside_keeps_its_place_in_a_wait():
    """It is so long behind the beginning of the wait, not behind its end."""

    def program(machine):
        machine.launch(1000.0)
        machine.wait()
        returned, machine.thread = machine.now, OTHER
        machine.now = returned - 400.0
        machine.launch(10.0, stream=9)
        machine.now, machine.thread = returned, MAIN

    aside = {round(act.pause_us) for act in recorded(program).acts if act.aside}

    assert aside == {613}


# How it is played


def queued(us, *, stream=7, **more):
    plain = Queued(
        stream=stream,
        duration_us=us,
        busy=((0.0, us),),
        latency_us=0.0,
        lead_us=0.0,
        delay_us=0.0,
        after=(),
    )
    return replace(plain, **more)


def act(*works, pause=0.0, call=0.0, **more):
    plain = Act(
        pause_us=pause,
        named=(),
        call_us=call,
        works=works,
        wait=None,
        until=None,
        return_us=0.0,
        num_events=0,
    )
    return replace(plain, **more)


def recording_of(acts, works=()):
    return Recording(acts=tuple(acts), works=tuple(works), num_steps=1, begin_us=0.0, end_us=0.0)


NAMED = (("loader", 0, 20.0, 60.0), ("gc", 1, 60.0, 80.0))
PLAYED = {
    "work that leads": (
        [act(0, 1, 2, 3)],
        [
            queued(100.0),
            queued(10.0, lead_us=-50.0),
            queued(10.0, lead_us=-50.0, latency_us=80.0),
            queued(10.0),
        ],
        {},
        [(0, 100), (50, 60), (80, 90), (100, 110)],
    ),
    "work that is late": (
        [act(0, 1)],
        [queued(10.0), queued(10.0, delay_us=5.0)],
        {},
        [(0, 10), (15, 25)],
    ),
    "work of a thread aside": (
        [act(0, pause=10.0, call=20.0), act(1, pause=5.0, aside=True)],
        [queued(100.0), queued(10.0, stream=9)],
        {},
        [(10, 110), (15, 25), (10, 30)],
    ),
    "named time": ([act(pause=100.0, named=NAMED)], [], {}, [(20, 60), (60, 80)]),
    "named time that is left out": (
        [act(pause=100.0, named=NAMED)],
        [],
        {"without_named": {0}},
        [(36, 48)],
    ),
    "a cost that is most of the time": (
        [act(pause=10.0, num_events=9), act(call=20.0)],
        [],
        {"event_cost_us": 4.0},
        [(1, 17)],
    ),
    "no launch in a full queue": (
        [*(act(place) for place in range(1001)), act(call=5.0)],
        [queued(100.0)] * 1001,
        {},
        [*((100 * place, 100 * place + 100) for place in range(1001)), (0, 5)],
    ),
}


@pytest.mark.parametrize("name", PLAYED)
def test_a_recording_is_played_to_the_microsecond(name):
    """Work of the device, then what the host did."""
    acts, works, options, expected = PLAYED[name]

    done = play(recording_of(acts, works), num_rounds=2, keep_spans=True, **options)

    device = [(one.start_us, one.end_us) for one in done.device[: len(works)]]
    host = [(one.start_us, one.end_us) for one in done.host[: len(done.host) // 2]]
    assert [*device, *host] == [(pytest.approx(a), pytest.approx(b)) for a, b in expected]


def test_a_measured_cost_is_that_of_the_events_that_the_host_works_for():
    """What a wait takes is no work of the host, nor is what another thread does."""
    acts = [
        act(pause=100.0, num_events=1),
        act(call=50.0, wait=0),
        act(pause=30.0, aside=True),
    ]

    assert event_cost(recording_of(acts), step_ms=1.0, slower_ms=0.004) == pytest.approx(4.0, 0.01)
