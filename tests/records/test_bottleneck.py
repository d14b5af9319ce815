"""What is concluded from measured steps; pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, strategies as st

from gapless.loop.train_loop import TrainLoop
from gapless.records.bottleneck import (
    Launch,
    Pace,
    Readings,
    Sample,
    Trial,
    diagnose,
    find_bottleneck,
    trial_of,
    workers_needed,
)


def sample(period_ms, *, shape="a", is_replay=False, **changed):
    launched = {"host_ms": 1.0, "data_wait_ms": 0.0, "found_idle": True, **changed}
    busy_ms = launched.pop("busy_ms", 1.0)
    launch = Launch(ran_as="replay" if is_replay else "eager", key=shape, **launched)
    return Sample(launch=launch, busy_ms=busy_ms, period_ms=period_ms)


def readings(**changed):
    """Return a launch-bound step of 31 ms, with some figures changed."""
    launch_bound = Readings(
        step_ms=31.0, host_ms=30.8, data_wait_ms=0.1, busy_ms=30.5, idle_share=1.0, waits={}
    )
    return replace(launch_bound, **changed)


FASTER = Trial(eager_ms=31.0, captured_ms=7.3, captured_busy_ms=7.1)

CASES = {
    "launch": (
        readings(),
        FASTER,
        "auto: launch-bound: the host needs 30.8 ms to launch a step and the device 7.1 ms to run "
        "it; captured, 7.3 ms a step",
    ),
    "launch, refused": (
        readings(),
        Trial(refusal="train.py:9: no"),
        "auto: launch-bound: the host needs 30.8 ms to launch a step and the device waits for it; "
        "steps run eagerly, because they cannot be captured: train.py:9: no",
    ),
    "launch, shapes do not come again": (
        readings(),
        Trial(),
        "auto: launch-bound: the host needs 30.8 ms to launch a step and the device waits for it; "
        "steps run eagerly, because shapes of batches hardly repeat",
    ),
    "device": (
        readings(step_ms=37.2, host_ms=9.0, busy_ms=36.1, idle_share=0.0),
        Trial(refusal="train.py:9: no"),
        "auto: device-bound: the device is busy 97% of the time, 36.1 of 37.2 ms a step; no plan "
        "will make it faster",
    ),
    "device, captured": (
        readings(step_ms=37.2, host_ms=9.0, busy_ms=36.1, idle_share=0.0),
        Trial(eager_ms=37.2, captured_ms=36.2, captured_busy_ms=36.0),
        "auto: device-bound: the device is busy 97% of the time, 36.1 of 37.2 ms a step; "
        "captured, 36.2 ms a step",
    ),
    "data": (
        readings(step_ms=15.0, host_ms=2.5, data_wait_ms=12.0, busy_ms=3.0, num_workers=0),
        Trial(refusal="train.py:9: no"),
        "auto: data-bound: the host waits 12.0 of 15.0 ms a step for the loader; use 4 "
        "workers instead of 0; steps run eagerly, because they cannot be captured: train.py:9: no",
    ),
    "data, unknown loader": (
        readings(step_ms=15.0, host_ms=2.5, data_wait_ms=12.0, busy_ms=3.0),
        Trial(eager_ms=3.0, captured_ms=3.0, captured_busy_ms=2.0),
        "auto: data-bound: the host waits 12.0 of 15.0 ms a step for the loader; the loader "
        "has to be 5.0 times as fast; steps run eagerly, which takes 3.0 ms without that wait, "
        "and captured 3.0",
    ),
    "data, captured": (
        readings(step_ms=8.8, host_ms=2.5, data_wait_ms=6.1, busy_ms=2.3, num_workers=2),
        Trial(eager_ms=2.7, captured_ms=0.5, captured_busy_ms=0.44),
        "auto: data-bound: the host waits 6.1 of 8.8 ms a step for the loader; use 36 "
        "workers instead of 2; captured, 0.50 ms a step without that wait",
    ),
    "data, more than cores": (
        readings(
            step_ms=8.8, host_ms=2.5, data_wait_ms=6.1, busy_ms=2.3, num_workers=2, num_cores=16
        ),
        Trial(eager_ms=2.7, captured_ms=0.5, captured_busy_ms=0.44),
        "auto: data-bound: the host waits 6.1 of 8.8 ms a step for the loader; 36 workers would "
        "be needed instead of 2, on 16 cores; make batches cheaper, or before the run; captured, "
        "0.50 ms a step without that wait",
    ),
    "host wait": (
        readings(step_ms=5.0, host_ms=4.8, busy_ms=4.5, waits={"train.py:31": 1.0}),
        Trial(refusal="train.py:31 makes the host wait for the device"),
        "auto: host wait: the host waits for the device inside the step (train.py:31 once a step) "
        "and is there for 4.8 of 5.0 ms, so it cannot launch ahead; a step that waits cannot be "
        "captured",
    ),
    "host code": (
        readings(step_ms=20.0, host_ms=2.0, busy_ms=2.0),
        FASTER,
        "auto: host-bound: the code between two steps takes 17.9 of 20.0 ms; captured, 7.3 ms a "
        "step",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_diagnosis_says_what_why_and_what_was_done(case):
    """Bottleneck, numbers and choice stand in one line."""
    measured, trial, line = CASES[case]

    found = diagnose(measured, trial)

    assert line == found.line
    assert case.split(",")[0] == found.bottleneck
    assert trial.pays is found.captures


times = st.floats(0.01, 1000.0)


@given(
    host_ms=times,
    data_wait_ms=times,
    between_ms=times,
    busy_share=st.floats(0.0, 0.94),
    scale=st.floats(0.1, 10.0),
)
def test_a_late_host_is_bound_by_its_largest_part(
    host_ms, data_wait_ms, between_ms, busy_share, scale
):
    """Whatever the unit of time, the largest part is named."""
    parts = {"launch": host_ms, "data": data_wait_ms, "host code": between_ms}
    first, second = sorted(parts.values())[:0:-1]
    assume(first > 1.01 * second)
    step_ms = sum(parts.values())
    found = [
        find_bottleneck(
            readings(
                step_ms=step_ms * unit,
                host_ms=host_ms * unit,
                data_wait_ms=data_wait_ms * unit,
                busy_ms=busy_share * step_ms * unit,
            )
        )
        for unit in (1.0, scale)
    ]

    assert [max(parts, key=parts.get)] * 2 == found


@given(idle_share=st.floats(0.0, 0.5), host_ms=times, data_wait_ms=times)
def test_a_device_that_is_mostly_behind_is_the_bottleneck(idle_share, host_ms, data_wait_ms):
    """However long the host takes for anything."""
    found = readings(idle_share=idle_share, host_ms=host_ms, data_wait_ms=data_wait_ms)

    assert find_bottleneck(found) == "device"


@pytest.mark.parametrize(
    ("workers", "making_ms", "step_ms", "bottleneck"),
    [
        *((1, 40.0, 5.0, "data"), (2, 40.0, 5.0, "data"), (4, 80.0, 5.0, "data")),
        *((8, 160.0, 10.0, "data"), (4, 80.0, 18.0, "data"), (4, 80.0, 25.0, "device")),
    ],
)
def test_workers_deliver_at_once_and_are_still_too_few(workers, making_ms, step_ms, bottleneck):
    """Only the first step of a burst finds the device idle, and the host waits for that batch."""
    lost_ms = max(0.0, making_ms - workers * step_ms)
    first = sample(
        step_ms + lost_ms, busy_ms=step_ms, data_wait_ms=lost_ms, found_idle=lost_ms > 0
    )
    other = sample(step_ms, busy_ms=step_ms, found_idle=False)

    found = Readings.of([first, *[other] * (workers - 1)] * 3, num_workers=workers)

    assert find_bottleneck(found) == bottleneck


def test_a_device_that_is_idle_now_and_then_is_not_the_loaders_fault():
    """If the host hardly waited for data, no worker would help."""
    found = readings(step_ms=10.0, host_ms=2.0, busy_ms=8.0, data_wait_ms=0.5, idle_share=0.4)

    assert find_bottleneck(found) == "device"
    assert find_bottleneck(replace(found, data_wait_ms=1.5)) == "data"


def test_a_busy_device_is_not_blamed_on_the_loader():
    """Batches that come just in time for a device that is busy 96 % of the time."""
    found = readings(step_ms=10.0, host_ms=1.0, data_wait_ms=8.9, busy_ms=9.6)

    assert find_bottleneck(found) == "device"
    assert find_bottleneck(replace(found, busy_ms=9.0)) == "data"


@given(making_ms=st.floats(1.0, 500.0), rest_ms=st.floats(0.5, 50.0))
def test_so_many_workers_would_do_and_fewer_would_not(making_ms, rest_ms):
    """The processes needed make a batch in the time of a step; one fewer does not."""
    in_process = readings(
        step_ms=making_ms + rest_ms,
        data_wait_ms=making_ms,
        host_ms=rest_ms,
        busy_ms=0.9 * rest_ms,
        num_workers=0,
    )

    needed = workers_needed(in_process, Trial())

    assert making_ms / needed <= rest_ms * 1.000001
    assert needed == 1 or making_ms / (needed - 1) > rest_ms * 0.999999


@given(num_workers=st.integers(1, 64), step_ms=st.floats(2.0, 100.0))
def test_more_workers_are_needed_than_are_too_few(num_workers, step_ms):
    """Eight workers that deliver a batch each 10 ms need 80 ms for one."""
    too_slow = readings(
        step_ms=step_ms,
        data_wait_ms=0.75 * step_ms,
        host_ms=0.25 * step_ms,
        busy_ms=0.1 * step_ms,
        num_workers=num_workers,
    )

    assert max(num_workers + 1, 4 * num_workers) == pytest.approx(
        workers_needed(too_slow, Trial()), abs=1
    )


@given(
    periods=st.dictionaries(st.integers(0, 5), times, min_size=1),
    factor=st.floats(0.1, 3.0),
    counts=st.lists(st.integers(1, 4), min_size=12, max_size=12),
    wait_ms=st.sampled_from([0.0, 7.0]),
)
def test_shapes_are_compared_with_themselves(periods, factor, counts, wait_ms):
    """If every shape takes `factor` of its time as a graph, so does the whole, in any mixture.

    A wait for data is no part of it.
    """
    eager, replays = [], []
    for number, (shape, period_ms) in enumerate(periods.items()):
        waits = {"shape": shape, "data_wait_ms": wait_ms, "busy_ms": 0.0}
        eager += [sample(period_ms + wait_ms, **waits)] * counts[2 * number]
        replay = sample(factor * period_ms + wait_ms, **waits, is_replay=True)
        replays += [replay] * counts[2 * number + 1]

    found = trial_of(eager, [*replays, sample(1e9, shape="only as a graph", is_replay=True)])

    assert found.captured_ms == pytest.approx(factor * found.eager_ms)
    assert found.pays is (found.captured_ms < 0.98 * found.eager_ms)


def test_shapes_that_ran_in_one_way_only_say_nothing():
    """Then nothing is claimed about graphs."""
    assert trial_of([sample(1.0)], [sample(1.0, shape="b", is_replay=True)]) == Trial()
    assert trial_of([sample(1.0)], []).pays is False


def test_the_loaders_luck_does_not_choose():
    """A loader that was slow while graphs were tried says nothing against them."""
    eager = [sample(3.1, data_wait_ms=0.6, host_ms=2.2, busy_ms=2.3)] * 10
    replays = [sample(6.6, data_wait_ms=6.1, host_ms=0.1, busy_ms=0.3, is_replay=True)] * 10

    found = trial_of(eager, replays)

    assert (found.eager_ms, found.captured_ms) == pytest.approx((2.5, 0.5))
    assert found.pays


def test_a_wait_behind_a_busy_device_gains_nothing():
    """The host waited for data while the device worked: the step takes what the device takes."""
    eager = [sample(9.0, data_wait_ms=6.0, busy_ms=9.0, found_idle=False)] * 10
    replays = [sample(9.0, data_wait_ms=0.0, busy_ms=9.0, is_replay=True)] * 10

    assert trial_of(eager, replays).pays is False


def test_readings_are_averages_and_count_waits():
    """A line that waits twice in each of two steps waits twice a step."""
    steps = [
        sample(4.0, host_ms=1.0, waits=("a.py:1", "a.py:1", "a.py:2")),
        sample(6.0, host_ms=2.0, waits=("a.py:1", "a.py:1"), found_idle=False),
    ]

    found = Readings.of(steps, num_workers=3)

    assert (found.step_ms, found.host_ms, found.idle_share) == (5.0, 1.5, 0.4)
    assert found.waits == {"a.py:1": 2.0, "a.py:2": 0.5}
    assert found.num_workers == 3


@pytest.mark.parametrize(
    ("step_ms", "data_wait_ms", "changes"),
    [
        *((10.0, 0.0, False), (12.9, 0.0, False), (13.1, 0.0, True), (6.9, 0.0, True)),
        *((10.0, 2.9, False), (10.0, 3.1, True)),
    ],
)
def test_the_pace_changes_by_more_than_three_tenths(step_ms, data_wait_ms, changes):
    """Of the former time of a step, in the step or in what of it is waiting for data."""
    before = Pace.of([sample(10.0)])

    now = Pace.of([sample(step_ms, data_wait_ms=data_wait_ms)])

    assert changes is now.has_changed(before)


def test_a_cpu_has_no_gaps_to_close():
    """The plan says so from the start, and every progress carries it."""
    seen = []
    with TrainLoop(plan="auto", device="cpu") as loop:
        line = loop.diagnosis.line
        loop.run_epoch([1.0, 2.0], torch.tensor, on_batch=lambda now: seen.append(now.diagnosis))

    assert line == (
        "auto: a CPU runs its work itself, so there are no gaps to close; runs as gapless"
    )
    assert [loop.diagnosis] * 2 == seen
    assert loop.capture_report is None


def test_other_plans_diagnose_nothing():
    """Only `auto` speaks."""
    with TrainLoop(plan="gapless", device="cpu") as loop:
        assert loop.diagnosis is None


def test_a_step_that_compiles_does_not_spoil_the_averages():
    """One of ten took a second; a wait for the loader that is as rare counts in full."""
    steps = [sample(10.0, host_ms=2.0) for _ in range(8)]
    steps += [sample(1000.0, host_ms=990.0), sample(100.0, host_ms=2.0, data_wait_ms=90.0)]

    found = Readings.of(steps, num_workers=None)

    assert found.step_ms == pytest.approx(20.0)
    assert found.host_ms == pytest.approx(2.0)
    assert found.data_wait_ms == pytest.approx(10.0)
