"""Recorded steps played again predict what a loop takes without one of its waits."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from doctor.simulated_trace import OTHER, played, step_ms
from gapless.doctor.replay import event_cost, play, record
from gapless.doctor.trace import find_waits, read_trace


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
