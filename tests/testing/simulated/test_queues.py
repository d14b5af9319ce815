"""When queued work runs under each scheduler, and where its failures surface."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.testing.simulated.queues import Queues, SimulatedEvent, Task
from gapless.testing.simulated.races import HOST
from gapless.testing.simulated.simulated_device import SimulatedDevice


class Log:
    """Two streams whose tasks write down that they ran."""

    def __init__(self, scheduler, seed=0):
        self.queues = Queues(scheduler, seed)
        self.streams = [self.queues.create(name) for name in ("a", "b")]
        self.ran = []

    def put(self, stream, name, needs=None):
        def run():
            self.ran.append(name)

        self.queues.put(self.streams[stream], Task(run, 0.0, needs=needs))

    def mark(self, stream):
        """Return an event recorded behind what is queued on a stream."""
        device = SimulatedDevice(scheduler="lazy")
        mark = device._simulation.mark(device.current_stream())
        mark.stream, mark.number = self.streams[stream], self.streams[stream].num_queued
        return mark


def test_an_unknown_scheduler_is_refused():
    """The error names the schedulers that exist."""
    with pytest.raises(ValueError, match="'eager'; the schedulers are asap, lazy, random"):
        SimulatedDevice(scheduler="eager")


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_runs_in_its_own_order_and_waits_for_others(seed):
    """Under any seed, tasks of one stream keep their order, and a wait holds its stream back."""
    log = Log("random", seed)
    for number in range(5):
        log.put(0, f"a{number}")
    log.put(1, "b0")
    log.put(1, "b1", needs=log.mark(0))
    for _ in range(30):
        log.queues.advance(0.0)

    assert [f"a{number}" for number in range(5)] == [name for name in log.ran if name[0] == "a"]
    assert log.ran.index("a4") < log.ran.index("b1")
    assert log.ran.index("b0") < log.ran.index("b1")


def test_seeds_interleave_differently_and_repeat():
    """A seed always gives the same order; other seeds give other orders."""

    def order(seed):
        log = Log("random", seed)
        for number in range(6):
            for stream, name in enumerate("ab"):
                log.put(stream, f"{name}{number}")
                log.queues.advance(0.0)
        log.queues.run_all()
        return tuple(log.ran)

    assert [order(seed) for seed in range(20)] == [order(seed) for seed in range(20)]
    assert len({order(seed) for seed in range(20)}) > 10


def test_asap_runs_work_when_it_is_queued():
    """Without durations the `asap` device is never behind the host."""
    log = Log("asap")
    log.put(0, "a0")
    log.queues.advance(0.0)

    assert log.ran == ["a0"]


def test_asap_runs_no_earlier_than_the_virtual_clock_says():
    """With durations, work is done once the virtual clock has reached its end."""
    with SimulatedDevice(scheduler="asap", durations={"kernel": 2.0, "host": 1.0}) as device:
        x = device.device_buffer(4).fill_(1)
        event = device.create_event()
        device.record_event(event, device.current_stream())
        seen = []
        for _ in range(3):
            seen.append(device.query_event(event))
            device.spend("host")

        assert seen == [False, False, True]
        assert x.tolist() == [1] * 4


def test_lazy_runs_what_a_wait_needs_and_nothing_more():
    """A wait for one stream runs the work up to its mark and what that work waits for."""
    log = Log("lazy")
    log.put(0, "a0")
    needed = log.mark(0)
    log.put(0, "a1")
    log.put(1, "b0", needs=needed)
    wanted = log.mark(1)
    log.put(1, "b1")
    log.queues.advance(0.0)
    assert log.ran == []
    log.queues.run_until(wanted)

    assert log.ran == ["a0", "b0"]


def test_a_host_that_keeps_asking_moves_a_lazy_device():
    """The hundredth query of an event finds it done; earlier ones do not."""
    log = Log("lazy")
    log.put(0, "a0")
    event = SimulatedEvent(log.mark(0))
    answers = [log.queues.poll(event, 0.0) for _ in range(100)]

    assert answers == [False] * 99 + [True]


def test_a_new_record_starts_the_count_of_queries_again():
    """After another record, an event again needs a hundred queries."""
    with SimulatedDevice(scheduler="lazy") as device:
        event = device.create_event()
        for _ in range(2):
            device.device_buffer(4).fill_(1)
            device.record_event(event, device.current_stream())
            assert not any(device.query_event(event) for _ in range(99))


def test_an_event_that_was_never_recorded_is_done():
    """Queries, waits and synchronisation of an event without a record return at once."""
    with SimulatedDevice(scheduler="lazy") as device:
        device.device_buffer(4).fill_(1)
        event = device.create_event()

        assert device.query_event(event)
        device.wait_event(device.current_stream(), event)
        device.synchronize_event(event)
        assert device.current_stream().num_done == 0


def fail_late(device):
    """Queue an index that is out of range, which no shape tells."""
    x = device.device_buffer(4)
    return x.index_select(0, torch.tensor([9]))


@pytest.mark.parametrize("scheduler", ["asap", "lazy", "random"])
def test_a_failure_of_queued_work_surfaces_at_the_next_wait(scheduler):
    """A failure is raised once, with the line that queued the work; then the device works on."""
    with SimulatedDevice(scheduler=scheduler) as device:
        fail_late(device)
        with pytest.raises(IndexError) as caught:
            device.synchronize_stream(device.current_stream())
        x = device.device_buffer(4).fill_(3)

        assert x.tolist() == [3] * 4
    (note,) = caught.value.__notes__
    assert note.startswith("in work that was queued on default stream at test_queues.py:")


def test_the_first_failure_is_the_one_that_is_told():
    """Work after a failure does not run, so only the first failure is raised."""
    with SimulatedDevice(scheduler="lazy") as device:
        fail_late(device)
        x = device.device_buffer(4)
        x.gather(0, torch.tensor([9]))
        with pytest.raises(IndexError, match="index out of range in self"):
            device.synchronize_stream(device.current_stream())


def test_a_failure_that_nobody_waited_for_surfaces_at_the_end():
    """Leaving the device raises a failure that no wait has raised."""
    with pytest.raises(IndexError), SimulatedDevice(scheduler="lazy") as device:
        fail_late(device)


def test_a_failure_of_the_body_is_not_hidden_by_queued_ones():
    """The exception of the body is raised, not that of queued work."""
    with (
        pytest.raises(KeyError, match="mine"),
        SimulatedDevice(scheduler="lazy") as device,
    ):
        fail_late(device)
        raise KeyError("mine")


def test_wrong_shapes_fail_at_the_call():
    """The host checks shapes at the call, as on a GPU."""
    with SimulatedDevice(scheduler="lazy") as device:
        x = device.device_buffer(12)
        with pytest.raises(RuntimeError, match="must match the size"):
            x + device.device_buffer(5)


def test_streams_have_names_of_their_own():
    """A stream whose name is taken, or is the host's, gets another name."""
    device = SimulatedDevice()
    streams = [
        device.create_stream(),
        *(device.shared_stream(name) for name in ("stream 0", HOST, "default stream", "mine")),
    ]
    names = [stream.name for stream in streams]

    assert len({*names, HOST, device.current_stream().name}) == 7
    assert names[-1] == "mine"
    assert device.shared_stream("mine") is streams[-1]


def test_streams_that_wait_for_each_other_in_turn_end():
    """A long chain of waits between two streams runs from its start."""
    with SimulatedDevice(scheduler="lazy") as device:
        one, two = device.current_stream(), device.create_stream()
        x = device.device_buffer(4).fill_(0)
        for _ in range(500):
            device.wait_stream(two, one)
            with device.use_stream(two):
                x.add_(1)
            device.wait_stream(one, two)
            x.remainder_(100)

        assert x.tolist() == [500 % 100] * 4
    assert device.report.races == []


class Seen(TorchDispatchMode):
    """List the operators that run in its body."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_late_work_is_not_seen_by_the_modes_of_code_that_runs_by_then():
    """A mode sees the operators of its body, and none that was queued before it."""
    with SimulatedDevice(scheduler="lazy") as device:
        x = device.device_buffer(8).fill_(1)
        with Seen() as seen:
            x.mul_(2)
            device.synchronize_stream(device.current_stream())

    assert seen.names == ["aten.mul_.Tensor"]
    assert x.tolist() == [2] * 8
